"""Jobs as Streamward's own REST.

    POST /finetune/jobs {type, …} ──► the type's order (plugins/jobs/orders/job_types.py) ──► JobLog ──► TrainingJob
    GET  /finetune/jobs/JOB/status, /rl/training/JOB/metrics ◄── its fold

The paths are also below /api/v1. Nothing is kept here. Errors have OpenAI's fields, and `details.suggested_action` and
`timestamp` with them. An order over HTTP names no address and no function that a server would call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model
from starlette.requests import Request

from gateway.http.body import Body
from gateway.http.route import IDEMPOTENCY_KEY, LARGE_BODY, REST, idempotency_key
from plugins.jobs.api import job_rights
from plugins.jobs.api.answers import (
    IterationFigures,
    ToolFigures,
    TrainingJob,
    TrainingMetrics,
)
from plugins.jobs.api.tenant_jobs import OpenJobs, jobs_of
from plugins.jobs.api.training_job import JOB_ID, TRAINING_JOB, training_job
from plugins.jobs.fold.job_answers import tool_accuracy, tool_accuracy_by_version
from plugins.jobs.log import job_view
from plugins.jobs.orders.job_types import JobType, job_types, type_name
from schemas.events import JobEvent
from schemas.faults import refusal
from streams.errors import CallError
from streams.output import moment
from streams.settings.model import Settings
from streams.stages.agents.registered_agents import KnownAgent

JOBS_LISTED = "GET /v1/fine_tuning/jobs lists jobs"
"""Where the ids of jobs are found."""


class OrderBody(Body):
    """What every order has."""

    type: str | None = None
    agent_id: str = Field(min_length=1, description="a policy, or an agent that is registered")
    config: dict[str, Any] | None = Field(None, description="of the order (jobs.md); RL_TRAINING: with `n_iterations`")
    tenant: str | None = Field(None, min_length=1, description="who pays")


def _fields(kind: JobType) -> type[Body]:
    """Return the fields that an order has for its type. Raises SettingsError if they cannot be imported."""
    model: type[Body] = kind.load(kind.fields)
    return model


def _possible(kind: Any) -> Any:
    """Return a type of job. Raises what pydantic takes, for one that is not possible here."""
    if isinstance(kind, str) and kind not in BY_NAME:
        *others, last = (each.about for each in job_types())
        raise refusal(f"only {', '.join(others)}{', and ' if others else ''}{last}, are possible here")
    return kind


BY_NAME = {kind.name: kind for kind in job_types()}
FIELDS = {
    name: [kind for kind in job_types() if name in _fields(kind).model_fields]
    for each in job_types()
    for name in _fields(each).model_fields
}
"""The types of job for which a field of an order has an effect."""
_TYPES: Any = Annotated[Literal[tuple(BY_NAME)] | None, BeforeValidator(_possible)]
TRAINING_ORDER: Any = create_model(
    "TrainingOrderBody",
    __doc__=" ".join(["A job of one of these types.", *(kind.description for kind in job_types())]),
    __base__=(*(_fields(kind) for kind in reversed(job_types())), OrderBody),
    type=(_TYPES, None),
)
"""An order of any type: what every order has, and the fields of each type."""
METRICS = TrainingMetrics(
    id=JOB_ID,
    type="RL_TRAINING",
    status="running",
    metrics=ToolFigures(success_rate=0.75, avg_reward=0.62, success_gain=0.25, tool_accuracy=None),
    usage={"prompt_tokens": 4821.0, "completion_tokens": 913.0, "trainer_s": 12.5},
    iterations=[
        IterationFigures.model_validate(
            {"iteration": 1, "version": 8, "at": "2026-01-01T00:10:00.000Z", "reward": 0.62}
        )
    ],
    evaluations=[],
)


class TrainingJobs:
    """Jobs in Streamward's own words. Methods wait for the broker, or for an environment."""

    def __init__(self, settings: Settings, log: OpenJobs) -> None:
        self._settings, self._jobs_of = settings, jobs_of(settings, log)

    @REST.post(
        "/finetune/jobs",
        may=job_rights.ORDER,
        further={path: action for kind in job_types() for path, action in kind.further.items()},
        takes=TRAINING_ORDER,
        **LARGE_BODY,
        ids="GET /adapters lists policies; an agent is what POST /rl/agents wrote",
        status=201,
        parameters=(IDEMPOTENCY_KEY,),
        sends={
            "type": "RL_TRAINING",
            "agent_id": "sums",
            "training_queries": [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(10)],
            "config": {"n_iterations": 3},
        },
        example=TRAINING_JOB,
        tools={"start_job": ""},
        toolsets=("log", "control"),
    )
    def create_training_job(self, request: Request, body: OrderBody) -> TrainingJob:
        """Order a job that trains a policy by rewards, or tunes it on chosen answers or preferences."""
        jobs = self._jobs_of(request)
        kind = _type_of_order(body, jobs.agents.get(body.agent_id))
        for name, types in FIELDS.items():
            if kind not in types and getattr(body, name) is not None:
                problem = f"{name} is for {types[0].name}, and this is {kind.name}: leave it out"
                raise CallError("invalid", problem, name)
        key = idempotency_key(request)
        return training_job(jobs.start(kind.load(kind.order)(jobs, body), key=key))

    @REST.get(
        "/finetune/jobs/{job_id}/status",
        may=job_rights.READ,
        ids=JOBS_LISTED,
        example=TRAINING_JOB,
        tools={"job_status": ""},
        toolsets=("log", "control"),
    )
    def get_training_job(self, request: Request, job_id: str) -> TrainingJob:
        """Look at a job."""
        return training_job(self._jobs_of(request).whole(job_id))

    @REST.get(
        "/rl/training/{job_id}/metrics",
        may=job_rights.READ,
        ids=JOBS_LISTED,
        example=METRICS,
        tools={"job_metrics": ""},
        toolsets=("log", "control"),
    )
    def get_training_metrics(self, request: Request, job_id: str) -> TrainingMetrics:
        """Return the figures of a job, iteration by iteration."""
        jobs = self._jobs_of(request)
        job = jobs.whole(job_id)
        events = jobs.events(job)
        held_out = tool_accuracy_by_version(self._settings, job)
        return TrainingMetrics(
            id=job.job_id,
            type=type_name(job),
            status=job.status,
            metrics=ToolFigures(**job_view.metrics(job), tool_accuracy=tool_accuracy(self._settings, job)),
            usage=job.usage.metrics(job.spec.prices),
            iterations=[_figures(event) for event in events if event.kind == "iteration"],
            evaluations=[_figures(event, held_out) for event in events if event.kind == "evaluated"],
        )


def _figures(event: JobEvent, held_out: Mapping[int, float] | None = None) -> IterationFigures:
    """Return the figures of an iteration; of an evaluation with the version's accuracy in calling tools, if it has."""
    place = {"iteration": event.iteration, "version": event.version, "at": moment(event.created_at)}
    accuracy = (held_out or {}).get(event.version or 0)
    tools = {} if accuracy is None else {"tool_accuracy": accuracy}
    return IterationFigures.model_validate(place | dict(event.metrics) | tools)


def _type_of_order(body: OrderBody, agent: KnownAgent | None) -> JobType:
    """Return the type of the job that is ordered: as it says, else by its fields and its agent's type."""
    if body.type is not None:
        return BY_NAME[body.type]
    return next(kind for kind in reversed(job_types()) if kind.is_meant(body, agent))
