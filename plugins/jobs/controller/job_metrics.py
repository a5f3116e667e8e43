"""The metrics of a controller: number, progress, time without an event, and cost of jobs.

jobs of the partitions owned ──► figures ───┐
what tenants may spend in this month ──► month_figures ──► a value by metric and labels ──► gauges, once a second
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, get_args

from plugins.jobs.controller import gauges
from plugins.jobs.fold.monthly_spending import MonthBudget
from plugins.jobs.fold.state import JobState, JobStatus
from streams.kafka import times
from streams.observability.catalog import Metric
from streams.observability.metrics import Meter

LOOK_EVERY_S = 1.0
OF_RUNNING = (gauges.JOB_AGE, gauges.JOB_ITERATIONS, gauges.JOB_DONE, gauges.JOB_BUDGET)
"""The metrics of a policy's running job, of which there is at most one."""

Figures = Mapping[tuple[Metric, tuple[str, ...]], float]


class WatchedJob(NamedTuple):
    """A job, the time of its newest event, and its cost until now."""

    job: JobState
    event_ms: int
    """Timestamp of the record of its newest event."""
    cost_usd: float | None
    """Until now, what was counted since that event included; None without prices."""


def figures(jobs: Iterable[WatchedJob], now_ms: int) -> Figures:
    """Return the values of all gauges. A policy that has a job has every series of it, so that none is missing at 0."""
    values: dict[tuple[Metric, tuple[str, ...]], float] = {}
    for job, event_ms, cost_usd in jobs:
        policy = (job.policy,)
        for status in get_args(JobStatus):
            values.setdefault((gauges.JOBS, (job.policy, status)), 0)
        for metric in (*OF_RUNNING, gauges.JOB_SPENT):
            values.setdefault((metric, policy), 0.0)
        values[gauges.JOBS, (job.policy, job.status)] += 1
        values[gauges.JOB_SPENT, policy] += cost_usd or 0.0
        if job.status != "running":
            continue
        budget = job.spec.max_budget_usd
        values[gauges.JOB_AGE, policy] = max(0.0, (now_ms - event_ms) / 1000)
        values[gauges.JOB_ITERATIONS, policy] = job.iteration
        values[gauges.JOB_DONE, policy] = job.iteration / job.spec.iterations
        values[gauges.JOB_BUDGET, policy] = 0.0 if cost_usd is None or budget is None else cost_usd / budget
    return values


def month_figures(months: Iterable[MonthBudget]) -> Figures:
    """Return what each tenant has spent. Every controller reads all jobs, so it says that of all tenants."""
    values: dict[tuple[Metric, tuple[str, ...]], float] = {}
    for month in months:
        values[gauges.TENANT_SPENT, (month.tenant,)] = month.spent_usd
        values[gauges.TENANT_MONTH, (month.tenant,)] = month.spent_usd / month.limit_usd if month.limit_usd else 0.0
    return values


class JobMetrics:
    """Reports the jobs of one controller. For the thread that steps."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self._next_look = meter, 0.0
        self._reported: Figures = {}

    def look(self, watched: Callable[[], Iterable[WatchedJob]], months: Callable[[int], Iterable[MonthBudget]]) -> None:
        """Report once a second what is so now; jobs that another controller has by now are forgotten."""
        if not self._meter.on or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        now_ms = times.now_ms()
        values = {**figures(watched(), now_ms), **month_figures(months(now_ms))}
        for metric, labels in self._reported.keys() - values.keys():
            self._meter.set(metric, None, *labels)
        for (metric, labels), value in values.items():
            self._meter.set(metric, value, *labels)
        self._reported = values
