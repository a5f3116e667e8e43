"""A job, its events and its checkpoints as OpenAI's clients read them.

JobState, its events ──► fine_tuning.job, fine_tuning.job.event, fine_tuning.job.checkpoint

What a job that was ordered elsewhere does not have, such as a file, is null.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from plugins.jobs.fold.state import JobState, JobStatus
from plugins.tuning.api.fine_tuning_answers import (
    CheckpointFigures,
    FineTuningCheckpoint,
    FineTuningEvent,
    FineTuningEventData,
    FineTuningJob,
    JobFailure,
    Status,
)
from plugins.tuning.api.fine_tuning_body import ORDERED
from schemas import json_text
from schemas.events import JobEvent, JobKind

STATUS: Mapping[JobStatus, Status] = {
    "queued": "queued",
    "running": "running",
    "paused": "paused",
    "completed": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}
LEVELS: Mapping[JobKind, Literal["warn", "error"]] = {
    "budget_warned": "warn",
    "budget_exceeded": "error",
    "failed": "error",
}
"""Of events that are not `info`."""


def job(state: JobState, events: Sequence[JobEvent]) -> FineTuningJob:
    """Return a job; `events` are those of it that took effect."""
    order = _order(events)
    tokens = state.usage.prompt_tokens + state.usage.completion_tokens
    return FineTuningJob(
        id=state.job_id,
        object="fine_tuning.job",
        created_at=state.created_at // 1000,
        error=_failure(state),
        estimated_finish=None,
        fine_tuned_model=_trained_model(state),
        finished_at=state.updated_at // 1000 if state.has_ended else None,
        hyperparameters={},
        integrations=[],
        metadata=order.get("metadata"),
        method=order.get("method"),
        model=order.get("model", state.policy),
        organization_id=state.tenant or "streamward",
        result_files=[],
        seed=order.get("seed"),
        status=STATUS[state.status],
        trained_tokens=tokens if state.has_ended else None,
        training_file=order.get("training_file"),
        validation_file=None,
    )


def metadata(events: Sequence[JobEvent]) -> Mapping[str, str] | None:
    """Return the metadata that a job was ordered with."""
    value = _order(events).get("metadata")
    return value if isinstance(value, dict) else None


def event(event: JobEvent) -> FineTuningEvent:
    """Return an event of a job."""
    data = {"kind": event.kind, "step": event.iteration, "actor": event.actor, **event.metrics}
    return FineTuningEvent(
        id=event.event_id,
        object="fine_tuning.job.event",
        created_at=event.created_at // 1000,
        level=LEVELS.get(event.kind, "info"),
        message=f"{event.kind}: {event.reason}",
        type="metrics" if event.kind in ("iteration", "evaluated") else "message",
        data=FineTuningEventData.model_validate(data),
    )


def checkpoints(state: JobState, events: Sequence[JobEvent], usable: Collection[int]) -> list[FineTuningCheckpoint]:
    """Return the evaluated versions that the job made and that can be asked for, the newest first."""
    return [
        FineTuningCheckpoint(
            id=event.event_id,
            object="fine_tuning.job.checkpoint",
            created_at=event.created_at // 1000,
            fine_tuned_model_checkpoint=f"{state.policy}@{event.version}",
            fine_tuning_job_id=state.job_id,
            metrics=CheckpointFigures.model_validate({"step": event.iteration, **event.metrics}),
            step_number=event.iteration,
        )
        for event in reversed(events)
        if event.kind == "evaluated" and event.iteration and event.version in usable
    ]


def _failure(state: JobState) -> JobFailure | None:
    if state.status != "failed":
        return None
    advice = "" if state.suggested_action is None else f"; {state.suggested_action}"
    return JobFailure(code=state.code, message=state.reason + advice, param=None)


def _trained_model(state: JobState) -> str | None:
    """Return the model that a completed job has made: the best version, or where none was evaluated the newest."""
    if state.status != "completed":
        return None
    return f"{state.policy}@{state.best[0] if state.best else state.version}"


def _order(events: Sequence[JobEvent]) -> dict[str, Any]:
    """Return the order, as its client sent it; empty if it was not ordered here."""
    try:
        order = json_text.parse(events[0].metadata.get(ORDERED, "{}")) if events else {}
    except ValueError:  # anybody may write metadata
        return {}
    return order if isinstance(order, dict) else {}
