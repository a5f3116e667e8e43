"""A job, its events and its checkpoints as OpenAI's clients read them.

JobState, its events ──► fine_tuning.job, fine_tuning.job.event, fine_tuning.job.checkpoint

What a job that was ordered elsewhere does not have, such as a file, is null.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from gateway.jobs.fine_tuning_body import ORDERED
from schemas import json_text
from schemas.events import JobEvent, JobKind
from streams.jobs.state import JobState, JobStatus

STATUS: Mapping[JobStatus, str] = {"completed": "succeeded"}
"""Those that have another name here."""
LEVELS: Mapping[JobKind, Literal["warn", "error"]] = {
    "budget_warned": "warn",
    "budget_exceeded": "error",
    "failed": "error",
}
"""Of events that are not `info`."""


def job(state: JobState, events: Sequence[JobEvent]) -> dict[str, Any]:
    """Return a job; `events` are those of it that took effect."""
    ordered = _ordered(events)
    error = {"code": state.code, "message": state.reason, "param": None} if state.status == "failed" else None
    if error is not None and state.suggested_action is not None:
        error["message"] = f"{state.reason}; {state.suggested_action}"
    used = state.usage.prompt_tokens + state.usage.completion_tokens
    return {
        "id": state.job_id,
        "object": "fine_tuning.job",
        "created_at": state.created_at // 1000,
        "error": error,
        "estimated_finish": None,
        "fine_tuned_model": _trained(state),
        "finished_at": state.updated_at // 1000 if state.ended else None,
        "hyperparameters": {},
        "integrations": [],
        "metadata": ordered.get("metadata"),
        "method": ordered.get("method"),
        "model": ordered.get("model", state.policy),
        "organization_id": state.tenant or "streamward",
        "result_files": [],
        "seed": ordered.get("seed"),
        "status": STATUS.get(state.status, state.status),
        "trained_tokens": used if state.ended else None,
        "training_file": ordered.get("training_file"),
        "validation_file": None,
    }


def metadata(events: Sequence[JobEvent]) -> Mapping[str, str] | None:
    """Return what somebody noted beside a job."""
    found = _ordered(events).get("metadata")
    return found if isinstance(found, dict) else None


def event(one: JobEvent) -> dict[str, Any]:
    """Return an event of a job."""
    figures = one.kind in ("iteration", "evaluated")
    data = {"kind": one.kind, "step": one.iteration, "actor": one.actor, **one.metrics}
    return {
        "id": one.event_id,
        "object": "fine_tuning.job.event",
        "created_at": one.created_at // 1000,
        "level": LEVELS.get(one.kind, "info"),
        "message": f"{one.kind}: {one.reason}",
        "type": "metrics" if figures else "message",
        "data": data,
    }


def checkpoints(state: JobState, events: Sequence[JobEvent], usable: Collection[int]) -> list[dict[str, Any]]:
    """Return the evaluated versions that the job made and that can be asked for, the newest first."""
    found = [
        {
            "id": one.event_id,
            "object": "fine_tuning.job.checkpoint",
            "created_at": one.created_at // 1000,
            "fine_tuned_model_checkpoint": f"{state.policy}@{one.version}",
            "fine_tuning_job_id": state.job_id,
            "metrics": {"step": one.iteration, **one.metrics},
            "step_number": one.iteration,
        }
        for one in events
        if one.kind == "evaluated" and one.iteration and one.version in usable
    ]
    return found[::-1]


def _trained(state: JobState) -> str | None:
    """Return the model that a completed job has made: the best version, or where none was evaluated the newest."""
    if state.status != "completed":
        return None
    return f"{state.policy}@{state.best[0] if state.best else state.version}"


def _ordered(events: Sequence[JobEvent]) -> dict[str, Any]:
    """Return what the order says beside the job's own state; empty if it was not ordered here."""
    try:
        said = json_text.parse(events[0].metadata.get(ORDERED, "{}")) if events else {}
    except ValueError:  # anybody may write metadata
        return {}
    return said if isinstance(said, dict) else {}
