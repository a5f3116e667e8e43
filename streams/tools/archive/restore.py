"""Restore an archive into empty topics, with every partition, offset, key and timestamp.

    archive ──► topics, empty, or as far as an earlier restore came ──► retention off, and noted (retention.py)
            ──► placeholders below the archive's first offset ──► deleted, once the log begins after them
            ──► every record, at the offset it had; where there was none, what nobody can read (holes.py)

A batch is a list of offsets, so records must keep their offsets. The archive may begin after offset 0; then small
records are written up to there and deleted again, since a Kafka partition cannot begin elsewhere. Timestamps are the
old ones, so retention would delete the records at once: it is switched off for these topics, until
`RestoredTopics.set_back`. A topic that already holds all of its archive is not changed.

The target's end tells how far a restore came, so a killed one continues when it is called again. A topic that begins
like its archive, but without a record of a restore, may be in use: it is refused by default.

Headers are restored as archived; streams/kafka/headers.py lists those left out.

Not covered: records with timestamp 0, which librdkafka reads as "now".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import confluent_kafka as ck

from schemas.events import Coordinates
from streams.errors import LogError, NotFoundError, RefusedError
from streams.kafka import admin as cluster, reader
from streams.kafka.client import admin_client
from streams.kafka.headers import LEFT_OUT, Headers
from streams.kafka.producer import Producer
from streams.kafka.record import TopicPartition
from streams.kafka.topics import LABELS, topics
from streams.settings.model import Settings
from streams.tools.archive.holes import HoleWriter, holes_after
from streams.tools.archive.retention import RestoredTopics, SetBack
from streams.tools.archive.segments import ArchiveReader, fingerprint
from streams.tools.archive.tables import ArchiveExtent

PLACEHOLDER = b"streamward placeholder"


class Restored(NamedTuple):
    """What became of one partition."""

    label: str
    partition: int
    first: int
    next: int
    records: int
    """Written now; fewer than there are if an earlier restore was interrupted."""
    headers_left_out: int
    """The number of these with headers missing in the archive (streams/kafka/headers.py)."""
    holes: int = 0
    """Offsets between them that hold no record, as in the log that was archived."""


def restore(
    settings: Settings, labels: Iterable[str] = LABELS, *, into: Settings | None = None, fill: bool = False
) -> list[Restored]:
    """Write the archive of `settings` into the empty topics of `into` (default: the same); missing ones are created.

    Their retention is switched off. Raises RefusedError if a topic holds anything but the beginning of this very
    archive, or holds that while no restore is under way and `fill` is not set, or has other partitions; NotFoundError
    if nothing is archived; LogError if a segment is missing or damaged, or the broker refuses.
    """
    into, archive, labels = into or settings, ArchiveReader(settings), list(labels)
    states = {label: archive.state(label) for label in labels}
    extents = {
        (label, partition): archive_extent
        for label, state in states.items()
        for partition, archive_extent in (state.extents.items() if state else ())
    }
    if not extents:
        raise NotFoundError(
            f"archive.store={settings.archive.store}: holds nothing of {', '.join(labels)} under the prefix "
            f"{settings.topics.prefix!r}; see `streamward admin archive list`, and set archive.store and topics.prefix"
        )
    cluster.apply_topics(into)
    targets = {key: _Target(archive, extent, into, key) for key, extent in extents.items()}
    holes = HoleWriter(into) if any(target.has_holes for target in targets.values()) else None
    bounds = cluster.offsets(into, dict.fromkeys(label for label, _ in extents))
    for target in targets.values():  # all of them before the first record is written
        target.check(bounds)
    restored = RestoredTopics(archive.store, into)
    incomplete = {key[0] for key, target in targets.items() if target.is_behind(bounds)}
    if not fill:
        _check_unused(into, bounds, incomplete - restored.under_way(incomplete))
    restored.switch_off(incomplete)
    with Producer(into, any_size=True) as producer:
        for target in targets.values():
            target.fill_up(producer, bounds[target.to][1])
    late = [t for t in targets.values() if bounds[t.to][0] < t.first and t.is_behind(bounds)]
    _delete_before(into, {target.to: target.first for target in late})
    with Producer(into, any_size=True) as producer:
        done = [target.write(producer, holes, bounds[target.to][1]) for target in targets.values()]
    if holes is not None:
        holes.close()
    ends = cluster.offsets(into, dict.fromkeys(label for label, _ in extents))
    for target in targets.values():
        target.check_done(*ends[target.to])
    return done


def set_back(settings: Settings, labels: Iterable[str] = LABELS, *, into: Settings | None = None) -> list[SetBack]:
    """Set the retention of the topics of `into` back to what it was before `restore`, and return those that had it off.

    Kafka then deletes what is older. Raises LogError if the broker or the archive refuses.
    """
    return list(RestoredTopics(ArchiveReader(settings).store, into or settings).set_back(labels))


def _check_unused(settings: Settings, bounds: Mapping[TopicPartition, tuple[int, int]], labels: Iterable[str]) -> None:
    """Raise RefusedError if one of these topics holds records."""
    for label in labels:
        name = topics(settings.topics)[label].name
        if any(low < high for (topic, _), (low, high) in bounds.items() if topic == name):
            raise RefusedError(
                f"topic {name} holds records that begin like its archive, and no restore is under way there: it may be "
                "in use. Restore into other topics, with --into-prefix, or continue in this one with --fill"
            )


class _Target:
    """One partition that is restored."""

    def __init__(self, archive: ArchiveReader, extent: ArchiveExtent, settings: Settings, key: tuple[str, int]) -> None:
        self._archive, self._extent, self._target_settings = archive, extent, settings
        self._label, self._partition = key
        self._from = (archive.folder(self._label), self._partition)
        self.has_holes = sum(file.records for file in extent.segments) < extent.next - extent.first
        self.first = self._first_record() if self.has_holes else extent.first
        self.to: TopicPartition = (topics(settings.topics)[self._label].name, self._partition)
        self._position = f"{self.to[0]}[{self.to[1]}]"

    def check(self, bounds: dict[TopicPartition, tuple[int, int]]) -> None:
        """Raise RefusedError unless the partition is empty, or holds the beginning of this archive and nothing else."""
        count = sum(1 for tp in bounds if tp[0] == self.to[0])
        expected = len(self._archive.partitions(self._label))
        if count != expected:
            raise RefusedError(
                f"topic {self.to[0]} has {count} partitions, expected {expected}, as when it was "
                "archived: keys would belong to other partitions. Delete the topic, or set topics.partitions and "
                "topics.policy_partitions as they were, and use another topics.prefix"
            )
        for segment in self._extent.segments:
            self._archive.check(segment)
        low, high = bounds[self.to]
        if not self._is_ours(low, high):
            raise RefusedError(
                f"{self._position}: holds offsets {low} to {high - 1}, expected an empty partition (or the beginning "
                f"of this archive, {self._extent.first} to {self._extent.next - 1}). Restore into other topics, with "
                "--into-prefix, or delete this one"
            )

    def _is_ours(self, low: int, high: int) -> bool:
        if low == high:
            return high <= self.first
        if high > self._extent.next or low > self.first:
            return False
        first = min(self.first, high - 1)
        return all(map(self._is_from_here, {low, first, self._last_record(high)}))

    def _is_from_here(self, offset: int) -> bool:
        """Return whether the target has at this offset what a restore writes there."""
        records = [*reader.read(self._target_settings, {self.to: offset}, {self.to: offset + 1})]
        if not records:
            return self._extent.first <= offset < self.first
        if offset < self.first:
            return records[0].payload == PLACEHOLDER
        archived = self._archive.fetch([Coordinates(*self._from, offset)])
        return fingerprint(*records) == fingerprint(*archived.values())

    def _first_record(self) -> int:
        """Return the offset of the archive's first record; its end if it is empty: nothing can be written before it."""
        records = self._archive.read({self._from: self._extent.first}, {self._from: self._extent.next})
        return next((record.at.offset for record in records), self._extent.next)

    def _last_record(self, end: int) -> int:
        """Return the offset of the last record below `end`, as the archive has it."""
        if not self.has_holes or end <= self.first:
            return end - 1
        ranges = [[*files] for _, files in groupby(self._extent.segments, key=attrgetter("first", "next"))]
        for segments in reversed([segments for segments in ranges if segments[0].first < end]):
            offsets = [record.at.offset for record in self._archive.range(self._from, segments)]
            if before := [offset for offset in offsets if offset < end]:
                return before[-1]
        return self.first

    def is_behind(self, bounds: Mapping[TopicPartition, tuple[int, int]]) -> bool:
        """Return whether anything of the archive is missing here."""
        return bounds[self.to][1] < self._extent.next

    def fill_up(self, producer: Producer, high: int) -> None:
        """Write placeholders up to where the archive begins."""
        for offset in range(high, self.first):
            self._send(producer, offset, None, PLACEHOLDER)

    def write(self, producer: Producer, holes: HoleWriter | None, high: int) -> Restored:
        """Write the records that are not there yet, and the holes between them."""
        begin, next_ = max(self.first, high), self._extent.next
        written = headers_left_out = 0
        for hole in holes_after(self._archive.read({self._from: begin}, {self._from: next_}), begin, next_):
            if (record := hole.before) is not None:
                written += 1
                headers_left_out += record.headers == LEFT_OUT
                if hole.size != 1:
                    self._send(
                        producer, record.at.offset, record.key, record.payload, record.timestamp_ms, record.headers
                    )
            if hole.size:
                assert holes is not None, "some target has holes"  # noqa: S101
                producer.flush()
                holes.write(self.to, hole, PLACEHOLDER)
        empty = next_ - begin - written
        return Restored(self._label, self._partition, self.first, next_, written, headers_left_out, empty)

    def check_done(self, low: int, high: int) -> None:
        """Raise LogError unless the partition now has the offsets of the archive."""
        if high != self._extent.next or not self._extent.first <= low <= self.first:
            raise LogError(
                f"{self._position}: has offsets {low} to {high - 1} now, expected {self.first} to "
                f"{self._extent.next - 1}: another process writes to this topic. Stop it, delete the topic, restore"
            )

    def _send(
        self,
        producer: Producer,
        offset: int,
        key: bytes | None,
        payload: bytes | None,
        timestamp_ms: int = 0,
        headers: Headers = (),
    ) -> None:
        def check_offset(position: Coordinates) -> None:
            if position.offset != offset:
                raise RefusedError(
                    f"{position}: a record was written here that belongs to offset {offset}: another process writes to "
                    "this topic. Stop it, and restore into other topics"
                )

        producer.send_bytes(self.to, key, payload, on_ack=check_offset, headers=headers, timestamp_ms=timestamp_ms)


def _delete_before(settings: Settings, firsts: Mapping[TopicPartition, int]) -> None:
    if not firsts:
        return
    client = admin_client(settings.kafka)
    positions = [ck.TopicPartition(*tp, first) for tp, first in firsts.items()]
    for tp, future in client.delete_records(positions).items():
        _wait_for(future, f"{tp.topic}[{tp.partition}]: the placeholders before offset {tp.offset} were not deleted")


def _wait_for(future: object, failure: str) -> None:
    try:
        future.result()  # type: ignore[attr-defined]
    except ck.KafkaException as exc:
        raise LogError(f"{failure}: {exc.args[0].str()}. Check access rights with `streamward doctor`") from exc
