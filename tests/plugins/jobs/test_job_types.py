"""The type of a job is one that a loaded plugin declares, and one of none is listed all the same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from plugins.jobs.controller import controller
from plugins.jobs.controller.controller import JobController
from plugins.jobs.fold.state import JobState, JobUsage, fold
from plugins.jobs.log import job_view
from plugins.jobs.orders import job_types, rl_training
from schemas.events import JobTuning
from tests.support.factories import job_event, job_spec


def tuning_job() -> JobState:
    spec = replace(job_spec(), questions=(), tuning=JobTuning(method="sft", epochs=1, batch=8, file_bytes=400))
    job = fold(None, job_event("created", spec=spec))
    assert job is not None
    return job


def test_a_job_of_a_plugin_is_of_its_type_and_not_run_by_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    job = tuning_job()
    assert (job_types.type_name(job), job_types.estimate(job.spec)) == ("FINE_TUNING", JobUsage(0, 100))
    members = SimpleNamespace(has=lambda _: True)
    monkeypatch.setattr(controller.JobController, "__init__", lambda self: setattr(self, "_members", members))
    runner = JobController()  # type: ignore[call-arg]
    assert runner._runs_here(replace(job, spec=job_spec())) and not runner._runs_here(job)


def test_a_job_whose_plugin_is_not_loaded_is_listed_and_expected_to_use_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_types, "job_types", lambda: rl_training.TYPES)
    job = tuning_job()
    assert (job_types.type_name(job), job_types.estimate(job.spec)) == ("NOT_LOADED", JobUsage())
    assert job_view.whole(job)["order"] == {"method": "not loaded", "prices": job_view.order(job)["prices"]}
    assert job_types.type_name(replace(job, spec=job_spec())) == "RL_TRAINING"
