"""Recount the events of one rule: they follow from each other, and each crossing has exactly one job.

    ticked, crossed, … of one rule ──► each names how many took effect before it, and a time that is over ──► findings
    created of jobs that name a crossing ──► the crossing is there, and has this job and no other

An event based on an outdated sequence lost a race; that is not a finding, even if both have the same id. One based on a
later sequence follows a missing event.

    a run of self-play says how many tasks it asks ──► so many name it

Not covered: whether the evidence of a crossing agrees with the ranges that it names.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas.conventions import SELFPLAY_RUN, SELFPLAY_TASKS
from schemas.events import Coordinates, JobEvent, Task, TriggerEvent, derive_id
from streams.kafka.record import Record
from streams.tools.audit.facts import Category, RecountOutcome
from streams.tools.audit.subject import KeyedRecount, KeyFacts, RecountSum
from streams.tools.audit.view import AuditView

RESUBMITTED = "resubmitted_from"
"""Metadata of a task that was sent again, in addition to those of the first one."""


class PlacedTrigger(NamedTuple):
    """An event of a rule, and where it is."""

    at: Coordinates
    event: TriggerEvent

    @property
    def tasks(self) -> int | None:
        """The number of tasks of a self-play run; None: another kind of event, or not recorded."""
        said = self.event.evidence.get(SELFPLAY_TASKS)
        return None if said is None else int(said)


class OrderedJob(NamedTuple):
    """A job that names a crossing, where its first record is."""

    at: Coordinates
    job_id: str


class TriggerRecount(KeyedRecount[PlacedTrigger]):
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
        super().__init__()
        self._jobs: set[str] = set()
        """Those that name a crossing."""
        self._ordered: dict[str, list[OrderedJob]] = {}
        """By crossing: the jobs that name it."""
        self._asked: dict[str, set[str]] = {}
        """By crossing: the tasks that name it as their run of self-play."""

    def take(self, record: Record, event: TriggerEvent | JobEvent | Task) -> None:
        """Take in an event of a rule, or what names a crossing."""
        if isinstance(event, TriggerEvent):
            self.keep(event.rule, PlacedTrigger(record.at, event), event.policy)
        elif isinstance(event, JobEvent):
            crossing = event.metadata.get("trigger") if event.kind == "created" else None
            if crossing is not None and event.job_id not in self._jobs:
                self._jobs.add(event.job_id)
                self._ordered.setdefault(crossing, []).append(OrderedJob(record.at, event.job_id))
        elif SELFPLAY_RUN in event.metadata and RESUBMITTED not in event.metadata:
            self._asked.setdefault(event.metadata[SELFPLAY_RUN], set()).add(event.task_id)

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with the rules, and with jobs that name a crossing which is not in the log."""
        outcome = super().report(view, policy)
        events = (event for rule in self.keys.values() for _, event in rule.events)
        crossings = {event.event_id for event in events if event.kind == "crossed"}
        for crossing in self._ordered.keys() - crossings if policy is None else ():
            for job in self._ordered[crossing]:
                outcome.find("phantom", job.at, f"it names crossing {crossing}, which is not in the log")
        return outcome

    def recount(self, facts: KeyFacts[PlacedTrigger], view: AuditView) -> RecountOutcome:
        """Return what is wrong with one rule."""
        outcome = RecountOutcome()
        count, ticked_at = 0, -1
        crossings: list[PlacedTrigger] = []
        for placed in facts.events:
            at, event = placed
            if event.event_id != derive_id(event.rule, event.kind, event.sequence):
                outcome.find("contradictory", at, "its id is not that of its rule, kind and sequence")
                continue
            if event.sequence > count:
                problem = f"it follows event {event.sequence - 1} of its rule, which is not before it"
                outcome.find("lost", at, problem)
                count = event.sequence
            due_at = -1 if event.due_at is None else event.due_at
            if event.sequence < count or (event.kind == "ticked" and due_at <= ticked_at):
                outcome.counts["trigger events superseded"] += 1
                continue
            count += 1
            if due_at > event.created_at:
                problem = f"it is of {due_at}, and was written before that, at {event.created_at}"
                outcome.find("contradictory", at, problem)
            if event.kind == "ticked":
                ticked_at = due_at
            else:
                crossings.append(placed)
        outcome.counts["trigger events"] += count
        all_tasks_read = not view.is_cut("tasks")
        for crossing in crossings:
            is_open = crossing is crossings[-1] and not view.reach.settled
            self._recount_crossing(crossing, outcome, is_open=is_open)
            if all_tasks_read and crossing.tasks is not None:
                self._recount_tasks(crossing, crossing.tasks, outcome, is_open=is_open)
        return outcome

    def _recount_tasks(self, crossing: PlacedTrigger, expected: int, outcome: RecountOutcome, *, is_open: bool) -> None:
        """Count the tasks of a run of self-play; those of the newest may not be written yet."""
        asked = len(self._asked.get(crossing.event.event_id, ()))
        outcome.counts["self-play tasks"] += min(asked, expected)
        if asked < expected and is_open:
            outcome.in_flight["self-play tasks"] += expected - asked
        elif asked != expected:
            category: Category = "lost" if asked < expected else "phantom"
            outcome.find(category, crossing.at, f"its run asks {expected} tasks, and {asked} in the log name it")

    def _recount_crossing(self, crossing: PlacedTrigger, outcome: RecountOutcome, *, is_open: bool) -> None:
        """Count a crossing with its jobs; that of the newest may not be ordered yet."""
        outcome.counts["crossings"] += 1
        job_id, jobs = crossing.event.job_id, self._ordered.get(crossing.event.event_id, ())
        for job in jobs:
            if job.job_id != job_id:
                problem = f"it names the crossing at {crossing.at}, which starts job {job_id} and not this one"
                outcome.find("phantom", job.at, problem)
        if job_id is None:
            outcome.counts["crossings without a job"] += 1
        elif any(job.job_id == job_id for job in jobs):
            outcome.counts["crossings with a job"] += 1
        elif is_open:
            outcome.in_flight["crossings"] += 1
            outcome.counts["crossings open"] += 1
        else:
            outcome.find("lost", crossing.at, f"its job {job_id} was never created")
