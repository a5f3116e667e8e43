"""Jobs and what they cost, from the fold of their events that `streamward jobs` shows.

log, archive ──► events of jobs ──► AllJobs ──► rows of jobs, of months
"""

from __future__ import annotations

from typing import Any

from gateway.page.log_view import LogView
from streams.errors import NotFoundError
from streams.jobs import spending, view as job_view
from streams.jobs.all_jobs import AllJobs
from streams.kafka.topics import topics
from streams.tools.archive import history

BY: tuple[spending.CostName, ...] = ("tenant", "month", "policy")


def folded(view: LogView) -> AllJobs:
    """Return all jobs as of now. Raises LogError if the log cannot be read."""
    jobs = AllJobs(topics(view.settings.topics)["jobs"].partitions)
    source = history.of(view.settings, view.source)
    try:
        bounds = source.bounds(["jobs"])
    except NotFoundError:  # an archive without jobs, or topics that are older than they
        return jobs
    ends = {tp: high for tp, (_, high) in bounds.items()}
    for record in source.read({tp: low for tp, (low, _) in bounds.items()}, ends):
        jobs.take(record)
    return jobs


def data(view: LogView) -> dict[str, Any]:
    """Return what the page of all jobs shows."""
    jobs = folded(view)
    newest = sorted(jobs.states.values(), key=lambda job: job.created_at, reverse=True)
    return {"jobs": [job_view.row(job) for job in newest], "costs": spending.costs(jobs.months, BY)}


def one(view: LogView, job_id: str) -> dict[str, Any]:
    """Return what the page of a job shows. Raises NotFoundError."""
    job = folded(view).states.get(job_id)
    if job is None:
        raise NotFoundError(f"there is no job {job_id[:80]!r}; /jobs lists all of them")
    return {"job": job_view.whole(job)}
