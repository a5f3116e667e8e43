"""Work through a topic as a member of a consumer group: read, hold back, commit finished records.

    poll ──► TakenRecord ──► `done`, in any order ──► commit: flush the producer, then the offsets below the first open
      └── pauses at `max_open` records that are not done, resumes at half of it

An offset is committed only after everything written for the records below it is acknowledged. Records that are open
when a partition is lost are worked through again by its next owner.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from schemas.serde import Poison
from streams.kafka.client import POLL_S
from streams.kafka.consumer import GroupConsumer, OffsetTracker, OnAssignment
from streams.kafka.producer import Producer
from streams.kafka.record import Record, TopicPartition, cut, dead_letter
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings

log = logging.getLogger("streamward.kafka")


@dataclass(frozen=True, slots=True, eq=False)
class TakenRecord:
    """A record, and the assignment of its partition under which it was read."""

    record: Record
    tracker: OffsetTracker

    @property
    def partition(self) -> TopicPartition:
        """Where it was read."""
        return (self.record.at.topic, self.record.at.partition)


class TrackedConsumer:
    """One stage's reader of one topic. `producer` writes what the stage makes of the records."""

    def __init__(
        self,
        settings: Settings,
        group: str,
        topic: str,
        producer: Producer,
        outage: BrokerOutage,
        *,
        max_open: int,
    ) -> None:
        """Join `group`, named for its stage (`policy` of `policy-default`), to read the topic with label `topic`."""
        self._stage, self._producer, self._max_open = group.partition("-")[0], producer, max_open
        self._trackers: dict[TopicPartition, OffsetTracker] = {}
        self._assigned: set[TopicPartition] = set()  # since `take_assigned`
        self._paused = self._closing = False
        self._consumer = GroupConsumer(
            settings,
            group,
            [topic],
            outage,
            OnAssignment(self._on_assigned, self._on_revoked, self._on_lost),
        )

        self.set_aside = 0
        """Open records that do not count towards `max_open`, as only their coordinates are in memory."""

    @property
    def owned(self) -> set[TopicPartition]:
        """The partitions that this reader owns."""
        return set(self._trackers)

    @property
    def open(self) -> int:
        """Records that were read and are not done."""
        return sum(tracker.left for tracker in list(self._trackers.values()))

    def poll(self, timeout_s: float = POLL_S) -> list[TakenRecord]:
        """Return new records, as soon as there is one; each is open until `done`. Raises as `GroupConsumer.poll`."""
        self._pause_or_resume()
        new_records = []
        for record in self._consumer.poll(timeout_s=timeout_s):
            tracker = self._trackers.get((record.at.topic, record.at.partition))
            if tracker is not None:  # else the partition was lost within this very poll
                tracker.read(record.at.offset)
                new_records.append(TakenRecord(record, tracker))
        for tp, end in self._consumer.take_reached_ends().items():
            if tp in self._trackers:
                self._trackers[tp].reach_end(end)
        return new_records

    def take_assigned(self) -> set[TopicPartition]:
        """Return the partitions assigned since the last call, without those that were lost again."""
        assigned, self._assigned = self._assigned, set()
        return assigned

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's commits, as the broker has them; see `GroupConsumer.committed`."""
        return self._consumer.committed(partitions)

    def next_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the commits of the owned partitions, without asking the broker."""
        return self._consumer.next_offsets(partitions)

    def owns(self, open_record: TakenRecord) -> bool:
        """Whether the partition has been owned ever since this record was read; if not, its next owner handles it."""
        return self._trackers.get(open_record.partition) is open_record.tracker

    def done(self, open_record: TakenRecord) -> None:
        """Mark a record as done: all its results were given to the producer."""
        open_record.tracker.done(open_record.record.at.offset)

    def bury(self, open_record: TakenRecord, reason: str, error: str) -> None:
        """Write a dead letter for a record that cannot be used, and mark it as done."""
        self.dead_letter(open_record.record, reason, error)
        self.done(open_record)

    def skip(self, open_record: TakenRecord, poison: Poison) -> None:
        """Mark a record that cannot be decoded, or is in a wrong partition, as done. The advantages stage writes its
        dead letter, since it reads each record of this topic once; here each policy would write one.
        """
        log.warning("skipped: %s", cut(poison.error), extra=open_record.record.log_extra)
        self.done(open_record)

    def dead_letter(self, record: Record, reason: str, error: str) -> None:
        """Write a dead letter for a record."""
        log.warning("dead letter, %s: %s", reason, cut(error), extra=record.log_extra)
        self._producer.send(dead_letter(record, stage=self._stage, reason=reason, error=error))

    def commit(self) -> None:
        """Commit finished records, once everything given to the producer is acknowledged; see
        `GroupConsumer.commit`."""
        done = {tp: tracker.next_offset for tp, tracker in self._trackers.items() if tracker.next_offset is not None}
        if due := self._consumer.due(done):
            self._producer.flush()
            self._consumer.commit(due)

    def close(self) -> None:
        """Leave the group; records finished since `commit` are done again."""
        self._closing = True
        self._consumer.close()

    def _pause_or_resume(self) -> None:
        working = self.open - self.set_aside
        if working >= self._max_open:
            self._consumer.pause(self._consumer.assignment())  # again each time: what was assigned meanwhile is not
            self._paused = True
        elif self._paused and working <= self._max_open // 2:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False

    def _on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._assigned.update(partitions)
        self._trackers |= {tp: OffsetTracker() for tp in partitions}

    def _on_revoked(self, partitions: list[TopicPartition]) -> None:
        if not self._closing:
            self.commit()
        self._on_lost(partitions)

    def _on_lost(self, partitions: list[TopicPartition]) -> None:
        self._assigned.difference_update(partitions)
        for tp in partitions:
            self._trackers.pop(tp, None)
