"""The simulated log: partitions with offsets, and the compaction of changelogs.

    append ──► topic[partition]@offset ──► read_from
                  └── a changelog: closed segments are cleaned, when half of what they hold is new

A segment is closed when it is full, and the one that is written to is never cleaned, as in Kafka: what a worker reads
again at a restart are the newest rows of each key, and all rows of the last segments.

Not covered: replicas, leaders, retention, and the minutes that Kafka's cleaner may be late.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from streams.kafka.record import TopicPartition
from streams.worker.changelog_topics import SEGMENT_BYTES


class Stored(NamedTuple):
    """A record as the log stores it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class SimulatedPartition:
    """One partition."""

    DIRTY = 0.5
    """min.cleanable.dirty.ratio, Kafka's default."""

    def __init__(self, segment_bytes: float | None) -> None:
        """With `segment_bytes` it is compacted."""
        self.records: list[Stored] = []
        self.end = 0
        self._segment_bytes = segment_bytes
        self._active_bytes, self._active_from = 0, 0
        self._dirty_bytes = self._clean_bytes = 0

    def append(
        self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
    ) -> int:
        """Add a record and return its offset."""
        offset = self.end
        self.records.append(Stored(offset, timestamp_ms, key, value, list(headers)))
        self.end += 1
        if self._segment_bytes is not None:
            self._active_bytes += len(key or b"") + len(value or b"")
            if self._active_bytes >= self._segment_bytes:
                self._roll()
        return offset

    def _roll(self) -> None:
        self._dirty_bytes += self._active_bytes
        self._active_bytes, self._active_from = 0, self.end
        if self._dirty_bytes >= self.DIRTY * (self._dirty_bytes + self._clean_bytes):
            self._compact()

    def _compact(self) -> None:
        newest = {record.key: record.offset for record in self.records if record.offset < self._active_from}
        kept = [
            record
            for record in self.records
            if record.offset >= self._active_from or (newest[record.key] == record.offset and record.value is not None)
        ]
        self.records = kept
        self._dirty_bytes = 0
        self._clean_bytes = sum(
            len(record.key or b"") + len(record.value or b"") for record in kept if record.offset < self._active_from
        )

    def read_from(self, offset: int, count: int) -> list[Stored]:
        """Return up to `count` records from an offset on."""
        first = offset if len(self.records) == self.end else bisect_left(self.records, offset, key=_offset)
        return self.records[first : first + count]


def _offset(record: Stored) -> int:
    return record.offset


class SimulatedBroker:
    """All partitions, and who wants to know when one of them grows."""

    def __init__(self, partitions: Mapping[str, int], weight: float = 1.0) -> None:
        """`partitions` of each topic; each record stands for `weight` of them, so segments hold fewer."""
        self.counts = dict(partitions)
        self._weight = weight
        self._partitions: dict[TopicPartition, SimulatedPartition] = {}
        self.watchers: dict[TopicPartition, dict[Callable[[], None], None]] = defaultdict(dict)

    def create_compacted(self, partitions: Mapping[str, int]) -> None:
        """Create the changelogs that are not there."""
        for name, count in partitions.items():
            if name not in self.counts:
                self.counts[name] = count
                for number in range(count):
                    self._partitions[name, number] = SimulatedPartition(SEGMENT_BYTES / self._weight)

    def __getitem__(self, tp: TopicPartition) -> SimulatedPartition:
        found = self._partitions.get(tp)
        if found is None:
            if tp[1] >= self.counts[tp[0]]:
                raise KeyError(tp)
            found = self._partitions[tp] = SimulatedPartition(None)
        return found

    def append(
        self,
        tp: TopicPartition,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> int:
        """Add a record to a partition, and return its offset."""
        offset = self[tp].append(timestamp_ms, key, value, headers)
        for tell in list(self.watchers[tp]):
            tell()
        return offset

    def topic(self, name: str) -> dict[int, list[Stored]]:
        """Return the records of a topic, by partition."""
        return {number: self[name, number].records for number in range(self.counts[name])}
