"""Recount the events of one rule: whether they follow from each other, and each crossing has its one job.

    ticked, crossed, … of one rule ──► each names how many took effect before it, and a time that is over ──► findings
    created of jobs that name a crossing ──► the crossing is there, and has this job and no other

An event that was decided when fewer had taken effect lost to another process's, which is no mistake of the log, though
both have one id. One that was decided when more had is about an event that is missing.

    a run of self-play says how many tasks it asks ──► so many name it

Not covered: whether the evidence of a crossing is what the ranges that it names hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.conventions import SELFPLAY_RUN, SELFPLAY_TASKS
from schemas.events import Coordinates, JobEvent, Task, TriggerEvent, derive_id
from streams.kafka.record import Record
from streams.tools.audit.facts import Category, RecountOutcome
from streams.tools.audit.subject import RecountSum, SubjectRecount
from streams.tools.audit.view import AuditView

RESUBMITTED = "resubmitted_from"
"""Metadata of a task that was sent again: it has those of the first one, too."""


class TriggerFact(NamedTuple):
    """That a rule's time had come, or that it had a reason."""

    at: Coordinates
    event_id: str
    kind: str
    sequence: int
    created_at: int
    due_at: int
    """-1: it is of no time."""
    job_id: str | None
    has_own_id: bool
    tasks: int | None = None
    """How many tasks a run of self-play asks; None: it is another event, or does not say."""


class OrderedJob(NamedTuple):
    """A job that names a crossing, where its first record is."""

    at: Coordinates
    job_id: str
    crossing: str


@dataclass(slots=True)
class RuleStory:
    """What the log says about one rule, in the order of its partition."""

    rule: str
    policy: str
    events: list[TriggerFact] = field(default_factory=list)


def recount_rule(
    story: RuleStory, ordered: Mapping[str, list[OrderedJob]], asked: Mapping[str, int] | None, *, settled: bool
) -> RecountOutcome:
    """Return what is wrong with one rule.

    By event_id of a crossing: `ordered` are the jobs that name it, `asked` how many tasks do; None: not all were read.
    """
    outcome = RecountOutcome()
    count, ticked_at = 0, -1
    crossings: list[TriggerFact] = []

    for event in story.events:
        if not event.has_own_id:
            outcome.find("contradictory", event.at, "its id is not that of its rule, kind and sequence")
            continue
        if event.sequence > count:
            problem = f"it follows event {event.sequence - 1} of its rule, which is not before it"
            outcome.find("lost", event.at, problem)
            count = event.sequence
        is_late = event.kind == "ticked" and event.due_at <= ticked_at
        if event.sequence < count or is_late:
            outcome.counts["trigger events superseded"] += 1
            continue
        count += 1
        if event.due_at > event.created_at:
            outcome.find(
                "contradictory",
                event.at,
                f"it is of {event.due_at}, and was written before that, at {event.created_at}",
            )
        if event.kind == "ticked":
            ticked_at = event.due_at
        else:
            crossings.append(event)
    outcome.counts["trigger events"] += count
    for crossing in crossings:
        is_open = crossing is crossings[-1] and not settled
        _recount_crossing(crossing, ordered.get(crossing.event_id, []), outcome, is_open=is_open)
        if asked is not None and crossing.tasks is not None:
            _recount_tasks(crossing, crossing.tasks, asked.get(crossing.event_id, 0), outcome, is_open=is_open)
    return outcome


def _recount_tasks(crossing: TriggerFact, expected: int, asked: int, outcome: RecountOutcome, *, is_open: bool) -> None:
    """Count the tasks of a run of self-play; those of the newest may not be written yet."""
    outcome.counts["self-play tasks"] += min(asked, expected)
    if asked < expected and is_open:
        outcome.in_flight["self-play tasks"] += expected - asked
    elif asked != expected:
        category: Category = "lost" if asked < expected else "phantom"
        problem = f"its run asks {expected} tasks, and {asked} in the log name it"
        outcome.find(category, crossing.at, problem)


def _recount_crossing(crossing: TriggerFact, jobs: list[OrderedJob], outcome: RecountOutcome, *, is_open: bool) -> None:
    """Count a crossing with its jobs; that of the newest may not be ordered yet."""
    outcome.counts["crossings"] += 1
    for job in jobs:
        if job.job_id != crossing.job_id:
            problem = f"it names the crossing at {crossing.at}, which starts job {crossing.job_id} and not this one"
            outcome.find("phantom", job.at, problem)
    if crossing.job_id is None:
        outcome.counts["crossings without a job"] += 1
    elif any(job.job_id == crossing.job_id for job in jobs):
        outcome.counts["crossings with a job"] += 1
    elif is_open:
        outcome.in_flight["crossings"] += 1
        outcome.counts["crossings open"] += 1
    else:
        outcome.find("lost", crossing.at, f"its job {crossing.job_id} was never created")


class TriggerRecount(SubjectRecount):
    """The recount of rules, with the jobs and the tasks that name their crossings."""

    labels = ("triggers", "jobs", "tasks")
    sums = (
        RecountSum(
            "crossings of rules",
            ("crossings",),
            {"with a job": "crossings with a job", "with tasks": "crossings without a job", "open": "crossings open"},
            shown_with="crossings",
        ),
    )

    def __init__(self) -> None:
        self._rules: dict[str, RuleStory] = {}
        self._jobs: dict[str, OrderedJob] = {}
        self._asked: dict[str, set[str]] = {}
        """By crossing: the tasks that name it as their run of self-play."""

    def take(self, record: Record, event: TriggerEvent | JobEvent | Task) -> None:
        """Take in an event of a rule, or what names a crossing."""
        if isinstance(event, TriggerEvent):
            self._rules.setdefault(event.rule, RuleStory(event.rule, event.policy)).events.append(_fact(record, event))
        elif isinstance(event, JobEvent):
            if event.kind == "created" and (crossing := event.metadata.get("trigger")) is not None:
                self._jobs.setdefault(event.job_id, OrderedJob(record.at, event.job_id, crossing))
        elif SELFPLAY_RUN in event.metadata and RESUBMITTED not in event.metadata:
            self._asked.setdefault(event.metadata[SELFPLAY_RUN], set()).add(event.task_id)

    def policies(self) -> set[str]:
        """Return the policies of the rules."""
        return {rule.policy for rule in self._rules.values()}

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with the rules, and with jobs that name a crossing which is not in the log."""
        outcome, ordered = RecountOutcome(), dict[str, list[OrderedJob]]()
        for job in self._jobs.values():
            ordered.setdefault(job.crossing, []).append(job)
        asked = None if view.is_cut("tasks") else {crossing: len(tasks) for crossing, tasks in self._asked.items()}
        for rule in self._rules.values():
            if policy in (None, rule.policy):
                outcome.add(recount_rule(rule, ordered, asked, settled=view.reach.settled))
        events = (event for rule in self._rules.values() for event in rule.events)
        crossings = {event.event_id for event in events if event.kind == "crossed"}
        for crossing in ordered.keys() - crossings if policy is None else ():
            for job in ordered[crossing]:
                outcome.find("phantom", job.at, f"it names crossing {crossing}, which is not in the log")
        return outcome


def _fact(record: Record, event: TriggerEvent) -> TriggerFact:
    return TriggerFact(
        at=record.at,
        event_id=event.event_id,
        kind=event.kind,
        sequence=event.sequence,
        created_at=event.created_at,
        due_at=-1 if event.due_at is None else event.due_at,
        job_id=event.job_id,
        has_own_id=event.event_id == derive_id(event.rule, event.kind, event.sequence),
        tasks=int(event.evidence[SELFPLAY_TASKS]) if SELFPLAY_TASKS in event.evidence else None,
    )
