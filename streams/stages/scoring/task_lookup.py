"""Find the task that a response answers.

    (partition, task ids) ──► cached? ──► read on in `tasks` ──► then from its start, once ──► Task, or not in the log

Responses and tasks have the same keys and partitions, and responses come roughly in the order of their tasks. So the
reader stays where the last task was found, caches the newest `cache_bytes` of records, and reads on only if a task is
missing. A task that is not found up to the end has left the cache, or is before the reader's position: then the
partition is read once from its start to there. Missing tasks are remembered, or a response without a task, which is
looked up repeatedly, would have the whole topic read each time. Memory is bounded, and every task in the log is found.

Of one id with two contents the first in the partition should win; once that left the cache, the other may be found.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Self

from schemas import serde
from schemas.events import Task
from streams.errors import LogError
from streams.kafka.reader import PartitionReader
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings

CACHE_BYTES = 64 * 1024 * 1024
REMEMBERED = 100_000
"""Number of tasks that are known to be missing; the least recently requested is forgotten."""
FETCH_WAIT_MS = 1
"""A fetch that waits at the broker delays the next lookup's request for the end of the partition."""

Found = dict[bytes, bytes | None]


class TaskLookup:
    """Reads `tasks` on demand; one thread calls it. Use as a context manager."""

    def __init__(
        self, settings: Settings, *, cache_bytes: int = CACHE_BYTES, outage: BrokerOutage | None = None
    ) -> None:
        self._outage = outage
        self._topic = topics(settings.topics)["tasks"].name
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[tuple[int, bytes], bytes | None] = OrderedDict()  # (partition, key) to payload
        self._bytes = 0
        self._position: dict[int, int] = {}
        self._absent: OrderedDict[bytes, int] = OrderedDict()
        """Offset below which a task does not occur, by digest of partition and key."""
        self._reader = PartitionReader(settings, {}, outage=outage, fetch_wait_ms=FETCH_WAIT_MS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()

    def find(self, partition: int, task_ids: Iterable[str]) -> dict[str, Task | serde.Poison]:
        """Return those of `task_ids` that are in this partition of `tasks` now; a Poison for a malformed one.

        Raises LogError if the broker sends nothing: for a minute, or as long as the outage may last.
        """
        found: Found = {}
        missing = set()
        for key in {task_id.encode() for task_id in task_ids}:
            if (partition, key) in self._cached:
                self._cached.move_to_end((partition, key))
                found[key] = self._cached[partition, key]
            else:
                missing.add(key)
        if missing:
            reached = self._position.get(partition, 0)
            self._read(partition, reached, None, missing, found)
            end = self._position[partition]
            older = {key for key in missing if self._absent.get(_digest(partition, key), 0) < reached}
            if older:
                self._read(partition, 0, reached, older, found)
            self._reader.assign({})  # else it keeps fetching unneeded records
            for key in missing - found.keys():
                self._note_absent(partition, key, end)
        return {key.decode(): serde.decode(payload, Task) for key, payload in found.items()}

    def _read(self, partition: int, start: int, end: int | None, missing: set[bytes], found: Found) -> None:
        """Read from `start` to below `end` (None: the end of the log), or until nothing is missing any more.

        Records that retention has cut, even during the read, are skipped.
        """
        tp = (self._topic, partition)
        while True:
            first, log_end = self._reader.bounds(tp)
            start = max(start, first)
            self._reader.assign({tp: start}, {tp: log_end if end is None else min(end, log_end)})
            try:
                self._read_assigned(partition, missing, found)
            except LogError:
                if self._reader.bounds(tp)[0] <= start:
                    raise
            else:
                return
            finally:
                start = self._position[partition] = self._reader.position[tp]

    def _read_assigned(self, partition: int, missing: set[bytes], found: Found) -> None:
        for records in self._reader.batches(self._outage):
            for record in records:
                if record.key is not None:
                    self._cache(partition, record.key, record.payload)
                if record.key in missing:
                    missing.discard(record.key)
                    found[record.key] = record.payload
            if not missing:
                return

    def _note_absent(self, partition: int, key: bytes, below: int) -> None:
        digest = _digest(partition, key)
        self._absent[digest] = max(below, self._absent.pop(digest, 0))
        if len(self._absent) > REMEMBERED:
            self._absent.popitem(last=False)

    def _cache(self, partition: int, key: bytes, payload: bytes | None) -> None:
        if (partition, key) in self._cached:
            return
        self._cached[partition, key] = payload
        self._bytes += len(key) + len(payload or b"")
        while self._bytes > self._cache_bytes and len(self._cached) > 1:
            (_, old), gone = self._cached.popitem(last=False)
            self._bytes -= len(old) + len(gone or b"")


def _digest(partition: int, key: bytes) -> bytes:
    return hashlib.sha256(b"%d:%b" % (partition, key)).digest()
