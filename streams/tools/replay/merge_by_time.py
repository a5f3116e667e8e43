"""Merge partitions by record timestamp, heads first, many records at once.

    lists of records of each partition ──► what certainly comes next ──► sorted ──► lists of records

As in Kafka Streams, the partition with the oldest next record comes next, so each keeps its own order even if its
timestamps go back. This equals sorting by the newest timestamp so far in each partition, and sorting a thousand records
takes a third of the time of comparing heads one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter, itemgetter

from streams.kafka.record import Record

_time, _key, _record = attrgetter("timestamp_ms"), itemgetter(0), itemgetter(1)


class _PartitionBuffer:
    """The records of one partition that were read and not yet yielded."""

    def __init__(self, lists: Iterable[list[Record]]) -> None:
        self._lists = iter(lists)
        self.keys: list[int] = []
        """The newest timestamp up to each record."""
        self.records: list[Record] = []
        self._newest = 0
        self.is_over = False

    def read(self) -> None:
        """Read the next records, if there are any."""
        for records in self._lists:
            if records:
                keys = list(accumulate(map(_time, records), max, initial=self._newest))[1:]
                self.keys += keys
                self.records += records
                self._newest = keys[-1]
                return
        self.is_over = True

    def pop_before(self, limit: int | None) -> Iterator[tuple[int, Record]]:
        """Remove the records older than `limit`, and yield them with their keys; None: all."""
        count = len(self.keys) if limit is None else bisect_left(self.keys, limit)
        yield from zip(self.keys[:count], self.records[:count], strict=True)
        del self.keys[:count], self.records[:count]


def merge_by_time(partitions: Sequence[Iterable[list[Record]]]) -> Iterator[list[Record]]:
    """Yield the records of some partitions as `heapq.merge` by timestamp does; of equal ones the first one's first."""
    buffers = [_PartitionBuffer(lists) for lists in partitions]
    limit: int | None = -1
    while limit is not None:
        for buffer in buffers:
            # the order is known up to the buffer that ends first: its next record may be as old as its last
            if not buffer.is_over and (not buffer.keys or buffer.keys[-1] == limit):
                buffer.read()
        limit = min((buffer.keys[-1] for buffer in buffers if not buffer.is_over), default=None)
        pairs = [pair for buffer in buffers for pair in buffer.pop_before(limit)]
        if pairs:
            yield list(map(_record, sorted(pairs, key=_key)))
