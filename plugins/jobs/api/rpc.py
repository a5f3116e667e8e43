"""Jobs over HTTP: JSON-RPC 2.0 at /api/v1/jsonrpc and /jsonrpc.

    POST ──► jsonrpc.py ──► training.start_grpo, … ──► JobLog: an event, and its own fold ──► the job

Nothing is kept here: what a job is, the log says. A command is answered once the fold of this process has passed its
event. With the header Idempotency-Key, or the parameter `idempotency_key`, a request that is sent again has its effect
once. What a key may do is decided method by method, in a batch too: the door sees a path, and not what is in the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from gateway.http import errors, jsonrpc
from gateway.http.body import Body
from gateway.http.jsonrpc import INVALID_PARAMS, RpcError, RpcMethod
from gateway.http.principal import principal_of
from gateway.http.request_record import RecordedCall, RequestRecord, record_of
from gateway.http.route import LARGE_BODY, Interface, MethodTool
from plugins.jobs.api import job_rights
from plugins.jobs.api.answers import RpcOutcome
from plugins.jobs.api.tenant_jobs import OpenJobs, TenantJobs, jobs_of
from plugins.jobs.fold.job_answers import JobAnswers, answers, tool_accuracy, tool_accuracy_by_version
from plugins.jobs.fold.questions import suite, suite_name
from plugins.jobs.fold.state import JobState, JobStatus
from plugins.jobs.log import job_view
from plugins.jobs.log.job_log import JobCommandKind
from plugins.jobs.orders import request as requests
from streams.access.credentials import mask
from streams.access.roles import Action, Decision, Principal, decide
from streams.adapters.versions import read_state
from streams.errors import CallError, JobRequestError, LogError, NotFoundError, RefusedError
from streams.evaluation import suite_tasks as evaluation
from streams.kafka import times
from streams.output import json_line, moment
from streams.settings.model import Settings
from streams.stages.tasks.submit import submit

RPC = Interface(("/api/v1", ""), errors.RPC)
JOB_ID = "5b0a3c1e-5d0c-5f0e-9a43-0d6f3c1d2f10"
NOT_FOUND, REFUSED, UNREACHABLE, FORBIDDEN = -32001, -32002, -32003, -32403
"""Codes of our own: no such job or agent; a rule or another command forbids it; the log does not answer; the key may
not."""
ACTIONS: dict[str, Action] = {
    "training.start_grpo": job_rights.ORDER,
    "training.get_status": job_rights.READ,
    "training.evaluate": job_rights.COMMAND,
    "training.export_trajectories": job_rights.READ,
    "training.list_jobs": job_rights.READ,
    "training.cancel": job_rights.COMMAND,
    "training.pause": job_rights.COMMAND,
    "training.resume": job_rights.COMMAND,
}
"""What each method does. To evaluate is to ask the policy for answers, at the job's cost."""
PAGE = 100
"""Jobs, or answers, in one result by default."""

P = TypeVar("P", bound="_Parameters")


class _Parameters(BaseModel):
    """Of one method: strict types, nothing unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class JobName(_Parameters):
    """Which job."""

    job_id: str = Field(min_length=1)


class CommandParameters(JobName):
    """A command."""

    reason: str = Field("asked for", min_length=1, max_length=1000)
    idempotency_key: str | None = Field(None, min_length=1, max_length=200)


class EvaluateParameters(JobName):
    """Which version is measured."""

    version: int | None = Field(None, ge=0, description="default: the newest that the job made")


class ExportParameters(JobName):
    """Which answers."""

    success_only: bool = False
    min_reward: float | None = None
    limit: int = Field(PAGE, ge=0, le=10_000)
    offset: int = Field(0, ge=0)


class ListParameters(_Parameters):
    """Which jobs."""

    agent_id: str | None = None
    status: JobStatus | None = None
    limit: int = Field(PAGE, ge=0, le=10_000)
    offset: int = Field(0, ge=0)


class RpcCall(Body):
    """One request in JSON-RPC; without `id` it is a notification, and not answered."""

    jsonrpc: Literal["2.0"]
    method: str = Field(json_schema_extra={"enum": list(ACTIONS)})
    params: dict[str, Any] | list[Any] = Field({}, description="of the method (jobs.md)")
    id: str | float | None = None


class JobsOverHttp:
    """The methods of one request, over the jobs that its key may see."""

    def __init__(
        self, settings: Settings, jobs: TenantJobs, principal: Principal | None, record: RequestRecord | None = None
    ) -> None:
        self._settings, self._jobs, self._principal, self._record = settings, jobs, principal, record

    def methods(self, key: str | None) -> dict[str, RpcMethod]:
        """Return what can be called; `key` is the request's Idempotency-Key."""
        calls: dict[str, tuple[Callable[[dict[str, Any]], Any], tuple[str, ...]]] = {
            "training.start_grpo": (partial(self._start, key), ("agent_id", "training_queries", "config")),
            "training.get_status": (self._status, ("job_id",)),
            "training.evaluate": (self._evaluate, ("job_id", "version")),
            "training.export_trajectories": (self._export, tuple(ExportParameters.model_fields)),
            "training.list_jobs": (self._list, tuple(ListParameters.model_fields)),
        }
        commands: dict[str, JobCommandKind] = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}
        for name, kind in commands.items():
            calls[f"training.{name}"] = (partial(self._command, kind, key), ("job_id", "reason"))
        return {name: RpcMethod(self._guard(name, call), order) for name, (call, order) in calls.items()}

    def _guard(self, name: str, call: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Awaitable[Any]]:
        """Return a method that is called only if the key may."""

        async def call_if_allowed(parameters: dict[str, Any]) -> Any:
            if self._principal is not None:
                decision = decide(self._principal, ACTIONS[name])
                if self._record is not None:
                    about = str(parameters.get("job_id", ""))
                    self._record.calls.append(RecordedCall(name, ACTIONS[name], decision, about))
                if not decision.allowed:
                    raise RpcError(FORBIDDEN, "permission_denied", _details(decision.why))
            try:
                return await _apart(call, parameters)
            except CallError as exc:  # code that the parameters name, and the key may not have run
                if self._record is not None:
                    self._record.calls[-1:] = [RecordedCall(name, "code.run", Decision(False, exc.message))]
                raise RpcError(FORBIDDEN, "permission_denied", _details(exc.message, exc.parameter)) from exc

        return call_if_allowed

    # each of these runs in a thread of its own: some wait for the broker

    def _start(self, key: str | None, parameters: dict[str, Any]) -> dict[str, Any]:
        parameters = dict(parameters)
        key = parameters.pop("idempotency_key", key)
        if key is not None and not isinstance(key, str):
            raise JobRequestError("idempotency_key has to be a text", "idempotency_key")
        order = self._jobs.order(requests.read_request(parameters))
        return _job_row(self._jobs.start(order, key=key))

    def _status(self, parameters: dict[str, Any]) -> dict[str, Any]:
        job = self._jobs.get(_read(JobName, parameters).job_id)
        row = _job_row(job)
        return row | {"metrics": row["metrics"] | {"tool_accuracy": tool_accuracy(self._settings, job)}}

    def _command(self, kind: JobCommandKind, key: str | None, parameters: dict[str, Any]) -> dict[str, Any]:
        options = _read(CommandParameters, parameters)
        key = options.idempotency_key or key
        return _job_row(self._jobs.command(options.job_id, kind, reason=options.reason, key=key))

    def _evaluate(self, parameters: dict[str, Any]) -> dict[str, Any]:
        options = _read(EvaluateParameters, parameters)
        job = self._jobs.get(options.job_id)
        version = job.version if options.version is None else options.version
        if job.base_version is None or version is None or not job.held_out:
            raise RefusedError(f"job {job.job_id} has not started, or holds no questions out: nothing can be measured")
        if not job.base_version <= version <= (job.version or 0):
            raise NotFoundError(f"job {job.job_id} has versions {job.base_version} to {job.version}, and not {version}")
        figures = read_state(self._settings, job.policy).versions[version].evaluated.get(suite_name(job))
        if figures is None:
            submit(
                self._settings,
                evaluation.evaluation(suite(job), policy=job.policy, version=version, now_ms=times.now_ms()),
            )
        accuracy = {} if figures is None else tool_accuracy_by_version(self._settings, job, version)
        return {
            "job_id": job.job_id,
            "version": version,
            "status": "pending" if figures is None else "completed",
            "held_out": len(job.held_out),
            "metrics": {
                "success_rate": None if figures is None else figures.get("success"),
                "avg_reward": None if figures is None else figures.get("mean_reward"),
                "tool_accuracy": accuracy.get(version),
            },
        }

    def _export(self, parameters: dict[str, Any]) -> dict[str, Any]:
        options = _read(ExportParameters, parameters)
        job = self._jobs.get(options.job_id)
        query = JobAnswers(**options.model_dump(exclude={"job_id"}))
        trajectories = list(answers(self._settings, job, query))
        return {"job_id": job.job_id, "count": len(trajectories), "trajectories": trajectories}

    def _list(self, parameters: dict[str, Any]) -> dict[str, Any]:
        options = _read(ListParameters, parameters)
        jobs = [
            job
            for job in self._jobs.jobs.values()
            if options.agent_id in (None, job.policy, job.spec.agent) and options.status in (None, job.status)
        ]
        page = jobs[options.offset : options.offset + options.limit]
        return {"total": len(jobs), "jobs": [_job_row(job) for job in page]}


class JsonRpc:
    """The route of JSON-RPC."""

    def __init__(self, settings: Settings, log: OpenJobs) -> None:
        self._settings, self._jobs_of = settings, jobs_of(settings, log)

    @RPC.post(
        "/jsonrpc",
        may="models.read",  # what every role may; each call is decided for itself
        takes=RpcCall | Annotated[list[RpcCall], Field(min_length=1, max_length=jsonrpc.MOST_REQUESTS)],
        answers=RpcOutcome | list[RpcOutcome],
        refuses=(),
        also={204: "Done, and none of them is answered"},
        **LARGE_BODY,
        sends={"jsonrpc": "2.0", "method": "training.get_status", "params": {"job_id": JOB_ID}, "id": 1},
        example={"jsonrpc": "2.0", "id": 1, "result": {"job_id": JOB_ID, "status": "running", "iteration": 2}},
        tools={
            "evaluate": MethodTool(
                "training.evaluate",
                EvaluateParameters,
                ACTIONS["training.evaluate"],
                "Measure a version that a job made on the questions that the job holds out.",
            )
        },
        toolsets=("log", "control"),
    )
    async def call_jsonrpc(self, request: Request, raw: bytes) -> Response:
        """Call methods of jobs in JSON-RPC 2.0, one or a batch of them."""
        api = JobsOverHttp(self._settings, self._jobs_of(request), principal_of(request), record_of(request))
        outcome = await jsonrpc.answer(raw, api.methods(request.headers.get("idempotency-key")))
        if outcome is None:
            return Response(status_code=204)
        text = json_line(outcome)  # a record may have numbers that JSON has not
        return Response(text, media_type="application/json")


async def _apart(call: Callable[[dict[str, Any]], Any], parameters: dict[str, Any]) -> Any:
    """Return what a method returns, called in a thread. Raises RpcError."""
    try:
        return await asyncio.to_thread(call, parameters)
    except JobRequestError as exc:
        raise RpcError(INVALID_PARAMS, data=_details(str(exc), exc.parameter)) from exc
    except NotFoundError as exc:
        raise RpcError(NOT_FOUND, "Not found", _details(str(exc))) from exc
    except RefusedError as exc:
        raise RpcError(REFUSED, "Refused", _details(str(exc))) from exc
    except LogError as exc:
        raise RpcError(UNREACHABLE, "The log does not answer", _details(str(exc))) from exc


def _details(message: str, parameter: str | None = None) -> dict[str, Any]:
    parameter = None if parameter is None else mask(parameter)
    return {"message": mask(message), "parameter": parameter, "timestamp": moment(times.now_ms())}


def _read(model: type[P], parameters: dict[str, Any]) -> P:
    try:
        return model.model_validate(parameters)
    except ValidationError as exc:
        raise requests.explain(exc, model, parameters) from exc


def _job_row(job: JobState) -> dict[str, Any]:
    """Return a job as clients read it."""
    return job_view.row(job) | {"metrics": {**job_view.metrics(job), "tool_accuracy": None}}
