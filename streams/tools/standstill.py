"""Whether a policy moves or is stuck: since when, what it waits for, until when, and what to do; for all who look.

    LoopStatus ──► what waits for what ──► moves · idle · stuck ──► a sentence for `status`, the page and GET /status

A policy moves if one of its records was written in the last MOVES_S, and is idle if nothing waits.

Not covered: a step of the trainer or an answer that takes longer than MOVES_S is a standstill, too, since the log does
not tell it from one that never ends. The sentence says which process works on what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from streams.adapters.admission.held_back import waits_for
from streams.settings.model import Settings
from streams.tools.status import LoopStatus, PolicyStatus, ProcessStatus, duration, start_command
from streams.tools.waiting import MOST_ERROR, WAY_OUT, StalledGroup, clock

MOVES_S = 30.0
"""How long ago the newest record of a policy may be until it stands still."""
Motion = Literal["moves", "idle", "stuck"]


class Cause(NamedTuple):
    """What a policy waits for, and what to do about it."""

    waits_for: str
    way_out: str
    until_ms: int | None = None
    """When it is given up; None: never."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """Whether one policy moves, and what it waits for if not."""

    policy: str
    motion: Motion
    since_ms: int | None
    """Time of its newest record; None without one."""
    now_ms: int
    cause: Cause

    def __str__(self) -> str:
        since = "nothing was written yet" if self.since_ms is None else f"newest record {self.age} ago"
        if self.motion == "moves":
            return f"{self.policy} moves: {since}"
        if self.motion == "idle":
            return f"{self.policy} is idle: {self.cause.waits_for}; {since}"
        until = "" if self.cause.until_ms is None else f"; it is given up at {clock(self.cause.until_ms)}"
        since = "" if self.since_ms is None else f" since {clock(self.since_ms)} ({self.age})"
        return f"{self.policy} is stuck{since}: {self.cause.waits_for}{until}. What to do: {self.cause.way_out}"

    @property
    def age(self) -> str:
        """Time since its newest record, in words."""
        return duration(max(0, self.now_ms - (self.since_ms or 0)) / 1000)


def standstills(settings: Settings, status: LoopStatus, now_ms: int) -> list[Standstill]:
    """Return whether each policy moves, the stuck ones first."""
    rows = [_standstill(settings, status, name, now_ms) for name in status.policies]
    return sorted(rows, key=lambda row: ("stuck", "idle", "moves").index(row.motion))


def _standstill(settings: Settings, status: LoopStatus, name: str, now_ms: int) -> Standstill:
    policy = status.policies[name]
    processes = {row.process: row for row in status.processes if row.policy in (None, name) and row.agent is None}
    moved = [policy.moved_ms, status.scored_ms if processes["scoring"].lag else None]
    since_ms = max((moment for moment in moved if moment is not None), default=None)
    cause = next(_causes(settings, status, policy, processes), None)
    if cause is None:
        groups = settings.batches.groups
        pending = f"; {policy.admission.pending} of {groups} groups are there" if policy.admission.pending else ""
        return Standstill(name, "idle", since_ms, now_ms, Cause(f"no task waits{pending}", "submit tasks"))
    moves = since_ms is not None and now_ms - since_ms < MOVES_S * 1000
    return Standstill(name, "moves" if moves else "stuck", since_ms, now_ms, cause)


def _causes(
    settings: Settings, status: LoopStatus, policy: PolicyStatus, processes: Mapping[str, ProcessStatus]
) -> Iterator[Cause]:
    """Yield what a policy waits for, that first without which the others cannot end."""
    name, admission = policy.state.policy, policy.admission
    agents = [row for row in status.processes if row.agent is not None and row.policy == name and row.lag]
    streams = replace(processes["streams"], lag=status.unread_answers)
    for row in (processes["trainer"], processes["scoring"], streams, processes["policy"], *agents):
        if row.lag and not row.alive:
            command = start_command(row.process, row.policy, row.agent)
            yield Cause(f"{_work(row)}, and no process does it", f"start {command}")
    if status.paused and processes["scoring"].lag:
        yield Cause(f"scoring is paused: {status.paused[0]}", "repair the scorer; scoring continues by itself")
    lag = processes["policy"].lag
    held = waits_for(policy.router, admission, policy.state.primary) if lag else None
    if policy.stalled and not policy.waiting_batches and (not lag or held is not None):
        yield _lacks_score(policy.stalled)
    if policy.waiting_batches:
        yield Cause(f"{_work(processes['trainer'])}, and its step has not ended", "look at the output of the trainer")
    if held is not None:
        yield Cause(f"{lag} tasks are held back for {held}", "see which process that is below, and look at its output")
    for row in (processes["scoring"], processes["policy"], *agents):
        if row.lag:
            yield Cause(f"{_work(row)}, and nothing came of it yet", f"look at the output of {row.process}")


def _work(row: ProcessStatus) -> str:
    """Return what waits for a process."""
    kinds = {"trainer": "batch", "scoring": "answer", "streams": "record"}
    noun, end = kinds.get(row.process, "task"), "es" if row.process == "trainer" else "s"
    waits = f"1 {noun} waits" if row.lag == 1 else f"{row.lag} {noun}{end} wait"
    return f"{waits} for {'agent ' + row.agent if row.agent is not None else row.process}"


def _lacks_score(stalled: list[StalledGroup]) -> Cause:
    """Return which groups lack a score, and until when that still counts."""
    first = min(stalled, key=lambda group: group.until_ms or group.since_ms)
    groups = f"the group of task {first.task_id} lacks" if len(stalled) == 1 else f"{len(stalled)} groups lack"
    return Cause(f"{groups} a score ({first.error[:MOST_ERROR]})", WAY_OUT, first.until_ms)
