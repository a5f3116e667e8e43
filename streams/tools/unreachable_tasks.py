"""Check whether waiting train tasks will be reached: is a trainer running, and is it fast enough for their deadlines?

    tasks just submitted, `streamward status` ──► unreached ──► one sentence for each policy that has too many

Waiting tasks are counted by the policy agents' commits, so the number is an upper bound: it includes tasks of other
purposes, and tasks of other policies that are not among the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schemas.events import Task
from streams.adapters.admission.held_back import room
from streams.kafka import times
from streams.settings.model import Settings
from streams.tools.status import LoopStatus, PolicyStatus, look

STEPS = 10
"""Newest versions by which the speed of a trainer is judged."""


def unreached(settings: Settings, tasks: Iterable[Task]) -> list[str]:
    """Return a warning for each policy that has more tasks waiting than will be answered.

    Raises NotFoundError if a topic does not exist, LogError if the broker does not answer.
    """
    deadlines: dict[str, list[int]] = {}
    for task in tasks:
        if task.purpose == "train":
            deadlines.setdefault(task.policy, []).extend(() if task.deadline_at is None else [task.deadline_at])
    if not deadlines:
        return []
    status, now_ms = look(settings), times.now_ms()
    return [
        what
        for policy, of_policy in deadlines.items()
        if policy in status.policies
        for what in _judge(settings, status, policy, max(of_policy, default=None), now_ms)
    ]


def _judge(settings: Settings, status: LoopStatus, policy: str, deadline_ms: int | None, now_ms: int) -> Iterator[str]:
    found = status.policies[policy]
    processes = {one.process: one for one in status.processes if one.policy == policy}
    waiting, trainer = processes["policy"].lag, processes["trainer"]
    at_once = max(0, room(found.router, found.admission, found.router.primary))
    if not trainer.alive:
        if waiting > at_once:
            yield (
                f"Up to {waiting} tasks of policy {policy} wait, and no trainer lives: {at_once} train tasks are "
                f"answered, the others wait for it. Next: {trainer.waits_for.removeprefix('nobody: ')}"
            )
        return
    step_s = _step_s(found)
    if deadline_ms is None or step_s is None:
        return
    reached = at_once + int(max(0, deadline_ms - now_ms) / 1000 / step_s * settings.batches.groups)
    if waiting > reached:
        yield (
            f"Up to {waiting} tasks of policy {policy} wait, and about {reached} train tasks will be answered before "
            f"the last deadline: a step takes {step_s:.0f} s and {settings.batches.groups} groups. Set a later "
            "deadline_at, or none: such tasks wait as long as they must"
        )


def _step_s(policy: PolicyStatus) -> float | None:
    """Return the seconds from version to version of late; None if too few were trained."""
    trained = [version.created_at for _, version in sorted(policy.state.versions.items()) if version.created_at]
    newest = trained[-STEPS:]
    return (newest[-1] - newest[0]) / 1000 / (len(newest) - 1) if len(newest) > 1 and newest[-1] > newest[0] else None
