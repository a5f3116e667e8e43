"""A job in Streamward's own words, as its routes answer it."""

from __future__ import annotations

from plugins.jobs.api.answers import JobProgress, OrderedConfig, TrainingJob
from plugins.jobs.fold.state import JobState
from plugins.jobs.log import job_view
from plugins.jobs.orders.job_types import type_name
from streams.output import moment

JOB_ID = "5b0a3c1e-5d0c-5f0e-9a43-0d6f3c1d2f10"
TRAINING_JOB = TrainingJob(
    id=JOB_ID,
    type="RL_TRAINING",
    status="queued",
    config=OrderedConfig.model_validate(
        {"agent_id": "sums", "n_iterations": 3, "method": "grpo", "questions": 10, "held_out": 1}
    ),
    metrics=JobProgress(iteration=0, cost_usd=None, success_rate=None, avg_reward=None, success_gain=None),
    created_at="2026-01-01T00:00:00.000Z",
    updated_at="2026-01-01T00:00:00.000Z",
    reason="ordered",
    code=None,
    suggested_action=None,
)


def training_job(job: JobState) -> TrainingJob:
    """Return a job as an answer."""
    config = {"agent_id": job.spec.agent or job.policy, "n_iterations": job.spec.iterations, **job_view.order(job)}
    return TrainingJob(
        id=job.job_id,
        type=type_name(job),
        status=job.status,
        config=OrderedConfig.model_validate(config),
        metrics=JobProgress(iteration=job.iteration, cost_usd=job.cost_usd, **job_view.metrics(job)),
        created_at=moment(job.created_at),
        updated_at=moment(job.updated_at),
        reason=job.reason,
        code=job.code,
        suggested_action=job.suggested_action,
    )
