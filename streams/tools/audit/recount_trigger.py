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

from schemas.events import Coordinates
from streams.tools.audit.facts import AuditFinding, Category, JobFact, TriggerFact
from streams.tools.audit.story import TaskOutcome


@dataclass(slots=True)
class RuleStory:
    """What the log says about one rule, in the order of its partition."""

    rule: str
    policy: str
    events: list[TriggerFact] = field(default_factory=list)


def recount_rule(
    story: RuleStory, ordered: Mapping[str, list[JobFact]], asked: Mapping[str, int] | None, *, settled: bool
) -> TaskOutcome:
    """Return what is wrong with one rule.

    By event_id of a crossing: `ordered` are the jobs that name it, `asked` how many tasks do; None: not all were read.
    """
    outcome = TaskOutcome()
    count, ticked_at = 0, -1
    crossings: list[TriggerFact] = []

    def find(place: Coordinates, problem: str) -> None:
        outcome.findings.append(AuditFinding("contradictory", place, problem))

    for event in story.events:
        if not event.has_own_id:
            find(event.at, "its id is not that of its rule, kind and sequence")
            continue
        if event.sequence > count:
            problem = f"it follows event {event.sequence - 1} of its rule, which is not before it"
            outcome.findings.append(AuditFinding("lost", event.at, problem))
            count = event.sequence
        is_late = event.kind == "ticked" and event.due_at <= ticked_at
        if event.sequence < count or is_late:
            outcome.counts["trigger events superseded"] += 1
            continue
        count += 1
        if event.due_at > event.created_at:
            find(event.at, f"it is of {event.due_at}, and was written before that, at {event.created_at}")
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


def _recount_tasks(crossing: TriggerFact, expected: int, asked: int, outcome: TaskOutcome, *, is_open: bool) -> None:
    """Count the tasks of a run of self-play; those of the newest may not be written yet."""
    outcome.counts["self-play tasks"] += min(asked, expected)
    if asked < expected and is_open:
        outcome.in_flight["self-play tasks"] += expected - asked
    elif asked != expected:
        category: Category = "lost" if asked < expected else "phantom"
        problem = f"its run asks {expected} tasks, and {asked} in the log name it"
        outcome.findings.append(AuditFinding(category, crossing.at, problem))


def _recount_crossing(crossing: TriggerFact, jobs: list[JobFact], outcome: TaskOutcome, *, is_open: bool) -> None:
    """Count a crossing with its jobs; that of the newest may not be ordered yet."""
    outcome.counts["crossings"] += 1
    for job in jobs:
        if job.job_id != crossing.job_id:
            problem = f"it names the crossing at {crossing.at}, which starts job {crossing.job_id} and not this one"
            outcome.findings.append(AuditFinding("phantom", job.at, problem))
    if crossing.job_id is None:
        outcome.counts["crossings without a job"] += 1
    elif any(job.job_id == crossing.job_id for job in jobs):
        outcome.counts["crossings with a job"] += 1
    elif is_open:
        outcome.in_flight["crossings"] += 1
        outcome.counts["crossings open"] += 1
    else:
        outcome.findings.append(AuditFinding("lost", crossing.at, f"its job {crossing.job_id} was never created"))


def stray_jobs(stories: Mapping[str, RuleStory], ordered: Mapping[str, list[JobFact]]) -> TaskOutcome:
    """Return the jobs that name a crossing which is not in the log."""
    outcome = TaskOutcome()
    crossings = {event.event_id for story in stories.values() for event in story.events if event.kind == "crossed"}
    for event_id, jobs in ordered.items():
        if event_id not in crossings:
            problem = f"it names crossing {event_id}, which is not in the log"
            outcome.findings += [AuditFinding("phantom", job.at, problem) for job in jobs]
    return outcome
