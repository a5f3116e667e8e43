"""The view of jobs says what the fold of their events says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from plugins.jobs.fold import state as job_state
from plugins.jobs.fold.state import TRANSITIONS, JobState
from plugins.jobs.jobs_view import VIEWS as OF_JOBS
from plugins.jobs.log import job_view
from schemas.events import JobEvent, JobKind
from tests.support.appended import Appended
from tests.support.factories import changed, job_event
from tests.support.thoroughness import examples

VIEWS = {view.name: view.sql for view in OF_JOBS}
KINDS: list[JobKind] = [kind for kind in TRANSITIONS if kind != "month_closed"]


def rows(log: Appended, name: str) -> list[dict[str, Any]]:
    with log.connect() as con:
        result = con.sql(VIEWS[name])
        return [dict(zip(result.columns, row, strict=True)) for row in result.fetchall()]


@st.composite
def job_events(draw: st.DrawFn) -> list[JobEvent]:
    """Return events of a job, most of them as a controller would write them, some refused and some twice."""
    events = [job_event("created")]
    job = job_state.fold(None, events[0])
    for number in range(draw(st.integers(0, 12))):
        assert job is not None
        kind = draw(st.sampled_from(["started", "iteration", "evaluated", *KINDS]))
        sequence = 0 if kind == "created" else max(1, job.sequence - draw(st.sampled_from([0, 0, 0, 1])))
        event = job_event(kind, sequence, event_id=f"{number}")
        metrics = {"prompt_tokens": 1000.0 * number, "completion_tokens": 10.0 * number, "trainer_s": 36.0 * number}
        if kind == "iteration":
            event = changed(event, iteration=number, metrics=metrics | {"reward": number / 8})
        elif kind == "evaluated":
            event = changed(event, best=(number,), metrics={**event.metrics, "success": number / 16})
        events.append(event)
        job = job_state.fold(job, event)
        if draw(st.integers(0, 5)) == 0:
            events.append(event)
    return events


@given(job_events())
@settings(max_examples=examples(40), deadline=None)
def test_a_job_is_what_its_fold_says(events: list[JobEvent]) -> None:
    job: JobState | None = None
    for event in events:
        job = job_state.fold(job, event)
    assert job is not None
    (row,) = rows(Appended(*events), "training_jobs")
    expected = job_view.row(job) | {"reason": job.reason}
    for name in ("job_id", "policy", "tenant", "status", "iteration", "total_iterations", "version", "reason", "code"):
        assert row[name] == expected[name], name
    assert row["best"] == list(job.best) and row["cost_usd"] == pytest.approx(job.cost_usd)
    assert (row["prompt_tokens"], row["trainer_s"]) == (job.usage.prompt_tokens, job.usage.trainer_s)
    figures = job_view.metrics(job)
    assert (row["success"], row["success_gain"]) == (figures["success_rate"], figures["success_gain"])
    assert (row["method"], row["ordered_by"], row["budget_usd"]) == ("grpo", "ann", job.spec.max_budget_usd)
