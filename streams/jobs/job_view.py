"""Views of a job for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.events import JobEnvironment, JobEvent, JobPrices, JobTuning
from streams.jobs.state import JobEvaluation, JobState
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
    """Return what was ordered, the questions or episodes as counts."""
    spec = job.spec
    prices = spec.prices
    if spec.tuning is not None:
        return _tuning(spec.tuning) | {"prices": _prices(prices)}
    if spec.search is not None:
        return {"method": "prompts", "questions": len(spec.questions), "held_out": len(job.held_out)}
    return {
        "method": "grpo",
        **({} if spec.environment is None else {"environment": _environment(spec.environment)}),
        "questions": len(job.train) + len(job.held_out),
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
            {"name": source.name, "weight": source.weight, "settings": source.settings}
            for source in spec.reward_sources
        ],
        "prices": _prices(prices),
    }


def _environment(environment: JobEnvironment) -> dict[str, Any]:
    entry = {} if environment.entry is None else {"entry": environment.entry}
    return {"name": environment.name, "settings": environment.settings} | entry


def _tuning(tuning: JobTuning) -> dict[str, Any]:
    start = tuning.start_version
    return {
        "method": tuning.method,
        "epochs": tuning.epochs,
        "batch": tuning.batch,
        "beta": tuning.beta,
        "lora_rank": tuning.lora_rank,
        "lora_alpha": tuning.lora_alpha,
        "lora_targets": tuning.lora_targets,
        "start": start if tuning.start_policy is None else f"{tuning.start_policy}:{start}",
        "file_id": tuning.file_id,
        "file": tuning.file,
        "dataset": None if tuning.dataset is None else f"{tuning.dataset}@{tuning.dataset_digest}",
        "groups_of": tuning.groups_policy,
        "selection": dict(tuning.selection),
    }


def _prices(prices: JobPrices | None) -> dict[str, float] | None:
    if prices is None:
        return None
    return {"prompt": prices.prompt, "completion": prices.completion, "trainer_hour": prices.trainer_hour}


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
