"""A job as people and programs are shown it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.events import JobEvent, JobPrices, JobTuning
from streams.jobs.state import JobEvaluation, JobState


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
        "best": list(job.best),
        "cost_usd": job.cost_usd,
        "budget_usd": job.spec.max_budget_usd,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "reason": job.reason,
        "code": job.code,
        "suggested_action": job.suggested_action,
        "sequence": job.sequence,
    }


def order(job: JobState) -> dict[str, Any]:
    """Return what was ordered, the questions as counts."""
    spec = job.spec
    prices = spec.prices
    if spec.tuning is not None:
        return _tuning(spec.tuning) | {"prices": _prices(prices)}
    return {
        "method": "grpo",
        "questions": len(spec.questions),
        "held_out": len(job.held_out),
        "batch_size": spec.batch_size,
        "n_trajectories_per_query": spec.group_size,
        "checkpoint_interval": spec.evaluate_every,
        "keep_best": spec.keep_best,
        "patience": spec.patience,
        "target_gain": spec.target_gain,
        "agent": spec.agent,
        "max_steps_per_trajectory": spec.max_turns,
        "max_tokens": spec.sampling.max_tokens,
        "temperature": spec.sampling.temperature,
        "reward_sources": [
            {"name": one.name, "weight": one.weight, "settings": one.settings} for one in spec.reward_sources
        ],
        "prices": _prices(prices),
    }


def _tuning(tuning: JobTuning) -> dict[str, Any]:
    start = tuning.start_version
    return {
        "method": tuning.method,
        "epochs": tuning.epochs,
        "batch": tuning.batch,
        "beta": tuning.beta,
        "start": start if tuning.start_policy is None else f"{tuning.start_policy}:{start}",
        "file_id": tuning.file_id,
        "file": tuning.file,
        "groups_of": tuning.groups_policy,
        "selection": dict(tuning.selection),
    }


def _prices(prices: JobPrices | None) -> dict[str, float] | None:
    if prices is None:
        return None
    return {"prompt": prices.prompt, "completion": prices.completion, "trainer_hour": prices.trainer_hour}


def evaluation(one: JobEvaluation) -> dict[str, Any]:
    """Return the figures of an evaluation."""
    return {"iteration": one.iteration, "version": one.version, **one.metrics}


def whole(job: JobState) -> dict[str, Any]:
    """Return everything but the questions."""
    return row(job) | {
        "order": order(job),
        "metrics": metrics(job),
        "usage": job.usage.metrics(None),
        "evaluations": [evaluation(one) for one in job.evaluations],
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


def event(one: JobEvent) -> dict[str, Any]:
    """Return an event of a job without its order."""
    return {
        "event_id": one.event_id,
        "job_id": one.job_id,
        "created_at": one.created_at,
        "kind": one.kind,
        "sequence": one.sequence,
        "actor": one.actor,
        "reason": one.reason,
        "iteration": one.iteration,
        "version": one.version,
        "code": one.code,
        "suggested_action": one.suggested_action,
        "best": list(one.best),
        "metrics": dict(one.metrics),
    }
