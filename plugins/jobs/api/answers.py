"""The answers about jobs in Streamward's own words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

from gateway.http.body import Answer, FigureAnswer, OpenAnswer
from gateway.http.errors import RpcFailure
from plugins.jobs.orders.job_types import NOT_LOADED, job_types

JobTypeName = Annotated[
    str, WithJsonSchema({"enum": [*(kind.name for kind in job_types()), NOT_LOADED], "type": "string"})
]
OwnStatus = Literal["queued", "running", "paused", "completed", "failed", "cancelled"]


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
