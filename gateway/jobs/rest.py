"""Jobs as Streamward's own REST.

    POST /finetune/jobs {type: RL_TRAINING | FINE_TUNING, …}, /finetune/peft ──► JobLog ──► TrainingJob
    GET  /finetune/jobs/JOB/status, /rl/training/JOB/metrics ◄── its fold

The paths are also below /api/v1. Nothing is kept here. Errors have OpenAI's fields, and `details.suggested_action` and
`timestamp` with them. An order over HTTP names no address and no function that a server would call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field
from starlette.requests import Request

from gateway.http.body import Body
from gateway.http.route import IDEMPOTENCY_KEY, LARGE_BODY, REST, idempotency_key
from gateway.jobs import tuning_orders
from gateway.jobs.answers import (
    FINE_TUNING_JOB,
    IterationFigures,
    JobProgress,
    OrderedConfig,
    ToolFigures,
    TrainingJob,
    TrainingMetrics,
)
from gateway.jobs.tenant_jobs import TenantJobs, jobs_of
from schemas.events import JobEvent
from schemas.faults import refusal
from streams.access.roles import Action
from streams.errors import CallError, NotFoundError, RefusedError
from streams.jobs import job_view, request as requests
from streams.jobs.job_answers import tool_accuracy, tool_accuracy_by_version
from streams.jobs.job_log import JobLog
from streams.jobs.request import EnvironmentConfig, JobOrder
from streams.jobs.state import JobState
from streams.output import moment
from streams.prompts import prompt_log
from streams.settings.model import Settings
from streams.stages.agents.runs.registration import KnownAgent
from streams.tools.prompt_search import search_request

OrderType = Literal["RL_TRAINING", "FINE_TUNING", "PROMPT_ENGINEERING"]
RL_TRAINING: Literal["RL_TRAINING"] = "RL_TRAINING"
FINE_TUNING: Literal["FINE_TUNING"] = "FINE_TUNING"
PROMPT_ENGINEERING: Literal["PROMPT_ENGINEERING"] = "PROMPT_ENGINEERING"
ONLY_THESE = (
    "only RL_TRAINING, by rewards, FINE_TUNING, on chosen answers or preferences, and PROMPT_ENGINEERING, a search for "
    "a better prompt, are possible here"
)
OF_TYPE: dict[str, tuple[OrderType, ...]] = {
    "training_queries": (RL_TRAINING, PROMPT_ENGINEERING),
    "environment": (RL_TRAINING,),
    "method": (FINE_TUNING,),
    "training_file": (FINE_TUNING,),
    "prompt": (PROMPT_ENGINEERING,),
    "search": (PROMPT_ENGINEERING,),
}
"""Fields of an order that have an effect for one type of job."""
MOVES_ALIAS: Mapping[str, Action] = {"config.alias": "adapters.promote"}
"""What an order takes whose job lets an alias mean the version that it found."""
JOBS_LISTED = "GET /v1/fine_tuning/jobs lists jobs"
"""Where the ids of jobs are found."""


def _possible(kind: Any) -> Any:
    """Return a type of job. Raises what pydantic takes, for one that is not possible here."""
    if isinstance(kind, str) and kind not in get_args(OrderType):
        raise refusal(ONLY_THESE)
    return kind


class TrainingOrderBody(Body):
    """A job: of type RL_TRAINING the order of `training.start_grpo`, of type FINE_TUNING that of `/finetune/peft`, of
    type PROMPT_ENGINEERING that of `/prompts/optimize`.

    Without a type it is FINE_TUNING for an agent that is registered as FINE_TUNED, PROMPT_ENGINEERING for one that is
    PROMPT_BASED if a prompt is named, and RL_TRAINING for others.
    """

    type: Annotated[OrderType | None, BeforeValidator(_possible)] = None
    agent_id: str = Field(min_length=1, description="a policy, or an agent that is registered")
    training_queries: list[dict[str, Any]] | None = Field(
        None, description="RL_TRAINING, PROMPT_ENGINEERING: each with `query` and `expected_outcome`"
    )
    environment: EnvironmentConfig | None = Field(
        None, description="RL_TRAINING: episodes to train on, instead of questions"
    )
    prompt: str | None = Field(None, min_length=1, description="PROMPT_ENGINEERING: the prompt to find a version of")
    search: Literal["pairs", "live", "reflection"] | None = Field(
        None, description="PROMPT_ENGINEERING; default: pairs"
    )
    method: Literal["sft", "dpo"] | None = Field(None, description="FINE_TUNING; default: sft")
    training_file: str | None = Field(
        None, description="FINE_TUNING: id of an uploaded file; default: answers of the log"
    )
    config: dict[str, Any] | None = Field(None, description="of the order (jobs.md); RL_TRAINING: with `n_iterations`")
    tenant: str | None = Field(None, min_length=1, description="who pays")


class OptimizeBody(Body):
    """A search for a better version of a prompt: a job of type PROMPT_ENGINEERING."""

    agent_id: str = Field(min_length=1, description="a policy, or an agent that is registered")
    prompt: str = Field(min_length=1, description="its name")
    search: Literal["pairs", "live", "reflection"] = "pairs"
    training_queries: list[dict[str, Any]] = Field(
        [], description="each with `query` and `expected_outcome`; live: for the report alone"
    )
    config: dict[str, Any] | None = Field(None, description="of the order (prompts.md): `max_answers`, `alias`, …")
    tenant: str | None = Field(None, min_length=1, description="who pays")


class PeftBody(Body):
    """A LoRA adapter by supervised training or preferences: a job that makes one version."""

    agent_id: str = Field(min_length=1, description="a policy, which may be new, or an agent that is registered")
    method: Literal["sft", "dpo"] = "sft"
    training_file: str | None = Field(None, description="id of an uploaded file; default: answers of the log")
    config: dict[str, Any] | None = Field(None, description="of the order (jobs.md): `epochs`, `batch`, `start`, …")
    tenant: str | None = Field(None, min_length=1, description="who pays")


JOB_ID = "5b0a3c1e-5d0c-5f0e-9a43-0d6f3c1d2f10"
TRAINING_JOB = TrainingJob(
    id=JOB_ID,
    type=RL_TRAINING,
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
TUNING_JOB = TRAINING_JOB.model_copy(
    update={"type": FINE_TUNING, "config": OrderedConfig(agent_id="coach", n_iterations=1, method="sft")}
)
SEARCH_JOB = TRAINING_JOB.model_copy(
    update={"type": PROMPT_ENGINEERING, "config": OrderedConfig(agent_id="sums", n_iterations=1, method="prompts")}
)
METRICS = TrainingMetrics(
    id=JOB_ID,
    type=RL_TRAINING,
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

    def __init__(self, settings: Settings, log: JobLog) -> None:
        self._settings, self._jobs_of = settings, jobs_of(settings, log)

    @REST.post(
        "/finetune/jobs",
        may="jobs.order",
        further=MOVES_ALIAS,
        **LARGE_BODY,
        ids="GET /adapters lists policies; an agent is what POST /rl/agents wrote",
        status=201,
        parameters=(IDEMPOTENCY_KEY,),
        sends={
            "type": RL_TRAINING,
            "agent_id": "sums",
            "training_queries": [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(10)],
            "config": {"n_iterations": 3},
        },
        example=TRAINING_JOB,
        tools={"start_job": ""},
    )
    def create_training_job(self, request: Request, body: TrainingOrderBody) -> TrainingJob:
        """Order a job that trains a policy by rewards, or tunes it on chosen answers or preferences."""
        jobs = self._jobs_of(request)
        agents = jobs.agents()
        kind = _type_of_order(body, agents)
        for name, types in OF_TYPE.items():
            if kind not in types and getattr(body, name) is not None:
                raise CallError("invalid", f"{name} is for {types[0]}, and this is {kind}: leave it out", name)
        key = idempotency_key(request)
        if kind == PROMPT_ENGINEERING:
            order = self._search(jobs, agents, body)
        else:
            order = self._tuning(jobs, agents, body) if kind == FINE_TUNING else self._by_rewards(jobs, body)
        return _training_job(jobs.start(order, key=key))

    @REST.post(
        "/prompts/optimize",
        may="jobs.order",
        further=MOVES_ALIAS,
        **LARGE_BODY,
        ids="GET /prompts/templates lists prompts, GET /adapters lists policies",
        status=201,
        refuses=(404,),
        parameters=(IDEMPOTENCY_KEY,),
        sends={
            "agent_id": "sums",
            "prompt": "sums",
            "training_queries": [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(10)],
            "config": {"max_answers": 400, "alias": "production"},
        },
        example=SEARCH_JOB,
    )
    def optimize_prompt(self, request: Request, body: OptimizeBody) -> TrainingJob:
        """Order a job that searches for a better version of a prompt."""
        key, jobs = idempotency_key(request), self._jobs_of(request)
        return _training_job(jobs.start(self._search(jobs, jobs.agents(), body), key=key))

    def _search(
        self, jobs: TenantJobs, agents: Mapping[str, KnownAgent], body: TrainingOrderBody | OptimizeBody
    ) -> JobOrder:
        if body.prompt is None:
            raise CallError("invalid", "prompt is missing: name the prompt to find a better version of", "prompt")
        config = {name: value for name, value in (body.config or {}).items() if value is not None}
        if "endpoint" in config:  # a server would ask whatever address it is sent, or run a function
            problem = "config.endpoint is the deployment's over HTTP (scoring.judge_url): leave it out"
            raise CallError("invalid", problem, "config.endpoint")
        agent = agents.get(body.agent_id)
        policy = body.agent_id if agent is None else agent.policy
        if policy not in jobs.policies():
            raise CallError(
                "not_found", f"agent_id: there is no policy and no agent {body.agent_id[:80]!r}", "agent_id"
            )
        fields = {
            "policy": policy,
            "prompt": body.prompt,
            "method": body.search or "pairs",
            "questions": body.training_queries or [],
            "config": config,
            "tenant": jobs.tenant or body.tenant,
        }
        search = search_request.read_request(fields)
        name = None if agent is None else body.agent_id
        order = search_request.order(search, self._settings, prompt_log.read(self._settings), agent=name)
        jobs.check_scorers(order)
        return order

    def _by_rewards(self, jobs: TenantJobs, body: TrainingOrderBody) -> JobOrder:
        fields = body.model_dump(exclude={"type", *OF_TYPE} - {"training_queries"}, exclude_none=True)
        if body.environment is not None:
            fields["environment"] = body.environment.model_dump(exclude_unset=True)
        try:
            return jobs.order(requests.read_request(fields))
        except NotFoundError as exc:
            raise CallError("not_found", str(exc), "agent_id") from exc
        except RefusedError as exc:  # its estimate is over its budget
            raise CallError("invalid", str(exc), "config.max_budget_usd") from exc

    def _tuning(
        self, jobs: TenantJobs, agents: Mapping[str, KnownAgent], body: TrainingOrderBody | PeftBody
    ) -> JobOrder:
        config = {name: value for name, value in (body.config or {}).items() if value is not None}
        agent = agents.get(body.agent_id)
        policy = body.agent_id if agent is None else agent.policy
        fields = {"policy": policy, "method": body.method or "sft", "config": config, "tenant": body.tenant}
        order = tuning_orders.tuning(
            fields,
            body.training_file,
            self._settings,
            jobs.adapters,
            names={"policy": "agent_id"},
            tenant=jobs.tenant,
        )
        return order if agent is None else order.of_agent(body.agent_id)

    @REST.get(
        "/finetune/jobs/{job_id}/status",
        may="jobs.read",
        ids=JOBS_LISTED,
        example=TRAINING_JOB,
        tools={"job_status": ""},
    )
    def get_training_job(self, request: Request, job_id: str) -> TrainingJob:
        """Look at a job."""
        return _training_job(self._jobs_of(request).whole(job_id))

    @REST.post(
        "/finetune/peft",
        may="jobs.order",
        ids="GET /v1/files lists files, GET /adapters lists policies",
        status=201,
        parameters=(IDEMPOTENCY_KEY,),
        sends={
            "agent_id": "coach",
            "method": "sft",
            "training_file": FINE_TUNING_JOB.training_file,
            "config": {"epochs": 2},
        },
        example=TUNING_JOB,
    )
    def create_tuning_job(self, request: Request, body: PeftBody) -> TrainingJob:
        """Order a job that tunes one version, by chosen answers or preferences."""
        key, jobs = idempotency_key(request), self._jobs_of(request)
        return _training_job(jobs.start(self._tuning(jobs, jobs.agents(), body), key=key))

    @REST.get(
        "/rl/training/{job_id}/metrics", may="jobs.read", ids=JOBS_LISTED, example=METRICS, tools={"job_metrics": ""}
    )
    def get_training_metrics(self, request: Request, job_id: str) -> TrainingMetrics:
        """Return the figures of a job, iteration by iteration."""
        jobs = self._jobs_of(request)
        job = jobs.whole(job_id)
        events = jobs.events(job)
        held_out = tool_accuracy_by_version(self._settings, job)
        return TrainingMetrics(
            id=job.job_id,
            type=_type(job),
            status=job.status,
            metrics=ToolFigures(**job_view.metrics(job), tool_accuracy=tool_accuracy(self._settings, job)),
            usage=job.usage.metrics(job.spec.prices),
            iterations=[_figures(event) for event in events if event.kind == "iteration"],
            evaluations=[_figures(event, held_out) for event in events if event.kind == "evaluated"],
        )


def _type_of_order(body: TrainingOrderBody, agents: Mapping[str, KnownAgent]) -> OrderType:
    """Return the type of the job that is ordered: as it says, else by its agent's type."""
    if body.type is not None:
        return body.type
    agent = agents.get(body.agent_id)
    if body.prompt is not None and (agent is None or agent.type == "PROMPT_BASED"):
        return PROMPT_ENGINEERING
    return FINE_TUNING if agent is not None and agent.type == "FINE_TUNED" else RL_TRAINING


def _type(job: JobState) -> OrderType:
    if job.spec.search is not None:
        return PROMPT_ENGINEERING
    return RL_TRAINING if job.spec.tuning is None else FINE_TUNING


def _figures(event: JobEvent, held_out: Mapping[int, float] | None = None) -> IterationFigures:
    """Return the figures of an iteration; of an evaluation with the version's accuracy in calling tools, if it has."""
    place = {"iteration": event.iteration, "version": event.version, "at": moment(event.created_at)}
    accuracy = (held_out or {}).get(event.version or 0)
    tools = {} if accuracy is None else {"tool_accuracy": accuracy}
    return IterationFigures.model_validate(place | dict(event.metrics) | tools)


def _training_job(job: JobState) -> TrainingJob:
    config = {"agent_id": job.spec.agent or job.policy, "n_iterations": job.spec.iterations, **job_view.order(job)}
    return TrainingJob(
        id=job.job_id,
        type=_type(job),
        status=job.status,
        config=OrderedConfig.model_validate(config),
        metrics=JobProgress(iteration=job.iteration, cost_usd=job.cost_usd, **job_view.metrics(job)),
        created_at=moment(job.created_at),
        updated_at=moment(job.updated_at),
        reason=job.reason,
        code=job.code,
        suggested_action=job.suggested_action,
    )
