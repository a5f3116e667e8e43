"""Jobs and what they cost, from the fold of their events that `streamward jobs` shows.

log, archive ──► events of jobs ──► AllJobs ──► rows of jobs, of months
"""

from __future__ import annotations

from typing import Any

from streams.errors import NotFoundError
from streams.jobs import spending, view as job_view
from streams.jobs.all_jobs import AllJobs
from streams.kafka.topics import topics
from streams.tools.archive import history
from streams.tools.views.log_view import LogReader

BY: tuple[spending.CostName, ...] = ("tenant", "month", "policy")


def folded(log: LogReader) -> AllJobs:
    """Return all jobs as of now. Raises LogError if the log cannot be read."""
    jobs = AllJobs(topics(log.settings.topics)["jobs"].partitions)
    source = history.of(log.settings, log.source)
    try:
        bounds = source.bounds(["jobs"])
    except NotFoundError:  # an archive without jobs, or topics that are older than they
        return jobs
    ends = {tp: high for tp, (_, high) in bounds.items()}
    for record in source.read({tp: low for tp, (low, _) in bounds.items()}, ends):
        jobs.take(record)
    return jobs


def data(log: LogReader) -> dict[str, Any]:
    """Return what the page of all jobs shows; for a tenant its own."""
    jobs, own = folded(log), log.tenant
    newest = sorted(jobs.states.values(), key=lambda job: job.created_at, reverse=True)
    costs = spending.costs(jobs.months, BY)
    return {
        "jobs": [job_view.row(job) for job in newest if own in (None, job.tenant)],
        "costs": [row for row in costs if own in (None, row["tenant"])],
    }


def one(log: LogReader, job_id: str) -> dict[str, Any]:
    """Return what the page of a job shows. Raises NotFoundError, also for another tenant's."""
    job = folded(log).states.get(job_id)
    if job is None or log.tenant not in (None, job.tenant):
        raise NotFoundError(f"there is no job {job_id[:80]!r}; /jobs lists all of them")
    return {"job": job_view.whole(job)}
