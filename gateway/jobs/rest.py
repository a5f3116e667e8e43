"""Jobs, agents and environments as Streamward's own REST.

    POST /finetune/jobs {type: RL_TRAINING, …}, /finetune/peft ──► JobLog ──► TrainingJob
    GET  /finetune/jobs/JOB/status, /rl/training/JOB/metrics ◄── its fold
    POST /rl/agents ──► an AgentEvent                POST /rl/environments ──► played three times, and described

The paths are also below /api/v1. Nothing is kept here. Errors have OpenAI's fields, and `details.suggested_action` and
`timestamp` beside them. What has no meaning on this log, such as prompts that are optimized, is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from gateway.agents.routes import NAME
from gateway.http.body import Body, Refused, ToolSchema, Whole, compact, read, sent
from gateway.http.errors import apart
from gateway.http.openapi import IDEMPOTENCY_KEY, Answer, described, requested
from gateway.jobs import tuning_orders
from gateway.jobs.answers import RegisteredAgent, TrainingJob, TrainingMetrics, TriedEnvironment
from gateway.jobs.fine_tuning import idempotency_key
from gateway.jobs.tenant_jobs import TenantJobs, jobs_of
from schemas import json_text
from schemas.events import AgentEvent, AgentType, EpisodeStart, Tool
from streams.adapters.versions import read_state
from streams.environments.environment_pool import EnvironmentPool
from streams.environments.episodes.environment import Action
from streams.environments.episodes.trial import TriedEpisode, try_twice
from streams.errors import CallError, CallErrorKind, EventError, NotFoundError, RefusedError
from streams.jobs import job_log, request as requests, view
from streams.jobs.job_log import JobLog
from streams.jobs.state import JobState
from streams.output import moment
from streams.settings.model import Settings
from streams.stages.agents.runs.registration import register

RL_TRAINING, FINE_TUNING = "RL_TRAINING", "FINE_TUNING"
ONLY_RL = (
    "only RL_TRAINING is possible here: a policy learns from rewards. Prompts are not optimized, and POST "
    "/finetune/peft trains on chosen answers"
)
MOST_ACTIONS = 64
DEFAULT_ACTIONS = 32
KINDS: dict[str, CallErrorKind] = {"unknown_environment": "not_found", "not_allowed": "unsupported"}
"""Of an environment's errors, those that are not about how it was asked for."""


class TrainingOrderBody(Body):
    """A job; but for `type` it is the order of `training.start_grpo`."""

    type: Annotated[str, Refused(ONLY_RL, RL_TRAINING)]
    agent_id: str = Field(description="a policy, or an agent that is registered")
    training_queries: list[dict[str, Any]] = Field(description="each with `query` and `expected_outcome`")
    config: dict[str, Any] = Field(description="of the order (jobs.md), with `n_iterations`")
    tenant: str | None = Field(None, min_length=1, description="who pays")


class PeftBody(Body):
    """A LoRA adapter by supervised training or preferences: a job that makes one version."""

    agent_id: str = Field(min_length=1, description="the policy; it may be a new one")
    method: Literal["sft", "dpo"] = "sft"
    training_file: str | None = Field(None, description="id of an uploaded file; default: answers of the log")
    config: dict[str, Any] | None = Field(None, description="of the order (jobs.md): `epochs`, `batch`, `start`, …")
    tenant: str | None = Field(None, min_length=1, description="who pays")


class AgentTool(Body):
    """A function that an agent calls."""

    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    parameters: ToolSchema | None = None


class AgentConfig(Body):
    """What an agent is, as the log has it."""

    agent_id: str = Field(pattern=rf"^{NAME.pattern}$", description="what it is called in paths and tasks")
    name: str | None = Field(None, min_length=1, max_length=200, description="for people; default: agent_id")
    type: AgentType | None = Field(None, description="how it came about; default: PROMPT_BASED")
    model_id: str = Field(description="the policy that answers its calls, or POLICY@7")
    memory_config: dict[str, Any] | None = Field(None, description="recorded")
    capabilities: Annotated[list[str], Field(max_length=100)] | None = Field(None, description="recorded")
    tools: Annotated[list[AgentTool], Field(max_length=100)] | None = Field(None, description="recorded")


class EnvironmentBody(Body):
    """An environment to try."""

    environment: str = Field(min_length=1, max_length=500, description="a listed one, or a reference that is allowed")
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = Field(None, description="default: 0")
    settings: dict[str, Any] | None = Field(None, description="of the environment")
    actions: Annotated[list[str], Field(min_length=1, max_length=MOST_ACTIONS)] | None = Field(
        None, description="what the policy writes; default: at random"
    )
    max_turns: Annotated[Whole, Field(ge=1, le=MOST_ACTIONS)] | None = Field(
        None, description=f"most actions; default: {DEFAULT_ACTIONS}"
    )


BODIES = (TrainingOrderBody, PeftBody, AgentConfig, EnvironmentBody)


class TrainingApi:
    """What the routes do for one request. Methods wait for the broker, or for an environment."""

    def __init__(self, settings: Settings, jobs: TenantJobs) -> None:
        self._settings, self._jobs = settings, jobs

    def start(self, body: TrainingOrderBody, key: str | None) -> dict[str, Any]:
        """Order a job. Raises CallError, and as requests.order and TenantJobs.start."""
        asked = requests.read_request(body.model_dump(exclude={"type"}))
        policies, agents = self._jobs.policies(), self._jobs.agents()
        try:
            order = requests.order(asked, self._settings, policies=policies, agents=agents)
        except NotFoundError as exc:
            raise CallError("not_found", str(exc), "agent_id") from exc
        except RefusedError as exc:  # its estimate is over its budget
            raise CallError("invalid", str(exc), "config.max_budget_usd") from exc
        return _training_job(self._jobs.start(order, key=key))

    def tune(self, body: PeftBody, key: str | None) -> dict[str, Any]:
        """Order a job that tunes. Raises CallError, and as TenantJobs.start."""
        config = {name: value for name, value in (body.config or {}).items() if value is not None}
        given = {"policy": body.agent_id, "method": body.method, "config": config, "tenant": body.tenant}
        names = {"policy": "agent_id"}
        jobs = self._jobs
        order = tuning_orders.tuning(
            given, body.training_file, self._settings, jobs.adapters, names=names, tenant=jobs.tenant
        )
        return _training_job(self._jobs.start(order, key=key))

    def status(self, job_id: str) -> dict[str, Any]:
        """Return a job. Raises NotFoundError."""
        return _training_job(self._jobs.whole(job_id))

    def metrics(self, job_id: str) -> dict[str, Any]:
        """Return the figures of a job, iteration by iteration. Raises NotFoundError."""
        job = self._jobs.whole(job_id)
        figures: dict[str, list[dict[str, Any]]] = {"iteration": [], "evaluated": []}
        for event in self._jobs.events(job):
            if event.kind in figures:
                at = {"iteration": event.iteration, "version": event.version, "at": moment(event.created_at)}
                figures[event.kind].append(at | dict(event.metrics))
        return {
            "id": job.job_id,
            "type": _type(job),
            "status": job.status,
            "metrics": dict(view.metrics(job)),
            "usage": job.usage.metrics(job.spec.prices),
            "iterations": figures["iteration"],
            "evaluations": figures["evaluated"],
        }

    def register(self, body: AgentConfig, key: str | None) -> dict[str, Any]:
        """Write what an agent is. Raises CallError for a model that there is not, and as `register`."""
        policy, at, number = body.model_id.partition("@")
        known = policy in job_log.known_policies(self._settings)
        versions = read_state(self._settings, policy).versions if known and at else {}
        if not known or (at and (not number.isdecimal() or len(number) > 9 or int(number) not in versions)):
            what = f"model_id: there is no model {body.model_id[:80]!r}; GET /v1/models lists what is served"
            raise CallError("not_found", what, "model_id")
        event = AgentEvent(
            event_id="",
            agent_id=body.agent_id,
            created_at=0,
            kind="registered",
            name=body.name or body.agent_id,
            type=body.type or "PROMPT_BASED",
            model_id=body.model_id,
            memory_config=compact(body.memory_config or {}, "memory_config"),
            capabilities=tuple(body.capabilities or ()),
            tools=tuple(
                Tool(
                    name=one.name, description=one.description or "", parameters=compact(one.parameters or {}, "tools")
                )
                for one in body.tools or ()
            ),
        )
        return _agent(register(self._settings, event, key=key))

    def environment(self, body: EnvironmentBody) -> dict[str, Any]:
        """Play an episode three times, and describe the environment. Raises CallError, naming what is wrong with it."""
        settings = compact(body.settings or {}, "settings")
        start = EpisodeStart(name=body.environment, settings=settings, seed=body.seed or 0)
        actions = None if body.actions is None else [Action(text) for text in body.actions]
        with closing(EnvironmentPool(self._settings.environments)) as pool:
            try:
                tried = try_twice(pool.open, start, body.max_turns or DEFAULT_ACTIONS, actions)
            except EventError as exc:
                parameter = "settings" if exc.reason == "bad_settings" else "environment"
                raise CallError(KINDS.get(exc.reason, "invalid"), str(exc), parameter) from exc
        return _environment(body, tried)


def _order(body: type[Body], name: str, answer: type[Answer]) -> dict[str, Any]:
    """Return what a route says of itself that writes something once."""
    return requested(body, name=name, answer=answer, status=201, parameters=[IDEMPOTENCY_KEY])


def routes(settings: Settings, log: JobLog, *, max_body_bytes: int) -> APIRouter:
    """Return the routes; a request with a longer body is refused."""
    router, jobs = APIRouter(), jobs_of(settings, log)

    def api(request: Request) -> TrainingApi:
        return TrainingApi(settings, jobs(request))

    trying = asyncio.Lock()

    @router.post("/finetune/jobs", **_order(TrainingOrderBody, "create_training_job", TrainingJob))
    async def start(request: Request) -> Response:
        """Order a job that trains a policy by rewards."""
        body = read(TrainingOrderBody, await sent(request, max_body_bytes))
        return JSONResponse(await apart(api(request).start, body, idempotency_key(request)), 201)

    @router.get(
        "/finetune/jobs/{job_id}/status", **described(name="get_training_job", answer=TrainingJob, refuses=(404,))
    )
    async def status(request: Request, job_id: str) -> Response:
        """Look at a job."""
        return JSONResponse(await apart(api(request).status, job_id))

    @router.post("/finetune/peft", **_order(PeftBody, "create_tuning_job", TrainingJob))
    async def peft(request: Request) -> Response:
        """Order a job that tunes one version, by chosen answers or preferences."""
        body = read(PeftBody, await sent(request, max_body_bytes))
        return JSONResponse(await apart(api(request).tune, body, idempotency_key(request)), 201)

    @router.post(
        "/rl/environments",
        **requested(EnvironmentBody, name="try_environment", answer=TriedEnvironment, refuses=(404,)),
    )
    async def environment(request: Request) -> Response:
        """Play an episode of an environment three times, and say what it shows."""
        body = read(EnvironmentBody, await sent(request, max_body_bytes))
        async with trying:  # one at a time: each may take minutes, and a process of its own
            return JSONResponse(await apart(api(request).environment, body))

    @router.post("/rl/agents", **_order(AgentConfig, "register_agent", RegisteredAgent))
    async def agent(request: Request) -> Response:
        """Write what an agent is."""
        body = read(AgentConfig, await sent(request, max_body_bytes))
        return JSONResponse(await apart(api(request).register, body, idempotency_key(request)), 201)

    @router.get(
        "/rl/training/{job_id}/metrics",
        **described(name="get_training_metrics", answer=TrainingMetrics, refuses=(404,)),
    )
    async def metrics(request: Request, job_id: str) -> Response:
        """Return the figures of a job, iteration by iteration."""
        return JSONResponse(await apart(api(request).metrics, job_id))

    return router


def _type(job: JobState) -> str:
    return RL_TRAINING if job.spec.tuning is None else FINE_TUNING


def _training_job(job: JobState) -> dict[str, Any]:
    return {
        "id": job.job_id,
        "type": _type(job),
        "status": job.status,
        "config": {"agent_id": job.spec.agent or job.policy, "n_iterations": job.spec.iterations, **view.order(job)},
        "metrics": {"iteration": job.iteration, "cost_usd": job.cost_usd, **view.metrics(job)},
        "created_at": moment(job.created_at),
        "updated_at": moment(job.updated_at),
        "reason": job.reason,
        "code": job.code,
        "suggested_action": job.suggested_action,
    }


def _agent(event: AgentEvent) -> dict[str, Any]:
    return {
        "agent_id": event.agent_id,
        "name": event.name,
        "type": event.type,
        "model_id": event.model_id,
        "memory_config": _value(event.memory_config),
        "capabilities": list(event.capabilities),
        "tools": _tools(event.tools),
        "created_at": moment(event.created_at),
    }


def _environment(body: EnvironmentBody, tried: TriedEpisode) -> dict[str, Any]:
    return {
        "environment": tried.observed[0].environment,
        "seed": tried.observed[0].seed,
        "settings": body.settings or {},
        "deterministic": True,
        "messages": [{"role": one.role, "content": one.content} for one in tried.shown.messages],
        "tools": _tools(tried.shown.tools),
        "digest": tried.observed[0].digest,
        "actions": len(tried.steps),
        "ended": bool(tried.steps) and tried.steps[-1][1].ended,
        "success": tried.success,
    }


def _tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [asdict(one) | {"parameters": _value(one.parameters)} for one in tools]


def _value(text: str) -> Any:
    """Return what JSON text says; what is none stays text."""
    try:
        return json_text.parse(text)
    except ValueError:
        return text
