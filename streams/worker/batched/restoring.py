"""Bring the rows of newly assigned partitions back, while the worker stays a member of its group.

    changelogs, each from its first unknown row ──► step, a batch at a time ──► tables ──► done

The partitions that feed the tables are paused until then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from streams.kafka.reader import PartitionReader
from streams.kafka.record import TopicPartition
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings
from streams.worker.batched.loop_table import LoopTable

AT_ONCE = 5000
"""Rows in a step. The worker polls between steps: a rebalance waits for that."""
WAIT_S = 0.05


class Restoring:
    """Reads some changelog partitions."""

    def __init__(
        self,
        settings: Settings,
        tables: Mapping[str, LoopTable],
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        outage: BrokerOutage,
    ) -> None:
        """Read from `starts` to below `ends`."""
        self._tables, self._starts, self._begun = tables, starts, time.monotonic()
        self.rows = 0
        left = {tp: start for tp, start in starts.items() if start < ends[tp]}
        self._reader = (
            PartitionReader(settings, left, ends={tp: ends[tp] for tp in left}, outage=outage, fetch_wait_ms=10)
            if left
            else None
        )

    def step(self) -> bool:
        """Read on; return whether everything is read. Raises LogError as PartitionReader.poll."""
        if self._reader is not None:
            records = self._reader.poll(AT_ONCE, WAIT_S)
            for record in records:
                self._tables[record.at.topic].restore(record)
            self.rows += len(records)
            if not self._reader.at_end():
                return False
        self.close()
        for topic, number in self._starts:
            self._tables[topic].end_restoring(number)
        return True

    @property
    def position(self) -> dict[TopicPartition, int]:
        """The next offset to be read, per partition."""
        return {} if self._reader is None else self._reader.position

    @property
    def partitions(self) -> list[TopicPartition]:
        """The changelog partitions that are read."""
        return list(self._starts)

    @property
    def seconds(self) -> float:
        """Its duration so far."""
        return time.monotonic() - self._begun

    def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.__exit__()
            self._reader = None
