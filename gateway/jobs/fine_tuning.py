"""Jobs in OpenAI's words, for its clients with another base URL.

    POST /v1/fine_tuning/jobs ──► the file's lines, the body ──► JobLog: an event, and its own fold ──► the job
    GET  /v1/fine_tuning/jobs, …/JOB, …/events, …/checkpoints ◄── the fold
    POST …/JOB/pause, resume, cancel ──► JobLog

Nothing is kept here. A command is answered once the fold of this process has passed its event. With the header
Idempotency-Key a request that is sent again has its effect once; without it, a client's own retry of the same order
within RETRIED_MS is the same job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from gateway.http.body import Body, PathQuery, read, read_query, sent
from gateway.http.errors import apart
from gateway.http.openapi import IDEMPOTENCY_KEY, described, requested
from gateway.http.pagination import page
from gateway.jobs import fine_tuning_view as view, tuning_orders
from gateway.jobs.answers import (
    FineTuningCheckpointList,
    FineTuningEventList,
    FineTuningJob,
    FineTuningJobList,
)
from gateway.jobs.fine_tuning_body import CreateFineTuningBody, FineTuningOrder
from gateway.jobs.tenant_jobs import TenantJobs, jobs_of
from streams.adapters.versions import read_state
from streams.errors import CallError, JobRequestError, NotFoundError
from streams.jobs import training_files
from streams.jobs.job_log import JobCommandKind, JobLog
from streams.jobs.request import JobOrder
from streams.jobs.state import JobState
from streams.kafka import times
from streams.settings.model import Settings

RETRIED_MS = 600_000
"""How long after an order its client may send it again, as its own retry."""
LONGEST_KEY = 200
OF_METADATA = re.compile(r"metadata\[(.+)\]")
Limit = Annotated[int, Field(ge=0, le=10_000)]


class JobsQuery(PathQuery):
    """Which jobs."""

    after: str | None = None
    limit: Limit = 20


class EventsQuery(PathQuery):
    """Which events."""

    after: str | None = None
    limit: Limit = 20


class CheckpointsQuery(PathQuery):
    """Which checkpoints."""

    after: str | None = None
    limit: Limit = 10


class NothingBody(Body):
    """The body of a command."""


class FineTuning:
    """The jobs that one request may see. Methods wait for the broker, or the store."""

    def __init__(self, settings: Settings, jobs: TenantJobs, *, fleet: bool = False) -> None:
        """`fleet`: a job may train any policy that the fleet serves; else that of the settings."""
        self._settings, self._jobs, self._fleet = settings, jobs, fleet

    def create(self, body: CreateFineTuningBody, key: str | None, retried: bool) -> dict[str, Any]:
        """Order a job. Raises CallError, and as TenantJobs.start."""
        settings = self._settings_of(body.model)
        if body.method.type == "reinforcement":
            order = self._on_questions(body, settings)
        else:
            order = tuning_orders.fine_tuning(body, settings, self._jobs.adapters, self._jobs.tenant)
        if key is None and retried:
            since = times.now_ms() - RETRIED_MS
            for job in reversed(list(self._jobs.jobs.values())):
                if job.request_digest == order.digest and job.created_at >= since:
                    return self._shown(job)
        try:
            return self._shown(self._jobs.start(order, key=key))
        except JobRequestError as exc:  # more questions than a record holds
            raise CallError("invalid", str(exc).replace("training_queries", "training_file"), "training_file") from exc

    def _settings_of(self, model: str) -> Settings:
        """Return the settings of the server that has a model: of a fleet those of the policy, if it has a version."""
        if not self._fleet or model not in self._jobs.policies() or not self._settings.fleet.serves(model):
            return self._settings
        own = self._settings.policy.model_copy(update={"name": model})
        return self._settings.model_copy(update={"policy": own})

    def _on_questions(self, body: CreateFineTuningBody, settings: Settings) -> JobOrder:
        """Return a job on the questions of a file. Raises CallError."""
        store = self._settings.adapters.store
        try:
            raw = training_files.content(store, body.training_file, self._jobs.tenant)
            lines = training_files.lines_of(raw)
        except NotFoundError as exc:
            raise CallError("not_found", f"training_file: {exc}", "training_file") from exc
        except JobRequestError as exc:
            raise CallError("invalid", f"training_file: {exc}", "training_file") from exc
        return FineTuningOrder(body, lines).job(settings)

    def get(self, job_id: str) -> dict[str, Any]:
        """Return a job. Raises NotFoundError."""
        return self._shown(self._jobs.whole(job_id))

    def listed(self, wanted: Mapping[str, str] | None, *, without: bool = False) -> list[dict[str, Any]]:
        """Return jobs, the newest first; with these metadata, or without any."""
        found = []
        for job in reversed(list(self._jobs.jobs.values())):
            events = self._jobs.events(job)
            noted = view.metadata(events)
            if (without and noted is None) or (not without and (wanted or {}).items() <= (noted or {}).items()):
                found.append(view.job(job, events))
        return found

    def command(self, job_id: str, kind: JobCommandKind, key: str | None) -> dict[str, Any]:
        """Pause, resume or cancel. Raises as TenantJobs.command."""
        job = self._jobs.whole(job_id)
        return self._shown(self._jobs.command(job.job_id, kind, reason="asked for", key=key))

    def events(self, job_id: str) -> list[dict[str, Any]]:
        """Return the events of a job, the newest first. Raises NotFoundError."""
        return [view.event(one) for one in reversed(self._jobs.events(self._jobs.whole(job_id)))]

    def checkpoints(self, job_id: str) -> list[dict[str, Any]]:
        """Return the checkpoints of a job, the newest first. Raises NotFoundError, LogError."""
        job = self._jobs.whole(job_id)
        versions = read_state(self._settings, job.policy).versions
        usable = {number for number, one in versions.items() if one.status != "retired"}
        return view.checkpoints(job, self._jobs.events(job), usable)

    def _shown(self, job: JobState) -> dict[str, Any]:
        return view.job(job, self._jobs.events(job))


def routes(settings: Settings, log: JobLog, *, max_body_bytes: int, fleet: bool = False) -> APIRouter:
    """Return the routes; a request with a longer body is refused."""
    router = APIRouter(prefix="/v1/fine_tuning/jobs")
    jobs = jobs_of(settings, log)

    def api(request: Request) -> FineTuning:
        return FineTuning(settings, jobs(request), fleet=fleet)

    @router.post(
        "",
        **requested(
            CreateFineTuningBody, name="create_fine_tuning_job", answer=FineTuningJob, parameters=[IDEMPOTENCY_KEY]
        ),
    )
    async def create(request: Request) -> Response:
        """Order a job, as OpenAI's clients do."""
        body = read(CreateFineTuningBody, await sent(request, max_body_bytes))
        retried = request.headers.get("x-stainless-retry-count", "0") != "0"
        return JSONResponse(await apart(api(request).create, body, idempotency_key(request), retried))

    @router.get(
        "", **described(query=JobsQuery, name="list_fine_tuning_jobs", answer=FineTuningJobList, refuses=(404,))
    )
    async def list_(request: Request) -> Response:
        """List jobs, the newest first. `metadata[NAME]=VALUE` lists those that were ordered with it."""
        pairs, wanted, without = [], dict[str, str](), False
        for name, value in request.query_params.multi_items():
            if (found := OF_METADATA.fullmatch(name)) is not None:
                wanted[found[1]] = value
            elif (name, value) == ("metadata", "null"):
                without = True
            else:
                pairs.append((name, value))
        if without and wanted:
            raise CallError("invalid", "metadata=null and metadata[…] contradict each other; send one", "metadata")
        asked = read_query(JobsQuery, pairs)
        return JSONResponse(page(api(request).listed(wanted, without=without), asked.after, asked.limit))

    @router.get("/{job_id}", **described(name="get_fine_tuning_job", answer=FineTuningJob, refuses=(404,)))
    async def retrieve(request: Request, job_id: str) -> Response:
        """Look at a job."""
        return JSONResponse(await apart(api(request).get, job_id))

    @router.get(
        "/{job_id}/events",
        **described(query=EventsQuery, name="list_fine_tuning_events", answer=FineTuningEventList, refuses=(404,)),
    )
    async def events(request: Request, job_id: str) -> Response:
        """List what happened to a job, the newest first."""
        asked = read_query(EventsQuery, request.query_params.multi_items())
        return JSONResponse(page(await apart(api(request).events, job_id), asked.after, asked.limit))

    @router.get(
        "/{job_id}/checkpoints",
        **described(
            query=CheckpointsQuery,
            name="list_fine_tuning_checkpoints",
            answer=FineTuningCheckpointList,
            refuses=(404,),
        ),
    )
    async def checkpoints(request: Request, job_id: str) -> Response:
        """List the versions that a job made and that can be asked for, the newest first."""
        asked = read_query(CheckpointsQuery, request.query_params.multi_items())
        return JSONResponse(page(await apart(api(request).checkpoints, job_id), asked.after, asked.limit))

    def add(name: str, kind: JobCommandKind) -> None:
        @router.post(
            f"/{{job_id}}/{name}",
            name=name,
            description=f"{name.capitalize()} a job.",
            **described(
                name=f"{name}_fine_tuning_job",
                answer=FineTuningJob,
                refuses=(400, 404, 408, 409, 413),
                parameters=[IDEMPOTENCY_KEY],
            ),
        )
        async def command(request: Request, job_id: str) -> Response:
            if (raw := await sent(request, max_body_bytes)).strip():
                read(NothingBody, raw)
            return JSONResponse(await apart(api(request).command, job_id, kind, idempotency_key(request)))

    add("pause", "paused")
    add("resume", "resumed")
    add("cancel", "cancelled")
    return router


def idempotency_key(request: Request) -> str | None:
    """Return what tells this request from others. Raises CallError for one that is empty or too long."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= LONGEST_KEY:
        raise CallError(
            "invalid", f"Idempotency-Key has {len(key)} characters; 1 to {LONGEST_KEY} are allowed", "Idempotency-Key"
        )
    return key
