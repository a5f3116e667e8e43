"""The events and usage of a tuning job, derived from the log alone.

    job, its version in adapters ──► started ──► (steps, between which it may end) ──► iteration ──► completed
                                                  over its budget ──► budget_exceeded     cannot be done ──► failed

Each has its own id, so that an event written twice has one effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugins.jobs.controller.job_reducer import over_budget
from plugins.jobs.fold.monthly_spending import MonthBudget
from plugins.jobs.fold.state import JobState, JobUsage
from schemas.events import AdapterEvent, JobEvent, JobKind, derive_id

ACTOR = "tune"
NOT_TUNED = "TUNING_FAILED"
NO_EXAMPLES = "EXAMPLES_MISSING"
REPEATED = ("loss_first", "loss", "grad_norm", "margin", "accuracy", "examples", "steps")
"""Figures of a tuned version that its job's event repeats."""


def start_event(job: JobState, newest: int, groups_next: int, now_ms: int) -> JobEvent:
    """Return the event that starts a queued job, or continues one with the groups that it began with.

    `newest`: the newest version of its policy; `groups_next`: where the groups end that it may choose from.
    """
    first = job.base_version is None
    about = {"version": newest, "groups_next": groups_next if first else job.groups_next}
    return _event(job, "started", "its turn" if first else "resumed", now_ms, **about)


def version_event(job: JobState, version_event: AdapterEvent) -> JobEvent:
    """Return the event that says that its version is made."""
    figures = {name: version_event.metrics[name] for name in REPEATED if name in version_event.metrics}
    return _event(
        job,
        "iteration",
        f"version {version_event.version} is tuned",
        max(version_event.created_at, job.updated_at),
        iteration=1,
        version=version_event.version,
        metrics={**usage_of_version(job, version_event.metrics).metrics(job.spec.prices), **figures},
    )


def completion_event(job: JobState) -> JobEvent:
    """Return the end of a job after its version was made."""
    return _event(job, "completed", f"version {job.version} is there", job.updated_at, iteration=job.iteration)


def failure_event(job: JobState, reason: str, now_ms: int, *, code: str, action: str) -> JobEvent:
    """Return the end of a job that cannot be done."""
    return _event(job, "failed", reason, now_ms, code=code, suggested_action=action)


def budget_event(job: JobState, usage: JobUsage, month: MonthBudget | None, now_ms: int) -> JobEvent | None:
    """Return the end of a job that is over its budget, or its tenant's; None if it is not."""
    over = over_budget(job, usage, month)
    if over is None:
        return None
    reason, action = over
    figures = usage.metrics(job.spec.prices)
    return _event(
        job, "budget_exceeded", reason, now_ms, code="BUDGET_EXCEEDED", suggested_action=action, metrics=figures
    )


def usage_of_version(job: JobState, metrics: Mapping[str, float]) -> JobUsage:
    """Return what a version has used, by its own figures: each token that was read or learned, in each epoch."""
    epochs = 1 if job.spec.tuning is None else job.spec.tuning.epochs
    return JobUsage(
        epochs * int(metrics.get("context_tokens", 0)),
        epochs * int(metrics.get("tokens", 0)),
        metrics.get("tune_s", 0.0),
    )


def usage_after(step: int, count: int, usage_of_all: JobUsage, seconds: float) -> JobUsage:
    """Return what is used after some of the steps; `usage_of_all`: the tokens of all of them.

    >>> usage_after(1, 4, JobUsage(100, 40), 2.5)
    JobUsage(prompt_tokens=25, completion_tokens=10, trainer_s=2.5)
    """
    return JobUsage(usage_of_all.prompt_tokens * step // count, usage_of_all.completion_tokens * step // count, seconds)


def _event(job: JobState, kind: JobKind, reason: str, created_at: int, **changes: Any) -> JobEvent:
    return JobEvent(
        event_id=derive_id(job.job_id, kind, job.sequence),
        job_id=job.job_id,
        created_at=created_at,
        kind=kind,
        sequence=job.sequence,
        policy=job.policy,
        tenant=job.tenant,
        actor=ACTOR,
        reason=reason,
        **changes,
    )
