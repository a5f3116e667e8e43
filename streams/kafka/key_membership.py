"""Assigns a topic's keys to processes: members of a consumer group over the topic share its partitions.

    members ──► consumer group over the topic ──► the partitions that are owned ──► has: is this key ours?

The records are read elsewhere, from the beginning: nothing is committed.
"""

from __future__ import annotations

from collections.abc import Callable

from streams.kafka.consumer import GroupConsumer, OnAssignment
from streams.kafka.record import TopicPartition, partition_of
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings


class KeyMembership(GroupConsumer):
    """One member. Poll it from a single thread."""

    COUNTS_RECORDS = False

    def __init__(
        self,
        settings: Settings,
        group: str,
        label: str,
        outage: BrokerOutage,
        gained: Callable[[], None] = lambda: None,
    ) -> None:
        """`gained` is called when partitions were gained."""
        self._owned: set[int] = set()
        self._gained, self._of = gained, topics(settings.topics)[label].partitions
        super().__init__(settings, group, [label], outage, OnAssignment(self._gain, self._lose, self._lose))

    def has(self, key: str) -> bool:
        """Return whether a key belongs to this process."""
        return partition_of(key, self._of) in self._owned

    def _gain(self, partitions: list[TopicPartition]) -> None:
        self._owned.update(partition for _, partition in partitions)
        self._gained()

    def _lose(self, partitions: list[TopicPartition]) -> None:
        self._owned.difference_update(partition for _, partition in partitions)
