"""A job through the real loop, on a tiny model, while its controller and its trainer are killed."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from plugins.jobs.log.job_log import JobLog
from plugins.jobs.orders.request import JobOrder
from schemas.events import JobEvent, JobPrices, JobQuestion, RewardSource, Sampling, Task
from streams.settings.model import Advantages, Batches, Model, Settings
from streams.tools.audit.reading import Audit
from tests.support.factories import job_spec
from tests.support.models.tiny import save_tiny
from tests.support.processes import command, environment, read, running, said, spawn, until

pytestmark = [pytest.mark.kafka, pytest.mark.kills]
ITERATIONS = 3
KILLED = {"train": ("train",), "jobs": ("jobs", "run")}


def started(settings: Settings, folder: Path) -> dict[str, subprocess.Popen[bytes]]:
    found = {}
    for name, words in KILLED.items():
        with (folder / f"{name}.log").open("ab") as log:
            found[name] = spawn(command(*words), env=environment(settings), cwd=folder, stdout=log, stderr=log)
    return found


def test_a_job_ends_with_each_iteration_once_though_controller_and_trainer_are_killed(
    made: Settings, tmp_path: Path
) -> None:
    settings = made.model_copy(
        update={
            "model": Model(base=str(save_tiny(tmp_path / "tiny"))),
            "batches": Batches(groups=2, max_policy_lag=0, zero_variance="keep"),
            "advantages": Advantages(formula="dr_grpo"),
        }
    )
    spec = job_spec(
        iterations=ITERATIONS,
        batch_size=2,
        group_size=2,
        evaluate_every=2,
        held_out_share=0.25,
        keep_best=2,
        max_budget_usd=5.0,
        prices=JobPrices(prompt=1.0, completion=2.0, trainer_hour=3.0),
        sampling=Sampling(max_tokens=4),
        reward_sources=(RewardSource(name="exact"),),
        questions=tuple(JobQuestion(query=f"{n} 7", verifier=f'{{"answer": "{n}"}}') for n in range(12)),
    )
    with JobLog(settings) as log, running(settings, tmp_path, "streams", "scoring", "policy"):
        name = log.start(JobOrder(settings.policy.name, "shop", spec, "d"), actor="ann").job_id
        victims = started(settings, tmp_path)
        try:
            until(lambda: log.get(name).iteration >= 1, "an iteration", folder=tmp_path, timeout_s=400)
            for victim in victims.values():
                victim.kill()
                victim.wait()
            victims = started(settings, tmp_path)
            until(lambda: log.get(name).has_ended, "the end of the job", folder=tmp_path, timeout_s=400)
            for victim in victims.values():
                victim.send_signal(signal.SIGTERM)
            assert {name: victim.wait(300) for name, victim in victims.items()} == dict.fromkeys(victims, 0)
        finally:
            for victim in victims.values():
                victim.kill()
                victim.wait()
        job = log.get(name)
    assert job.status == "completed", f"{job.code}: {job.reason}: {said(tmp_path)}"
    assert [event.iteration for _, event in read(settings, JobEvent) if event.kind == "iteration"] == [1, 2, 3]
    assert [one.version for one in job.evaluations] == [0, 2, 3]
    tasks = [task for _, task in read(settings, Task)]
    assert Counter(task.task_id for task in tasks).most_common(1)[0][1] == 1
    assert Counter(task.purpose for task in tasks) == {"train": ITERATIONS * 2, "eval": 3 * len(job.held_out)}
    # each train task is asked twice, in two tokens
    assert job.usage.prompt_tokens == 2 * (ITERATIONS * 2 * 2 + 3 * len(job.held_out))
    assert job.usage.completion_tokens > 0 and job.usage.trainer_s > 0 and (job.cost_usd or 0) > 0
    report = Audit(settings, settled=True).look()
    assert report.balanced, report.wrong
    assert (report.counts["jobs"], report.counts["jobs ended"]) == (1, 1)
