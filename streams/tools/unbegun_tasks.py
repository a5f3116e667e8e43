"""Find tasks that no process has begun: the log has no other record of them.

    newest tasks ──┐
    responses, trajectories, group-control since the oldest of them: their keys ──┴──► the tasks that none has

Not covered: tasks before the newest TASKS_READ of each partition.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas.conventions import deadline_ms
from schemas.events import Coordinates, Task
from streams.kafka import admin
from streams.kafka.reader import read
from streams.settings.model import Settings
from streams.tools.status import TASKS_READ

CLOCK_SKEW_MS = 60_000
"""How far the clocks of the writers of tasks and of what follows from them may differ."""
_FOLLOWS = ("responses", "trajectories", "group-control")
"""Topics keyed by the task, which have a record of each task that was begun or closed."""


class UnbegunTask(NamedTuple):
    """A task that no process has begun."""

    task_id: str
    policy: str
    agent: str | None
    at: Coordinates
    environment: str | None
    """The one in which it takes place, by name."""
    closes_ms: int | None
    """When the join closes it (ms since the epoch): its deadline and advantages.grace_s; None: never."""


def unbegun_tasks(settings: Settings) -> list[UnbegunTask]:
    """Return the newest tasks that no process has begun, in order. Raises NotFoundError without topics, LogError."""
    bounds, rule = admin.offsets(settings, ["tasks"]), settings.advantages
    starts = {tp: max(first, end - TASKS_READ) for tp, (first, end) in bounds.items()}
    unbegun: dict[bytes, UnbegunTask] = {}
    since_ms: int | None = None
    for record in read(settings, starts, {tp: end for tp, (_, end) in bounds.items()}):
        task = record.decode_placed(Task, settings.topics.partitions)
        if isinstance(task, Task) and record.key is not None:
            since_ms = record.timestamp_ms if since_ms is None else min(since_ms, record.timestamp_ms)
            until_ms = deadline_ms(task, record.timestamp_ms, rule.deadline_s)
            closes_ms = None if until_ms is None else until_ms + int(rule.grace_s * 1000)
            environment = None if task.environment is None else task.environment.name
            entry = UnbegunTask(task.task_id, task.policy, task.agent, record.at, environment, closes_ms)
            unbegun.setdefault(record.key, entry)
    if since_ms is None:
        return []
    ends = {tp: end for tp, (_, end) in admin.offsets(settings, _FOLLOWS).items()}
    begins = admin.offsets_at(settings, _FOLLOWS, max(0, since_ms - CLOCK_SKEW_MS))
    for record in read(settings, {tp: begins[tp] if begins[tp] >= 0 else end for tp, end in ends.items()}, ends):
        unbegun.pop(record.key or b"", None)
    return sorted(unbegun.values(), key=lambda task: task.at)
