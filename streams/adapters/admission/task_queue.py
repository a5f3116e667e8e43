"""The tasks that wait for an answer.

    TaskReader ──► PolicyTasks ──► answered already? ──► waiting ──► answered
                                       │                    └──► dropped: its deadline has passed, or its group is out
                                       └──► set aside: a train task, if many wait; read again when it has room

A task that is delivered again while it waits, or after it was answered, is skipped: by this agent, or by one before it
(its answers are in the log then). So are tasks with answers that would be of no use. A `serve` task is never dropped: a
user may still read the answer.

Train tasks may be held back for days, so only half of `policy.max_waiting` are held in memory; of the others only the
coordinates, so that later tasks are read and answered. While `policy.max_waiting` wait nothing is read.

An agent with long runs marks a task that it begins (`begin`): that one is not dropped any more.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Literal

from schemas import serde
from schemas.conventions import deadline_ms
from schemas.events import Coordinates, Task
from streams.adapters.admission.admission import RecentTasks
from streams.adapters.admission.policy_log import PolicyLog
from streams.adapters.admission.sampling_batch import WaitingTask
from streams.adapters.admission.task_reader import PolicyTasks
from streams.kafka import times
from streams.kafka.reader import fetch
from streams.kafka.tracked import TakenRecord
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings

FLEET_SHARE = 100
"""Maximum tasks of one policy of a fleet in memory: policy.max_waiting / this, or two rounds if that is more."""
SWEEP_S = 1.0
"""How often all waiting tasks are checked for a passed deadline."""

log = logging.getLogger("streamward.policy")


def settings_of(settings: Settings, policy: str) -> Settings:
    """Return the settings of one policy of a fleet, with its share of the tasks in memory."""
    rule = settings.policy
    limit = max(2 * rule.round_tasks, rule.max_waiting // FLEET_SHARE)
    return settings.model_copy(update={"policy": rule.model_copy(update={"name": policy, "max_waiting": limit})})


class TaskQueue:
    """Tasks of one policy that were read but are not answered."""

    def __init__(
        self,
        settings: Settings,
        tasks: PolicyTasks,
        log: PolicyLog,
        meter: Meter,
        tracer: Tracer = NO_TRACER,
        *,
        stage: Literal["policy", "agents"] = "policy",
    ) -> None:
        """Take `tasks` of the policy in the settings, of which `log` knows the state; `stage` answers them."""
        self._settings, self._tasks, self._consumer, self._log = settings, tasks, tasks.consumer, log
        self._state = log.state(settings.policy.name)
        self._meter, self._tracer, self._stage = meter, tracer, stage
        self._arrivals = count()
        self._waiting: dict[Coordinates, WaitingTask] = {}
        self._entries: dict[Coordinates, TakenRecord] = {}
        self._begun: set[Coordinates] = set()
        self._ids: set[str] = set()  # of those that wait
        self._answered: dict[int, RecentTasks] = {}  # by partition
        self._aside: deque[TakenRecord] = deque()  # train tasks, without their payload
        self._most_train, self._train = max(1, settings.policy.max_waiting // 2), 0  # how many are in memory
        self._next_sweep = 0.0

    def __len__(self) -> int:
        return len(self._waiting) + self.set_aside

    @property
    def waiting(self) -> list[WaitingTask]:
        """The tasks that may be answered now, in no order."""
        return [waiting for waiting in self._waiting.values() if waiting.at not in self._begun]

    @property
    def set_aside(self) -> int:
        """Number of further waiting train tasks, of which only the coordinates are in memory."""
        return len(self._aside)

    def oldest_ms(self) -> int | None:
        """Return the timestamp of the oldest waiting task that was not begun, or None."""
        entries = (*(self._entries[waiting.at] for waiting in self.waiting), *self._aside)
        return min((entry.record.timestamp_ms for entry in entries), default=None)

    def __contains__(self, waiting: WaitingTask) -> bool:
        """Whether a task has no answer yet and its partition is still owned."""
        return self._waiting.get(waiting.at) is waiting

    def begin(self, waiting: WaitingTask) -> None:
        """Mark a task as begun."""
        self._begun.add(waiting.at)

    def read(self) -> None:
        """Take in new tasks; forget lost partitions."""
        for entry in [entry for entry in self._entries.values() if not self._consumer.owns(entry)]:
            self._forget(entry.record.at)
        self._look_up_answered()
        self._take_set_aside()
        for entry, task in self._tasks.take_arrived():
            if self._consumer.owns(entry):
                self._take(entry, task)
        self._tasks.set_aside = self.set_aside

    def sweep(self) -> None:
        """Drop overdue tasks, once every SWEEP_S."""
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            for task_id in self._state.admission.expire(times.now_ms()):
                log.warning("task %s: its group did not come; it no longer counts as in flight", task_id)
            self.drop_overtaken(self.waiting)

    def drop_overtaken(self, candidates: Iterable[WaitingTask]) -> bool:
        """Drop tasks with answers that could not count any more; their groups say why. Return whether any were
        dropped."""
        before = len(self)
        for waiting in candidates:
            if (reason := self.why_overtaken(waiting)) is not None:
                sentence = "its deadline has passed" if reason == "too_late" else "its group is out already"
                log.info("%s: task %s is not sampled: %s", waiting.at, waiting.task.task_id, sentence)
                self._meter.add(catalog.DROPS, self._stage, reason)
                self._finish(waiting)
        return len(self) < before

    def why_overtaken(self, waiting: WaitingTask) -> Literal["too_late", "group_is_out"] | None:
        """Return why answers to a task could not count any more, or None if they could."""
        if waiting.task.purpose == "serve":
            return None
        if waiting.deadline_ms is not None and waiting.deadline_ms < times.now_ms():
            return "too_late"
        return "group_is_out" if self._state.admission.is_out(waiting.task.task_id) else None

    def finish_answered(self, waiting: WaitingTask) -> None:
        """Mark a task as answered: its responses were given to the producer."""
        self._answered[waiting.at.partition].add(waiting.task.task_id)
        self._finish(waiting)

    def _look_up_answered(self) -> None:
        """Find the tasks of newly assigned partitions that are already answered."""
        partitions = [partition for _, partition in self._tasks.take_assigned()]
        if not partitions:
            return
        answered = self._log.answered_tasks(self._settings.policy.name, partitions)
        self._answered |= {partition: RecentTasks(task_ids) for partition, task_ids in answered.items()}
        self._aside = deque(entry for entry in self._aside if self._consumer.owns(entry))

    def _take_set_aside(self) -> None:
        """Take in the oldest tasks that were set aside, once half of their room is free."""
        if not self._aside or self._train > self._most_train // 2:
            return
        oldest = [self._aside.popleft() for _ in range(min(len(self._aside), self._most_train - self._train))]
        oldest = [entry for entry in oldest if self._consumer.owns(entry)]
        records = fetch(self._settings, [entry.record.at for entry in oldest], outage=self._log.outage)
        for entry in oldest:
            record = records[entry.record.at]
            task = record.decode_placed(Task, self._settings.topics.partitions)
            if isinstance(task, serde.Poison):
                self._consumer.skip(entry, task)
            else:
                self._take(replace(entry, record=record), task, again=True)

    def _take(self, entry: TakenRecord, task: Task, *, again: bool = False) -> None:
        record = entry.record
        if task.task_id in self._ids or task.task_id in self._answered[record.at.partition]:
            self._consumer.done(entry)  # one id is one task, in one partition
        elif task.purpose == "train" and not again and (self._aside or self._train >= self._most_train):
            self._aside.append(replace(entry, record=record._replace(payload=None, headers=())))
        else:
            self._train += task.purpose == "train"
            until_ms = deadline_ms(task, record.timestamp_ms, self._settings.advantages.deadline_s)
            trace = self._tracer.trace_of(task, record)
            self._entries[record.at] = entry
            self._ids.add(task.task_id)
            self._waiting[record.at] = WaitingTask(task, record.at, until_ms, next(self._arrivals), trace)

    def _finish(self, waiting: WaitingTask) -> None:
        self._consumer.done(self._entries[waiting.at])
        self._forget(waiting.at)

    def _forget(self, place: Coordinates) -> None:
        waiting = self._waiting.pop(place)
        self._begun.discard(place)
        self._train -= not waiting.urgent
        self._ids.discard(waiting.task.task_id)
        del self._entries[place]
