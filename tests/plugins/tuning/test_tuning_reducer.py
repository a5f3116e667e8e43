"""The events of a job that tunes, decided from the log alone."""

from __future__ import annotations

import pytest

from plugins.jobs.fold.monthly_spending import MonthBudget
from plugins.jobs.fold.state import JobState, JobUsage, fold
from plugins.tuning import tuning_reducer
from schemas.events import JobEvent, problems
from tests.plugins.tuning.test_tuning_orders import job
from tests.support.factories import T0, job_event, trained


def after(state: JobState, *events: JobEvent) -> JobState:
    for event in events:
        assert list(problems(event)) == []
        folded = fold(state, event)
        assert folded is not None and folded.sequence == state.sequence + 1, folded
        state = folded
    return state


def test_a_job_that_is_done_has_its_version_and_what_each_epoch_used() -> None:
    running = after(job(), tuning_reducer.start_event(job(), newest=4, groups_next=9, now_ms=T0 + 1))
    assert (running.status, running.version, running.groups_next) == ("running", 4, 9)
    made = trained(
        5, created_at=T0 + 2, metrics={"tokens": 10.0, "context_tokens": 30.0, "tune_s": 7200.0, "loss": 0.5}
    )
    done = after(running, tuning_reducer.version_event(running, made))
    done = after(done, tuning_reducer.completion_event(done))
    assert (done.status, done.version, done.metrics["loss"]) == ("completed", 5, 0.5)
    assert done.usage == JobUsage(60, 20, 7200.0)
    assert done.cost_usd == pytest.approx(60e-6 + 2 * 20e-6 + 2 * 3.0)


def test_a_job_that_continues_begins_with_the_version_and_the_groups_that_it_had() -> None:
    running = after(job(), tuning_reducer.start_event(job(), newest=4, groups_next=9, now_ms=T0))
    paused = after(running, job_event("paused", 2), job_event("resumed", 3))
    again = after(paused, tuning_reducer.start_event(paused, newest=6, groups_next=99, now_ms=T0))
    assert (again.version, again.groups_next) == (4, 9)


def test_between_steps_a_job_ends_that_is_over_its_budget_or_its_tenants() -> None:
    running = after(job(max_budget_usd=2.0), tuning_reducer.start_event(job(), newest=0, groups_next=0, now_ms=T0))
    whole = JobUsage(1_000_000, 1_000_000)  # 3 USD
    assert tuning_reducer.budget_event(running, tuning_reducer.usage_after(1, 2, whole, 0.0), None, T0) is None
    over = tuning_reducer.budget_event(running, tuning_reducer.usage_after(2, 2, whole, 0.0), None, T0)
    assert over is not None and after(running, over).code == "BUDGET_EXCEEDED"
    month = MonthBudget("shop", "2026-11", 99.0, 100.0)
    over = tuning_reducer.budget_event(running, tuning_reducer.usage_after(1, 2, whole, 0.0), month, T0)
    assert over is not None and "100.5000 USD of 100.0000 are spent that are for tenant shop in 2026-11" in over.reason
    assert after(running, over).usage == JobUsage(500_000, 500_000)
