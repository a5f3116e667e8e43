"""Read tasks as one member of a consumer group, for one policy or for many.

    tasks ──► TrackedConsumer, one group ──► policy ──► PolicyTasks: new tasks of one policy ──► its TaskQueue
                                              └── not served by this group, but by another: done

The one consumer commits below the first open task of any policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from schemas.events import Task
from schemas.serde import Poison
from streams.adapters.admission.policy_log import PolicyLog
from streams.kafka import times
from streams.kafka.group_names import GroupScope
from streams.kafka.producer import Producer
from streams.kafka.record import TopicPartition
from streams.kafka.retry import BrokerOutage
from streams.kafka.tracked import TakenRecord, TrackedConsumer
from streams.settings.model import Settings


@dataclass(slots=True, eq=False)
class PolicyTasks:
    """The tasks of one policy that its queue has not taken yet."""

    consumer: TrackedConsumer
    assigned: set[TopicPartition]
    """Partitions that were assigned since the queue last checked, and are still owned."""
    arrived: list[tuple[TakenRecord, Task]] = field(default_factory=list)
    set_aside: int = 0
    """Open tasks of which the queue holds only the coordinates; see `TrackedConsumer.set_aside`."""

    def take_arrived(self) -> list[tuple[TakenRecord, Task]]:
        """Return the tasks since the last call."""
        arrived, self.arrived = self.arrived, []
        return arrived

    def take_assigned(self) -> set[TopicPartition]:
        """Return the partitions assigned since the last call."""
        assigned, self.assigned = self.assigned, set()
        return assigned


class TaskReader:
    """Reads tasks, and gives each to its policy."""

    def __init__(
        self,
        settings: Settings,
        serving: GroupScope,
        producer: Producer,
        outage: BrokerOutage,
        log: PolicyLog,
        skipped: Callable[[Task], None] = lambda _: None,
    ) -> None:
        """Join the group of `serving`. Tasks that it does not serve belong to another group and are done here.

        `skipped` is called with each of these.
        """
        self._partitions, self._log, self._serving, self._skipped = settings.topics.partitions, log, serving, skipped
        self._looked_up: set[TopicPartition] = set()
        """The owned partitions with known answers."""
        self._tasks: dict[str, PolicyTasks] = {}
        self._consumer = TrackedConsumer(
            settings, serving.group, "tasks", producer, outage, max_open=settings.policy.max_waiting
        )

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def commit(self) -> None:
        """Commit finished tasks; see `TrackedConsumer.commit`."""
        self._consumer.commit()

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's commits, as the broker has them."""
        return self._consumer.committed(partitions)

    def tasks(self, policy: str) -> PolicyTasks:
        """Return the tasks of a policy."""
        if policy not in self._tasks:
            self._tasks[policy] = PolicyTasks(self._consumer, set(self._looked_up))
        return self._tasks[policy]

    def poll(self, timeout_s: float) -> set[str]:
        """Take in new tasks, waiting at most `timeout_s` for the first; return the policies that have any.

        Raises as `GroupConsumer.poll`.
        """
        self._consumer.set_aside = sum(tasks.set_aside for tasks in self._tasks.values())
        records = self._consumer.poll(timeout_s)
        if assigned := self._consumer.take_assigned():
            self._log.follow()
            self._log.look_up(self._consumer.next_offsets(assigned), times.now_ms())
            self._looked_up |= assigned
            for tasks in self._tasks.values():
                tasks.assigned |= assigned
        owned = self._consumer.owned
        self._looked_up &= owned
        for tasks in self._tasks.values():
            tasks.assigned &= owned
        for entry in records:
            if self._consumer.owns(entry):
                self._deliver(entry)
        return {policy for policy, tasks in self._tasks.items() if tasks.arrived or tasks.assigned}

    def _deliver(self, entry: TakenRecord) -> None:
        task = entry.record.decode_placed(Task, self._partitions)
        if isinstance(task, Poison):
            self._consumer.skip(entry, task)
        elif self._is_served(task):
            self.tasks(task.policy).arrived.append((entry, task))
        else:
            self._skipped(task)
            self._consumer.done(entry)

    def _is_served(self, task: Task) -> bool:
        if not self._serving.serves(task.policy, task.agent):
            return False
        base = None if self._serving.base is None else self._log.state(task.policy).router.adapters.newest_base
        return self._serving.serves(task.policy, task.agent, base)
