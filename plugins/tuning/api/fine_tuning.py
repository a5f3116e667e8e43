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
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Body, PathQuery, read, read_query
from gateway.http.pagination import page
from gateway.http.route import IDEMPOTENCY_KEY, OPENAI, idempotency_key
from plugins.jobs.api import job_rights
from plugins.jobs.api.tenant_jobs import OpenJobs, TenantJobs, jobs_of
from plugins.jobs.fold.state import JobState
from plugins.jobs.log.job_log import JobCommandKind
from plugins.jobs.orders.request import JobOrder
from plugins.tuning.api import fine_tuning_view as view, tuning_orders
from plugins.tuning.api.fine_tuning_answers import (
    FINE_TUNING_JOB,
    CheckpointFigures,
    FineTuningCheckpoint,
    FineTuningCheckpointList,
    FineTuningEvent,
    FineTuningEventData,
    FineTuningEventList,
    FineTuningJob,
    FineTuningJobList,
)
from plugins.tuning.api.fine_tuning_body import CreateFineTuningBody, FineTuningOrder
from schemas.events import JobEvent
from streams.adapters import training_files
from streams.adapters.versions import read_state
from streams.errors import CallError, JobRequestError, NotFoundError
from streams.kafka import times
from streams.settings.model import Settings

RETRIED_MS = 600_000
"""How long after an order its client may send it again, as its own retry."""
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


EVENT = FineTuningEvent(
    id="c1d3e2f4-0a3d-5f7e-9b4e-2f1c7d9a3b22",
    object="fine_tuning.job.event",
    created_at=1767225600,
    level="info",
    message="iteration: version 9",
    type="metrics",
    data=FineTuningEventData.model_validate({"kind": "iteration", "step": 2, "actor": "controller", "reward": 0.62}),
)
CHECKPOINT = FineTuningCheckpoint(
    id="d1d3e2f4-0a3d-5f7e-9b4e-2f1c7d9a3b22",
    object="fine_tuning.job.checkpoint",
    created_at=1767225600,
    fine_tuned_model_checkpoint="sums@9",
    fine_tuning_job_id=FINE_TUNING_JOB.id,
    metrics=CheckpointFigures.model_validate({"step": 2, "success": 0.75}),
    step_number=2,
)


def _with_status(status: str) -> FineTuningJob:
    """Return the example of a job after a command."""
    return FINE_TUNING_JOB.model_copy(update={"status": status, "fine_tuned_model": None})


COMMAND: dict[str, Any] = {
    "may": job_rights.COMMAND,
    "answers": FineTuningJob,
    "refuses": (400, 404, 408, 409, 413),
    "parameters": (IDEMPOTENCY_KEY,),
}


class MetadataFilter(NamedTuple):
    """Which jobs are listed, by the metadata that they were ordered with."""

    wanted: dict[str, str]
    without: bool
    """Only those without any."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> tuple[MetadataFilter, list[tuple[str, str]]]:
        """Return what a query says of metadata, and its other parameters. Raises CallError."""
        others, wanted, without = [], dict[str, str](), False
        for name, value in pairs:
            if (match := OF_METADATA.fullmatch(name)) is not None:
                wanted[match[1]] = value
            elif (name, value) == ("metadata", "null"):
                without = True
            else:
                others.append((name, value))
        if without and wanted:
            raise CallError("invalid", "metadata=null and metadata[…] contradict each other; send one", "metadata")
        return cls(wanted, without), others

    def fits(self, events: Sequence[JobEvent]) -> bool:
        """Return whether a job with these events is listed."""
        metadata = view.metadata(events)
        if self.without:
            return metadata is None
        return self.wanted.items() <= (metadata or {}).items()


class FineTuning:
    """Jobs as OpenAI's clients order them. Methods wait for the broker, or the store."""

    def __init__(self, settings: Settings, log: OpenJobs, *, fleet: bool = False) -> None:
        """`fleet`: a job may train any policy that the fleet serves; else that of the settings."""
        self._settings, self._jobs_of, self._fleet = settings, jobs_of(settings, log), fleet

    @OPENAI.post(
        "/fine_tuning/jobs",
        may=job_rights.ORDER,
        parameters=(IDEMPOTENCY_KEY,),
        sends={
            "model": FINE_TUNING_JOB.model,
            "training_file": FINE_TUNING_JOB.training_file,
            "method": FINE_TUNING_JOB.method,
        },
        example=FINE_TUNING_JOB.model_copy(
            update={"fine_tuned_model": None, "finished_at": None, "status": "queued", "trained_tokens": None}
        ),
    )
    def create_fine_tuning_job(self, request: Request, body: CreateFineTuningBody) -> FineTuningJob:
        """Order a job, as OpenAI's clients do."""
        jobs, key = self._jobs_of(request), idempotency_key(request)
        settings = self._settings_of(body.model, jobs)
        if body.method.type == "reinforcement":
            order = self._on_questions(body, settings, jobs)
        else:
            order = tuning_orders.fine_tuning(body, settings, jobs.adapters, jobs.tenant)
        is_retry = request.headers.get("x-stainless-retry-count", "0") != "0"
        if key is None and is_retry and (job := _same_order(jobs, order)) is not None:
            return _answer(jobs, job)
        try:
            return _answer(jobs, jobs.start(order, key=key))
        except JobRequestError as exc:  # more questions than a record holds
            raise CallError("invalid", str(exc).replace("training_queries", "training_file"), "training_file") from exc

    @OPENAI.get(
        "/fine_tuning/jobs",
        may=job_rights.READ,
        query=JobsQuery,
        example=FineTuningJobList(**page([FINE_TUNING_JOB], None, 20)),
    )
    def list_fine_tuning_jobs(self, request: Request) -> FineTuningJobList:
        """List jobs, the newest first. `metadata[NAME]=VALUE` lists those that were ordered with it."""
        metadata, parameters = MetadataFilter.of(request.query_params.multi_items())
        query, jobs = read_query(JobsQuery, parameters), self._jobs_of(request)
        jobs_with_events = [(job, jobs.events(job)) for job in reversed(list(jobs.jobs.values()))]
        listed = [view.job(job, events) for job, events in jobs_with_events if metadata.fits(events)]
        return FineTuningJobList(**page(listed, query.after, query.limit))

    @OPENAI.get("/fine_tuning/jobs/{job_id}", may=job_rights.READ, example=FINE_TUNING_JOB)
    def get_fine_tuning_job(self, request: Request, job_id: str) -> FineTuningJob:
        """Look at a job."""
        jobs = self._jobs_of(request)
        return _answer(jobs, jobs.whole(job_id))

    @OPENAI.get(
        "/fine_tuning/jobs/{job_id}/events", may=job_rights.READ, example=FineTuningEventList(**page([EVENT], None, 20))
    )
    def list_fine_tuning_events(self, request: Request, job_id: str, query: EventsQuery) -> FineTuningEventList:
        """List what happened to a job, the newest first."""
        jobs = self._jobs_of(request)
        events = [view.event(event) for event in reversed(jobs.events(jobs.whole(job_id)))]
        return FineTuningEventList(**page(events, query.after, query.limit))

    @OPENAI.get(
        "/fine_tuning/jobs/{job_id}/checkpoints",
        may=job_rights.READ,
        example=FineTuningCheckpointList(**page([CHECKPOINT], None, 10)),
    )
    def list_fine_tuning_checkpoints(
        self, request: Request, job_id: str, query: CheckpointsQuery
    ) -> FineTuningCheckpointList:
        """List the versions that a job made and that can be asked for, the newest first."""
        jobs = self._jobs_of(request)
        job = jobs.whole(job_id)
        versions = read_state(self._settings, job.policy).versions
        usable = {number for number, version in versions.items() if version.status != "retired"}
        checkpoints = view.checkpoints(job, jobs.events(job), usable)
        return FineTuningCheckpointList(**page(checkpoints, query.after, query.limit))

    @OPENAI.post("/fine_tuning/jobs/{job_id}/pause", **COMMAND, example=_with_status("paused"))
    def pause_fine_tuning_job(self, request: Request, job_id: str, raw: bytes) -> FineTuningJob:
        """Pause a job."""
        return self._command(request, job_id, "paused", raw)

    @OPENAI.post("/fine_tuning/jobs/{job_id}/resume", **COMMAND, example=_with_status("queued"))
    def resume_fine_tuning_job(self, request: Request, job_id: str, raw: bytes) -> FineTuningJob:
        """Resume a job."""
        return self._command(request, job_id, "resumed", raw)

    @OPENAI.post("/fine_tuning/jobs/{job_id}/cancel", **COMMAND, example=_with_status("cancelled"))
    def cancel_fine_tuning_job(self, request: Request, job_id: str, raw: bytes) -> FineTuningJob:
        """Cancel a job."""
        return self._command(request, job_id, "cancelled", raw)

    def _command(self, request: Request, job_id: str, kind: JobCommandKind, raw: bytes) -> FineTuningJob:
        """Pause, resume or cancel. Raises as TenantJobs.command."""
        if raw.strip():
            read(NothingBody, raw)
        key, jobs = idempotency_key(request), self._jobs_of(request)
        job = jobs.whole(job_id)
        return _answer(jobs, jobs.command(job.job_id, kind, reason="asked for", key=key))

    def _settings_of(self, model: str, jobs: TenantJobs) -> Settings:
        """Return the settings of the server that has a model: of a fleet those of the policy, if it has a version."""
        if not self._fleet or model not in jobs.policies() or not self._settings.fleet.serves(model):
            return self._settings
        policy = self._settings.policy.model_copy(update={"name": model})
        return self._settings.model_copy(update={"policy": policy})

    def _on_questions(self, body: CreateFineTuningBody, settings: Settings, jobs: TenantJobs) -> JobOrder:
        """Return a job on the questions of a file. Raises CallError."""
        store = self._settings.adapters.store
        try:
            raw = training_files.content(store, body.training_file, jobs.tenant)
            lines = training_files.lines_of(raw)
        except NotFoundError as exc:
            raise CallError("not_found", f"training_file: {exc}", "training_file") from exc
        except JobRequestError as exc:
            raise CallError("invalid", f"training_file: {exc}", "training_file") from exc
        return FineTuningOrder(body, lines).job(settings)


def _same_order(jobs: TenantJobs, order: JobOrder) -> JobState | None:
    """Return the job that the same order made within RETRIED_MS."""
    since = times.now_ms() - RETRIED_MS
    for job in reversed(list(jobs.jobs.values())):
        if job.request_digest == order.digest and job.created_at >= since:
            return job
    return None


def _answer(jobs: TenantJobs, job: JobState) -> FineTuningJob:
    return view.job(job, jobs.events(job))
