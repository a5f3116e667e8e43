"""The answers about jobs in OpenAI's words."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gateway.http.body import Answer, FigureAnswer
from gateway.http.pagination import PageAnswer
from schemas.events import JobKind

Status = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
"""In OpenAI's words."""


class JobFailure(Answer):
    """Why a job failed."""

    code: str | None
    message: str
    param: None


class FineTuningJob(Answer):
    """A job as OpenAI's clients see it."""

    id: str
    object: Literal["fine_tuning.job"]
    created_at: int
    error: JobFailure | None
    estimated_finish: None
    fine_tuned_model: str | None = Field(description="`POLICY@VERSION`, once it has succeeded")
    finished_at: int | None
    hyperparameters: dict[str, Any]
    integrations: list[Any]
    metadata: dict[str, str] | None
    method: dict[str, Any] | None
    model: str
    organization_id: str
    result_files: list[str]
    seed: int | None
    status: Status
    trained_tokens: int | None
    training_file: str | None
    validation_file: None


FINE_TUNING_JOB = FineTuningJob(
    id="5b0a3c1e-5d0c-5f0e-9a43-0d6f3c1d2f10",
    object="fine_tuning.job",
    created_at=1767225600,
    error=None,
    estimated_finish=None,
    fine_tuned_model="sums@12",
    finished_at=1767229200,
    hyperparameters={},
    integrations=[],
    metadata={"run": "7"},
    method={
        "type": "reinforcement",
        "reinforcement": {
            "grader": {
                "type": "string_check",
                "name": "right",
                "operation": "eq",
                "input": "{{sample.output_text}}",
                "reference": "{{item.answer}}",
            }
        },
    },
    model="sums",
    organization_id="streamward",
    result_files=[],
    seed=0,
    status="succeeded",
    trained_tokens=48210,
    training_file="file-2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    validation_file=None,
)
"""An example."""


class FineTuningJobList(PageAnswer):
    """A page of jobs, the newest first."""

    data: list[FineTuningJob]


class FineTuningEventData(FigureAnswer):
    """What an event says for programs."""

    kind: JobKind
    step: int | None
    actor: str


class FineTuningEvent(Answer):
    """Something that happened to a job."""

    id: str
    object: Literal["fine_tuning.job.event"]
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: FineTuningEventData


class FineTuningEventList(PageAnswer):
    """A page of events, the newest first."""

    data: list[FineTuningEvent]


class CheckpointFigures(FigureAnswer):
    """What a version reached on the held-out questions."""

    step: int | None


class FineTuningCheckpoint(Answer):
    """A version that a job made, was evaluated, and can be asked for."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: CheckpointFigures
    step_number: int


class FineTuningCheckpointList(PageAnswer):
    """A page of checkpoints, the newest first."""

    data: list[FineTuningCheckpoint]
