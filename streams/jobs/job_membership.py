"""Which process owns a job: the members of a consumer group over `jobs` share its partitions.

    members ──► consumer group over `jobs` ──► the partitions that are owned ──► has: is this job ours?

The records are read elsewhere, from the beginning: nothing is committed.
"""

from __future__ import annotations

from collections.abc import Callable

from streams.kafka.consumer import GroupConsumer, OnAssignment
from streams.kafka.record import TopicPartition, partition_of
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings


class JobMembership(GroupConsumer):
    """One member. Poll it, from one thread."""

    COUNTS_RECORDS = False

    def __init__(
        self, settings: Settings, group: str, outage: BrokerOutage, gained: Callable[[], None] = lambda: None
    ) -> None:
        """`gained` is called when partitions were gained."""
        self._owned: set[int] = set()
        self._gained, self._of = gained, settings.topics.policy_partitions
        super().__init__(settings, group, ["jobs"], outage, OnAssignment(self._gain, self._lose, self._lose))

    def has(self, job_id: str) -> bool:
        """Return whether a job is ours."""
        return partition_of(job_id, self._of) in self._owned

    def _gain(self, partitions: list[TopicPartition]) -> None:
        self._owned.update(partition for _, partition in partitions)
        self._gained()

    def _lose(self, partitions: list[TopicPartition]) -> None:
        self._owned.difference_update(partition for _, partition in partitions)
