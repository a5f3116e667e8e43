"""The tasks of many policies, read once by one member of one group.

    tasks ──► TrackedConsumer, group policy-@FLEET ──► which policy? ──► TaskShare: its RecordSource ──► PolicyRounds
                                                            └── not this fleet's, or of an agent of its own: done

Commits are those of the one consumer: below the first task that is open, of any policy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from schemas.events import Task
from schemas.serde import Poison
from streams.adapters.admission.state import PolicyLog
from streams.kafka import times
from streams.kafka.client import POLL_S
from streams.kafka.producer import Producer
from streams.kafka.record import Record, TopicPartition
from streams.kafka.retry import BrokerOutage
from streams.kafka.tracked import TakenRecord, TrackedConsumer
from streams.settings.model import Settings
from streams.stages.policy.rounds import STAGE

log = logging.getLogger("streamward.policy")


class TaskShare:
    """The tasks of one policy, as a `RecordSource`."""

    def __init__(self, consumer: TrackedConsumer, assigned: Iterable[TopicPartition]) -> None:
        """`assigned`: the partitions that are ours by now."""
        self._consumer = consumer
        self.set_aside = 0
        self.mail: list[TakenRecord] = []
        self.assigned = set(assigned)

    def poll(self, timeout_s: float = POLL_S) -> list[TakenRecord]:
        """Return what came since the last call, without waiting."""
        mail, self.mail = self.mail, []
        return mail

    def take_assigned(self) -> set[TopicPartition]:
        """Return the partitions assigned since the last call."""
        assigned, self.assigned = self.assigned, set()
        return assigned

    def next_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the commits of partitions that are ours."""
        return self._consumer.next_offsets(partitions)

    def owns(self, taken: TakenRecord) -> bool:
        """Whether the partition has been ours ever since this record was read."""
        return self._consumer.owns(taken)

    def done(self, taken: TakenRecord) -> None:
        """Mark a task as done."""
        self._consumer.done(taken)

    def skip(self, taken: TakenRecord, poison: Poison) -> None:
        """Mark a record that cannot be decoded as done."""
        self._consumer.skip(taken, poison)

    def dead_letter(self, record: Record, reason: str, error: str) -> None:
        """Write a dead letter for a record."""
        self._consumer.dead_letter(record, reason, error)


class SharedTasks:
    """Reads tasks, and hands each to its policy."""

    def __init__(
        self,
        settings: Settings,
        producer: Producer,
        outage: BrokerOutage,
        state: PolicyLog,
        serves: Callable[[str], bool],
    ) -> None:
        """Join the fleet's group. `serves` says whether a policy is answered here; of others tasks are done."""
        self._settings, self._log, self._serves = settings, state, serves
        self._partitions: set[TopicPartition] = set()
        """Those that are ours, as far as they were looked up."""
        self._shares: dict[str, TaskShare] = {}
        self._consumer = TrackedConsumer(
            settings,
            f"{STAGE}-@{settings.fleet.name}",
            "tasks",
            producer,
            outage,
            max_open=settings.policy.max_waiting,
        )

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def commit(self) -> None:
        """Commit what is done; see `TrackedConsumer.commit`."""
        self._consumer.commit()

    def share(self, policy: str) -> TaskShare:
        """Return the tasks of a policy."""
        if policy not in self._shares:
            self._shares[policy] = TaskShare(self._consumer, self._partitions)
        return self._shares[policy]

    def poll(self, timeout_s: float) -> set[str]:
        """Take in new tasks, waiting at most `timeout_s` for the first; return the policies that have any.

        Raises as `GroupConsumer.poll`.
        """
        self._consumer.set_aside = sum(share.set_aside for share in self._shares.values())
        taken = self._consumer.poll(timeout_s)
        if assigned := self._consumer.take_assigned():
            self._log.poll()
            self._log.look_up(self._consumer.next_offsets(assigned), times.now_ms())
            self._partitions |= assigned
            for share in self._shares.values():
                share.assigned |= assigned
        owned = self._consumer.owned
        self._partitions &= owned
        for share in self._shares.values():
            share.assigned &= owned
        for one in taken:
            if self._consumer.owns(one):
                self._deliver(one)
        return {policy for policy, share in self._shares.items() if share.mail or share.assigned}

    def _deliver(self, taken: TakenRecord) -> None:
        task = taken.record.decode(Task)
        if isinstance(task, Poison):
            self._consumer.skip(taken, task)
        elif task.agent is None and self._serves(task.policy):
            self.share(task.policy).mail.append(taken)
        else:
            self._consumer.done(taken)
