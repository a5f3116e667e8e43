"""Recount one job: whether its events follow from each other, and the versions they name are there.

    created, started, iteration, … of one job ──► each names how many took effect before it ──► findings, open
    adapters of its policy ─────────────────────► each version that an iteration or evaluation names

An event that was decided when fewer had taken effect lost to another, which is no mistake of the log. One that was
decided when more had is about an event that is missing.

Not covered: whether a controller asked for the tasks that the job's events say; tasks are recounted like any others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from streams.tools.audit.facts import AuditFinding, JobFact
from streams.tools.audit.story import TaskOutcome

_NEXT = {
    None: {"created": "waits"},
    "waits": {"started": "works", "paused": "rests", "failed": "over", "cancelled": "over"},
    "works": {
        "iteration": "works",
        "evaluated": "works",
        "budget_warned": "works",
        "paused": "rests",
        "budget_exceeded": "over",
        "completed": "over",
        "failed": "over",
        "cancelled": "over",
    },
    "rests": {"resumed": "waits", "cancelled": "over"},
    "over": {},
}
"""By state: what each kind of event that may come makes of it."""


@dataclass(slots=True)
class JobStory:
    """What the log says about one job, in the order of its partition."""

    policy: str
    events: list[JobFact] = field(default_factory=list)


def recount_job(story: JobStory, versions: Collection[int]) -> TaskOutcome:
    """Return what is wrong with one job, and whether it is still open; `versions`: those of its policy in the log."""
    outcome = TaskOutcome()
    outcome.counts["jobs"] += 1
    first: dict[str, JobFact] = {}
    state: str | None = None
    count = iterations = 0

    def found(event: JobFact, what: str) -> None:
        outcome.findings.append(AuditFinding("lost", event.at, what))

    for event in story.events:
        known = first.setdefault(event.event_id, event)
        if known is not event:
            same = known.content == event.content
            what = f"it repeats {known.at}" if same else f"it has the id of {known.at}, and is another"
            outcome.findings.append(AuditFinding("repeated" if same else "contradictory", event.at, what, same))
            continue
        if event.sequence > count:
            found(event, f"it follows event {event.sequence - 1} of its job, which is not before it")
            count, state = event.sequence, _before(event.kind, state)
        if event.sequence < count or event.kind not in _NEXT[state]:
            outcome.counts["job events refused"] += 1
            continue
        state, count = _NEXT[state][event.kind], count + 1
        if event.kind in ("iteration", "evaluated") and event.version not in {0, *versions}:
            found(event, f"it names version {event.version} of {story.policy}, which is not in adapters")
        if event.kind == "iteration":
            if (event.iteration or 0) > iterations + 1:
                found(event, f"it ends iteration {event.iteration}, and iteration {iterations + 1} did not end before")
            iterations = event.iteration or 0
    outcome.counts["jobs ended" if state == "over" else "jobs open"] += 1
    return outcome


def _before(kind: str, state: str | None) -> str | None:
    """Return a state in which an event of this kind may come: `state`, if it is one."""
    return state if kind in _NEXT[state] else next((one for one, may in _NEXT.items() if kind in may), state)
