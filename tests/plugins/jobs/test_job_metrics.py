"""What a controller reports of its jobs."""

from __future__ import annotations

import dataclasses
from typing import Any

from plugins.jobs.controller import gauges
from plugins.jobs.controller.job_metrics import JobMetrics, WatchedJob, figures, month_figures
from plugins.jobs.fold.monthly_spending import MonthBudget
from plugins.jobs.fold.state import JobState, fold
from streams.observability.metrics import Meter
from tests.support.factories import job_event, job_spec
from tests.support.scrape import parse


def watched(status: Any = "running", cost: float | None = 3.0, **changes: Any) -> WatchedJob:
    state = fold(None, job_event("created", spec=job_spec(iterations=8, max_budget_usd=4.0)))
    assert isinstance(state, JobState)
    return WatchedJob(dataclasses.replace(state, status=status, **changes), 1_000, cost)


def test_of_a_running_job_it_says_how_far_it_is_how_long_nothing_came_and_what_is_left() -> None:
    found = figures([watched(iteration=2)], now_ms=61_000)
    assert {metric: value for (metric, labels), value in found.items() if labels == ("default",)} == {
        gauges.JOB_AGE: 60.0,
        gauges.JOB_ITERATIONS: 2,
        gauges.JOB_DONE: 0.25,
        gauges.JOB_SPENT: 3.0,
        gauges.JOB_BUDGET: 0.75,
    }


def test_jobs_are_counted_by_status_and_what_all_of_them_cost_is_added_up() -> None:
    jobs = [watched("completed"), watched("failed", 4.5), watched("queued", None), watched("completed", policy="other")]
    found = figures(jobs, now_ms=0)
    counts = {labels: value for (metric, labels), value in found.items() if metric is gauges.JOBS and value}
    assert counts == {
        ("default", "completed"): 1,
        ("default", "failed"): 1,
        ("default", "queued"): 1,
        ("other", "completed"): 1,
    }
    assert (found[gauges.JOB_SPENT, ("default",)], found[gauges.JOB_SPENT, ("other",)]) == (7.5, 3.0)


def test_a_job_that_does_not_run_is_neither_stuck_nor_near_its_budget() -> None:
    for status in ("queued", "paused", "completed", "failed", "cancelled"):
        found = figures([watched(status, 4.0)], now_ms=10**9)
        assert (found[gauges.JOB_AGE, ("default",)], found[gauges.JOB_BUDGET, ("default",)]) == (0, 0)


def test_every_gauge_of_jobs_is_there_and_those_of_jobs_that_another_controller_has_are_gone() -> None:
    meter = Meter("jobs")
    JobMetrics(meter).look(lambda: [], lambda now_ms: [])
    assert parse(meter.text()).samples == []
    metrics = JobMetrics(meter)
    month = MonthBudget("shop", "2026-11", 25.0, 100.0)
    metrics.look(lambda: [watched(), watched(policy="other")], lambda now_ms: [month])
    wanted = {metric.name: metric.kind for metric in gauges.METRICS if metric.processes == ("jobs",)}
    assert parse(meter.text()).kinds == wanted
    metrics._next_look = 0.0
    metrics.look(lambda: [watched()], lambda now_ms: [])
    assert {sample.labels["policy"] for sample in parse(meter.text()).samples} == {"default"}


def test_what_a_tenant_has_spent_is_said_in_dollars_and_as_a_share_of_what_it_may() -> None:
    found = month_figures([MonthBudget("shop", "2026-11", 25.0, 100.0), MonthBudget("", "2026-11", 7.0, 0.0)])
    assert [found[gauges.TENANT_SPENT, (name,)] for name in ("shop", "")] == [25.0, 7.0]
    assert [found[gauges.TENANT_MONTH, (name,)] for name in ("shop", "")] == [0.25, 0.0]
