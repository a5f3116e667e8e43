"""The answers about jobs, files and environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import ConfigDict, Field, WithJsonSchema

from gateway.http.body import Answer
from gateway.http.errors import RpcFailure
from gateway.log.tool_answer import ToolAnswer
from schemas.events import JobKind
from streams.errors import CallError
from streams.jobs.job_types import NOT_LOADED, job_types

Status = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
"""In OpenAI's words."""
JobTypeName = Annotated[
    str, WithJsonSchema({"enum": [*(kind.name for kind in job_types()), NOT_LOADED], "type": "string"})
]
OwnStatus = Literal["queued", "running", "paused", "completed", "failed", "cancelled"]


class OpenAnswer(Answer):
    """An object in an answer that may have more fields."""

    model_config = ConfigDict(extra="allow")


class FigureAnswer(OpenAnswer):
    """Figures by their names, beside what they are about."""

    __pydantic_extra__: dict[str, float] = Field(init=False)


class StoredFile(Answer):
    """A file that was uploaded."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"]
    expires_at: None
    status_details: None


class DeletedFile(Answer):
    """A file that is no more."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class PageAnswer(Answer):
    """A page of a list: `after=last_id` asks for the next."""

    object: Literal["list"]
    has_more: bool
    first_id: str | None
    last_id: str | None


class HasId(Protocol):
    """An item of a page."""

    id: str


def page(items: Sequence[HasId], after: str | None, limit: int) -> dict[str, Any]:
    """Return the fields of a page: `limit` of the items after the one called `after`. Raises CallError (not_found)."""
    start = 0
    if after is not None:
        ids = [item.id for item in items]
        if after not in ids:
            raise CallError("not_found", f"after: there is no {after[:80]!r} in this list; give an id of it", "after")
        start = ids.index(after) + 1
    data = items[start : start + limit]
    ends = {"first_id": data[0].id if data else None, "last_id": data[-1].id if data else None}
    return {"object": "list", "data": list(data), "has_more": start + limit < len(items)} | ends


class FileList(PageAnswer):
    """A page of files."""

    data: list[StoredFile]


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


class OrderedConfig(OpenAnswer):
    """What was ordered (jobs.md)."""

    agent_id: str
    n_iterations: int
    method: str


class JobFigures(Answer):
    """How well the policy answers: of the newest evaluation, and of the newest iteration."""

    success_rate: float | None
    avg_reward: float | None
    success_gain: float | None


class ToolFigures(JobFigures):
    """The same, with the share of the newest iteration's calls of tools that their environment could use."""

    tool_accuracy: float | None


class JobProgress(JobFigures):
    """How far a job is."""

    iteration: int
    cost_usd: float | None


class TrainingJob(Answer):
    """A job in Streamward's own words."""

    id: str
    type: JobTypeName
    status: OwnStatus
    config: OrderedConfig
    metrics: JobProgress
    created_at: str
    updated_at: str
    reason: str
    code: str | None
    suggested_action: str | None


class IterationFigures(FigureAnswer):
    """One iteration, or one evaluation."""

    iteration: int | None
    version: int | None
    at: str


class TrainingMetrics(Answer):
    """The figures of a job, iteration by iteration."""

    id: str
    type: JobTypeName
    status: OwnStatus
    metrics: ToolFigures
    usage: dict[str, float]
    iterations: list[IterationFigures]
    evaluations: list[IterationFigures]


class ShownMessage(Answer):
    """What an environment says as an episode begins."""

    role: str
    content: str


class TriedEnvironment(Answer):
    """An environment that gave the same each time."""

    environment: str
    seed: int
    settings: dict[str, Any]
    deterministic: Literal[True]
    messages: list[ShownMessage]
    tools: list[ToolAnswer]
    digest: str
    actions: int
    ended: bool
    success: bool | None
    name: str | None = Field(None, description="of the entry that keeps it")


class KeptEnvironment(Answer):
    """An environment of the registry, as tasks name it."""

    name: str
    environment: str
    settings: dict[str, Any]
    seed: int = Field(description="of the episode that describes it")
    max_turns: int | None
    version: str | None
    trusted: bool = Field(description="false: it shows something else than was accepted")
    digest: str
    messages: list[ShownMessage]
    tools: list[ToolAnswer]


class KeptEnvironments(Answer):
    """The environments of the registry."""

    object: Literal["list"]
    data: list[KeptEnvironment]


class RpcResult(Answer):
    """What a method returned."""

    jsonrpc: Literal["2.0"]
    id: str | float | None
    result: dict[str, Any]


class RpcRefusal(Answer):
    """Why a method returned nothing."""

    jsonrpc: Literal["2.0"]
    id: str | float | None
    error: RpcFailure


RpcOutcome = RpcResult | RpcRefusal
