"""Jobs and what they cost, from the fold of their events that `streamward jobs` shows.

log, archive ──► events of jobs ──► AllJobs ──► JobList; one job
"""

from __future__ import annotations

from dataclasses import dataclass

from streams.errors import NotFoundError
from streams.jobs import job_view, spending
from streams.jobs.all_jobs import AllJobs
from streams.jobs.state import JobState
from streams.kafka.topics import topics
from streams.output import moment
from streams.tools.archive import history
from streams.tools.views.log_record import RecordField, list_fields
from streams.tools.views.log_view import LogReader, Row
from streams.tools.views.policy_versions import Curve, CurvePoint

COSTS_BY: tuple[spending.CostName, ...] = ("tenant", "month", "policy")


@dataclass(frozen=True)
class JobList:
    """Jobs, the newest first, and costs by month; for a tenant its own."""

    jobs: list[Row]
    costs: list[Row]


@dataclass(frozen=True)
class WholeJob:
    """One job: its order, how far it is, and what it cost."""

    job: Row
    created: str
    updated: str
    curves: list[Curve]
    """Success and mean reward on the questions that are held out, by version."""
    evaluations: list[Row]
    order: list[RecordField]
    usage: list[RecordField]
    refused: list[RecordField]
    """Events that changed nothing, and why."""


def list_jobs(log: LogReader) -> JobList:
    """Return the jobs that a reader may see. Raises LogError if the log cannot be read."""
    jobs, tenant = _all_jobs(log), log.rights.tenant
    newest = sorted(jobs.states.values(), key=lambda job: job.created_at, reverse=True)
    return JobList(
        [job_view.row(job) for job in newest if tenant in (None, job.tenant)],
        [row for row in spending.costs(jobs.months, COSTS_BY) if tenant in (None, row["tenant"])],
    )


def find_job(log: LogReader, job_id: str) -> WholeJob:
    """Return one job. Raises NotFoundError, also for another tenant's."""
    job = _all_jobs(log).states.get(job_id)
    if job is None or log.rights.tenant not in (None, job.tenant):
        raise NotFoundError(f"there is no job {job_id[:80]!r}; /jobs lists all of them")
    return WholeJob(
        job=job_view.row(job),
        created=moment(job.created_at),
        updated=moment(job.updated_at),
        curves=_curves(job),
        evaluations=[job_view.evaluation(result) for result in reversed(job.evaluations)],
        order=list_fields(job_view.order(job)),
        usage=list_fields(job.usage.metrics(None)),
        refused=list_fields(job.refused),
    )


def _curves(job: JobState) -> list[Curve]:
    """Return how the versions of a job did on its held-out questions, with the intervals that were recorded."""
    curves = {name: Curve(name.replace("_", " ")) for name in ("success", "mean_reward")}
    for result in job.evaluations:
        for name, curve in curves.items():
            if (value := result.metrics.get(name)) is not None:
                low, high = (result.metrics.get(f"{name}_{end}", value) for end in ("low", "high"))
                curve.points.append(CurvePoint(result.version, value, low, high))
    return [curve for curve in curves.values() if curve.points]


def _all_jobs(log: LogReader) -> AllJobs:
    """Return all jobs as of now."""
    jobs = AllJobs(topics(log.view.settings.topics)["jobs"].partitions)
    source = history.of(log.view.settings, log.view.source)
    try:
        bounds = source.bounds(["jobs"])
    except NotFoundError:  # an archive without jobs, or topics that are older than they
        return jobs
    ends = {tp: high for tp, (_, high) in bounds.items()}
    for record in source.read({tp: low for tp, (low, _) in bounds.items()}, ends):
        jobs.take(record)
    return jobs
