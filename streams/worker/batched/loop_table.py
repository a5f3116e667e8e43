"""The rows of one table of a loop worker, by partition number, and those that its changelog lacks.

    changelog ──► restore, stale rows skipped ──► rows ◄── a handler reads and writes
                                                   └──► take_changes, once a second: each changed row once

The rows of a partition are dropped when it is lost. When it is handed over they stay for a while: if it comes back,
only newer rows are read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from streams.kafka.record import Record
from streams.worker.fence import Fence, generation_of

log = logging.getLogger("streamward.worker")

Row = bytes | None
"""The newest row; None if the key has no row."""


class CurrentPartition:
    """The partition number of the records that are handled now."""

    number = 0


class LoopTable:
    """Bytes by bytes; `changelog` is its topic, with `partitions`."""

    def __init__(self, changelog: str, partitions: int, place: CurrentPartition) -> None:
        """`place` gives the partition for `get` and assignments."""
        self.changelog, self.partitions = changelog, partitions
        self.fence = Fence()
        self._place = place
        self._rows: dict[int, dict[bytes, bytes]] = {}
        self._changed: dict[int, dict[bytes, Row]] = {}
        self._covered: dict[int, set[bytes]] = {}
        """By partition, keys whose newest row in the changelog is a zombie's."""

    def get(self, key: bytes) -> Row:
        """Return the row under `key` in the current partition, or None."""
        return self._rows[self._place.number].get(key)

    def __setitem__(self, key: bytes, row: bytes) -> None:
        self._rows[self._place.number][key] = row
        self._changed[self._place.number][key] = row

    # --- to the changelog ---------------------------------------------------------------------------------------------

    def take_changes(self) -> Iterator[tuple[int, bytes, Row]]:
        """Yield the rows that were written since the last call, with their partitions."""
        for number, rows in self._changed.items():
            self._changed[number] = {}
            yield from ((number, key, row) for key, row in rows.items())

    # --- from the changelog -------------------------------------------------------------------------------------------

    def begin(self, number: int, *, keep: bool = False) -> None:
        """Take up a partition: without rows, unless they are to be kept."""
        if not keep or number not in self._rows:
            self._rows[number] = {}
        self._changed[number], self._covered[number] = {}, set()

    def restore(self, record: Record) -> None:
        """Take in a record of the changelog, unless it is a zombie's."""
        number, key = record.at.partition, record.key or b""
        generation = generation_of(record.headers)
        if self.fence.admits(number, record.at.offset, generation):
            self._covered[number].discard(key)
            self._put(number, key, record.payload)
            return
        log.warning("%s: a row of generation %s comes after rows of a newer one, and is skipped", record.at, generation)
        self._covered[number].add(key)

    def _put(self, number: int, key: bytes, row: Row) -> None:
        if row is None:
            self._rows[number].pop(key, None)
        else:
            self._rows[number][key] = row

    def end_restoring(self, number: int) -> None:
        """A partition's changelog is fully read: rewrite the rows that a zombie's rows cover."""
        covered, self._covered[number] = self._covered[number], set()
        self._changed[number] |= {key: self._row(number, key) for key in covered}

    def _row(self, number: int, key: bytes) -> Row:
        return self._rows[number].get(key)

    def drop(self, number: int) -> None:
        """Forget a partition."""
        for rows_by_partition in (self._rows, self._changed, self._covered):
            rows_by_partition.pop(number, None)
