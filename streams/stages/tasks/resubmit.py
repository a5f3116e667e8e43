"""Resend train tasks that were lost for lack of a score or an answer.

    groups ──► dropped: unscored | unanswered ──► their tasks ──► new tasks, with their origin in metadata ──► tasks

A new task's id follows from the lost one's, so repeating the command adds nothing. A task that is lost again can be
sent again; its id follows from that of its predecessor.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import Literal, NamedTuple

from schemas.conventions import task_time_ms
from schemas.events import AdvantagedGroup, Task, derive_id
from streams.kafka import times
from streams.kafka.topics import topics
from streams.observability.trace_context import Context
from streams.settings.model import Settings
from streams.stages.tasks.submit import Submitted, records_of, submit

Loss = Literal["unscored", "unanswered"]
LEFT_OUT: dict[str, Loss] = {
    "unscored": "unscored",
    "score_failed": "unscored",
    "unanswered": "unanswered",
    "response_failed": "unanswered",
}
"""Why a slot was left out of its group, and what was missing."""
ORIGIN = "resubmitted_from"
"""Metadata key of a resent task: the id of the lost one."""


class Wanted(NamedTuple):
    """Selects the lost tasks to send again."""

    policy: str
    losses: Set[Loss]
    since_ms: int | None = None
    """Only tasks with groups recorded at this time or later."""


def resubmit(settings: Settings, wanted: Wanted, *, now_ms: int, under: Context | None = None) -> Submitted:
    """Send the lost tasks again, and return once they are acknowledged. Raises as `submit`."""
    lost = {group.task_id for group in _groups(settings, wanted) if losses(group) & wanted.losses}
    again: dict[str, Task] = {}
    for record in records_of(settings, lost):
        task = record.decode(Task)
        if isinstance(task, Task) and task.task_id not in again:  # of one id with two contents the first wins
            again[task.task_id] = sent_again(task, task_time_ms(task, record.timestamp_ms), now_ms)
    return submit(settings, again.values(), under=under)


def losses(group: AdvantagedGroup) -> set[Loss]:
    """Return what a dropped group lacked; nothing for a group that was used, or dropped for another reason."""
    if group.dropped_reason is None:
        return set()
    return {LEFT_OUT[left.reason] for left in group.left_out if left.reason in LEFT_OUT}


def sent_again(task: Task, recorded_ms: int, now_ms: int) -> Task:
    """Return the task that replaces a lost one, with the same time limit."""
    left_ms = 0 if task.deadline_at is None else task.deadline_at - recorded_ms
    return replace(
        task,
        task_id=derive_id("resubmitted", task.task_id),
        created_at=now_ms,
        traceparent=None,
        metadata={**task.metadata, ORIGIN: task.task_id},
        deadline_at=now_ms + left_ms if left_ms > 0 else None,
    )


def _groups(settings: Settings, wanted: Wanted) -> Iterator[AdvantagedGroup]:
    begin = times.Begin("start") if wanted.since_ms is None else times.Begin("time", wanted.since_ms)
    for found in times.tail(settings, [topics(settings.topics)["groups"]], begin, until_end=True):
        group = found.event
        if isinstance(group, AdvantagedGroup) and group.purpose == "train" and group.policy == wanted.policy:
            yield group
