"""Views of a job for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from plugins.jobs.fold.state import JobEvaluation, JobState
from plugins.jobs.orders.job_types import view_of
from schemas.events import JobEvent
from streams.output import moment


def row(job: JobState) -> dict[str, Any]:
    """Return how far a job is, without its order."""
    return {
        "job_id": job.job_id,
        "policy": job.policy,
        "tenant": job.tenant,
        "status": job.status,
        "iteration": job.iteration,
        "total_iterations": job.spec.iterations,
        "version": job.version,
        "best": better_versions(job),
        "cost_usd": job.cost_usd,
        "budget_usd": job.spec.max_budget_usd,
        "created_at": moment(job.created_at),
        "updated_at": moment(job.updated_at),
        "reason": job.reason,
        "code": job.code,
        "suggested_action": job.suggested_action,
        "sequence": job.sequence,
    }


def better_versions(job: JobState) -> list[int]:
    """Return the versions that are better than the one before the job, the best first."""
    better = {result.version for result in job.evaluations if result.iteration and result.gain > 0}
    return [version for version in job.best if version in better]


def order(job: JobState) -> dict[str, Any]:
    """Return what was ordered and at which prices, the questions or episodes as counts."""
    prices = job.spec.prices
    return view_of(job) | {"prices": None if prices is None else asdict(prices)}


def evaluation(job_evaluation: JobEvaluation) -> dict[str, Any]:
    """Return the figures of an evaluation."""
    return {"iteration": job_evaluation.iteration, "version": job_evaluation.version, **job_evaluation.metrics}


def whole(job: JobState) -> dict[str, Any]:
    """Return everything but the questions."""
    return row(job) | {
        "order": order(job),
        "metrics": metrics(job),
        "usage": job.usage.metrics(None),
        "evaluations": [evaluation(result) for result in job.evaluations],
        "refused": dict(job.refused),
    }


def metrics(job: JobState) -> Mapping[str, float | None]:
    """Return the figures that clients ask for: of the newest evaluation, and of the newest iteration's answers."""
    newest = job.evaluations[-1].metrics if job.evaluations else {}
    return {
        "success_rate": newest.get("success"),
        "avg_reward": job.metrics.get("reward", newest.get("mean_reward")),
        "success_gain": newest.get("success_gain"),
    }


def event(job_event: JobEvent) -> dict[str, Any]:
    """Return an event of a job without its order."""
    return {
        "event_id": job_event.event_id,
        "job_id": job_event.job_id,
        "created_at": moment(job_event.created_at),
        "kind": job_event.kind,
        "sequence": job_event.sequence,
        "actor": job_event.actor,
        "reason": job_event.reason,
        "iteration": job_event.iteration,
        "version": job_event.version,
        "code": job_event.code,
        "suggested_action": job_event.suggested_action,
        "best": list(job_event.best),
        "metrics": dict(job_event.metrics),
    }
