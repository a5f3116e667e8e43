"""Jobs that tune, on a real log with the tiny model: done once, ended between steps, ordered in every way there is."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plugins.agents.registry.registration import register
from plugins.jobs.fold.state import JobState
from plugins.jobs.log.job_log import JobCommand, JobLog
from plugins.jobs.orders.job_settings import Jobs
from plugins.jobs.orders.request import JobOrder
from plugins.tuning import job_tuner as tuner, tuning_metrics, tuning_reducer
from plugins.tuning.api import tuning_request
from plugins.tuning.job_tuner import TuningWorker
from plugins.tuning.tuned_version import read_file, tune
from schemas.events import AdapterEvent, AgentEvent, JobEvent
from streams.adapters import training_files
from streams.adapters.training_files import TrainingFile
from streams.adapters.versions import empty, read_state
from streams.engines.base_model import Base
from streams.engines.local.lora import read_lora
from streams.errors import JobRequestError
from streams.kafka import times
from streams.kafka.history import LogHistory
from streams.settings.model import Metrics, Model, Policy, Settings
from tests.chaos.proxy import free_ports
from tests.plugins.tuning.test_tuned_versions import DPO, SFT, Crash, groups, order as tuning_order
from tests.plugins.tuning.tuning_gateway import gateway
from tests.support.agent_server import settings_of
from tests.support.commands import invoke
from tests.support.models.chat_tiny import base
from tests.support.models.tiny_settings import settings
from tests.support.processes import read, running, until, write as send
from tests.support.scrape import get, parse
from trainer.examples.tuned_examples import all_tokens
from trainer.reproduce import retrain
from trainer.versions import announce

__all__ = ["base", "settings"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]
PRICES = {"prompt": 1e6, "completion": 1e6, "trainer_hour": 0.0}
"""A dollar a token."""


def lines_in_store(settings: Settings, *rows: dict[str, Any]) -> TrainingFile:
    raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return training_files.put(settings.adapters.store, raw, filename="a b.jsonl", purpose="fine-tune", now_ms=0)


def ordered(settings: Settings, method: str, file: TrainingFile | None = None, **config: Any) -> JobOrder:
    request = tuning_request.read_request({"policy": "default", "method": method, "config": config})
    return tuning_request.order(request, settings, empty("default"), file, times.now_ms())


class Worker:
    """A process that carries out jobs, in this one."""

    def __init__(self, settings: Settings, log: JobLog) -> None:
        self._worker = TuningWorker(settings, log, threading.Event())

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.__exit__()

    def works_until(self, log: JobLog, job: JobState, *statuses: str) -> JobState:
        """Step until the job has one of these statuses."""

        def there() -> bool:
            self._worker.step()
            return log.get(job.job_id).status in statuses

        until(there, f"the job to be {statuses}")
        return log.get(job.job_id)


@pytest.fixture
def log(settings: Settings) -> Iterator[JobLog]:
    with JobLog(settings) as found:
        yield found


def versions(settings: Settings) -> list[AdapterEvent]:
    return [event for _, event in read(settings, AdapterEvent) if event.kind == "trained"]


def kinds(settings: Settings) -> list[str]:
    return [event.kind for _, event in read(settings, JobEvent)]


def test_a_job_on_answers_of_the_log_and_one_on_a_file_are_each_done_once_and_made_again(
    settings: Settings, base: Base, log: JobLog, tmp_path: Path
) -> None:
    send(settings, *groups(base, 3))
    first = log.start(ordered(settings, "sft", epochs=2, batch=2, prices=PRICES), actor="ann")
    second = log.start(ordered(settings, "dpo", lines_in_store(settings, DPO)), actor="ann")
    with Worker(settings, log) as worker:
        worker.works_until(log, second, "completed")
    done = log.get(first.job_id)
    assert (done.status, done.version, log.get(second.job_id).version) == ("completed", 1, 2)
    tuned, other = versions(settings)
    assert [one.metadata for one in (tuned, other)] == [{"job": first.job_id}, {"job": second.job_id}]
    assert tuned.tuning is not None and other.tuning is not None
    assert (tuned.tuning.examples, other.tuning.file, other.parent_version) == (3, "a_b.jsonl", 1)
    assert done.usage.completion_tokens == 2 * tuned.tuning.loss_tokens
    assert done.cost_usd == done.usage.prompt_tokens + done.usage.completion_tokens > 0
    again = TuningWorker(settings, log, threading.Event())
    try:
        assert not again.step() and len(versions(settings)) == 2
    finally:
        again.__exit__()
    assert Counter(kinds(settings)) == dict.fromkeys(("created", "started", "iteration", "completed"), 2)
    example = tmp_path / "a_b.jsonl"
    example.write_text(json.dumps(DPO) + "\n")
    made = retrain.plan(settings, "default", 2, LogHistory(settings), start=0, files=[example])
    assert [one.equal for one in retrain.run(made, settings, LogHistory(settings))] == [True, True]


def test_a_job_may_choose_the_shape_of_its_adapter_and_the_next_one_keeps_it_and_both_are_made_again(
    settings: Settings, base: Base, log: JobLog
) -> None:
    send(settings, *groups(base, 2))
    shape = {"lora_rank": 2, "lora_alpha": 4, "lora_targets": "v_proj, q_proj"}
    jobs = [log.start(ordered(settings, "sft", **config), actor="ann") for config in (shape, {}, {"start": "0"})]
    with Worker(settings, log) as worker:
        for job in jobs:
            worker.works_until(log, job, "completed")
    made = versions(settings)
    ranks = [event.recipe["trainer.lora_rank"] for event in made]
    assert ranks == ["2", "2", str(settings.trainer.lora_rank)]
    assert [event.parent_version for event in made] == [0, 1, 0]
    small, large = (
        read_lora(Path((event.uri or "").removeprefix("file:")), base.model) for event in (made[0], made[2])
    )
    assert {name.rpartition(".")[2] for name in small} == {"q_proj", "v_proj"} < {n.rpartition(".")[2] for n in large}
    for version in (2, 3):
        plan = retrain.plan(settings, "default", version, LogHistory(settings))
        assert all(one.equal for one in retrain.run(plan, settings, LogHistory(settings)))
    request = tuning_request.read_request({"policy": "default", "method": "sft", "config": {"lora_rank": 4}})
    with pytest.raises(JobRequestError, match="version 3 of default has an adapter of rank 8"):
        tuning_request.order(request, settings, read_state(settings, "default"), None, times.now_ms())


def test_a_job_whose_start_in_another_policy_has_another_shape_fails_with_what_to_do(
    settings: Settings, base: Base, log: JobLog
) -> None:
    send(settings, *groups(base, 2))
    first = log.start(ordered(settings, "sft", lora_rank=2), actor="ann")
    request = {"policy": "other", "method": "sft"}
    config = {"start": "default:1", "groups_of": "default", "lora_rank": 4}
    other = tuning_request.read_request({**request, "config": config})
    order = tuning_request.order(other, settings, empty("other"), None, times.now_ms())
    with Worker(settings, log) as worker:
        worker.works_until(log, first, "completed")
        done = worker.works_until(log, log.start(order, actor="ann"), "failed")
    assert "version 1 of default has an adapter of rank 2" in done.reason and "Leave lora_rank" in done.reason
    assert len(versions(settings)) == 1


def test_a_job_whose_version_was_announced_before_its_process_died_is_ended_and_nothing_is_tuned_again(
    settings: Settings, base: Base, log: JobLog
) -> None:
    send(settings, *groups(base, 2))
    job = log.start(ordered(settings, "sft"), actor="ann")
    log.append(tuning_reducer.start_event(job, newest=0, groups_next=2, now_ms=times.now_ms()))
    tune(settings, replace(tuning_order("sft"), job_id=job.job_id), LogHistory(settings))
    with Worker(settings, log) as worker:
        done = worker.works_until(log, job, "completed", "failed")
    assert (done.status, done.version, len(versions(settings))) == ("completed", 1, 1)


def test_a_job_whose_process_died_between_store_and_log_is_made_again_with_the_same_bytes(
    settings: Settings, base: Base, log: JobLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(settings, *groups(base, 2))
    job = log.start(ordered(settings, "sft"), actor="ann")
    with monkeypatch.context() as patch, Worker(settings, log) as worker:
        patch.setattr(announce, "Producer", lambda *_: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            worker.works_until(log, job, "completed", "failed")
    assert (log.get(job.job_id).status, versions(settings)) == ("running", [])
    send(settings, *groups(base, 5)[2:])  # they came after it had started, so they are none of its examples
    with Worker(settings, log) as worker:
        assert worker.works_until(log, job, "completed", "failed").status == "completed"
    (made,) = versions(settings)
    assert made.tuning is not None and made.tuning.examples == 2


def test_a_job_is_cancelled_between_two_steps_and_leaves_nothing(settings: Settings, log: JobLog) -> None:
    job = log.start(ordered(settings, "sft", lines_in_store(settings, SFT), epochs=10_000), actor="ann")
    with Worker(settings, log) as worker:
        began = threading.Thread(target=worker.works_until, args=(log, job, "cancelled"))
        began.start()
        until(lambda: log.get(job.job_id).status == "running", "the job to run")
        log.command(job.job_id, JobCommand(kind="cancelled", actor="ann", reason="enough"))
        began.join()
    assert versions(settings) == [] and read_state(settings, "default").newest == 0


def test_a_job_over_its_budget_ends_between_two_steps(settings: Settings, base: Base, tmp_path: Path) -> None:
    settings = settings.model_copy(update={"jobs": Jobs(tenant_month_usd=0.0)})
    (tmp_path / "a.jsonl").write_text(json.dumps(SFT) + "\n")
    step_usd = all_tokens(read_file(tmp_path / "a.jsonl", "sft", base).examples)
    file = lines_in_store(settings, SFT)
    order = ordered(settings, "sft", file, epochs=100, prices=PRICES, max_budget_usd=10_000.0)
    assert order.spec.max_budget_usd is not None
    poor = replace(order, spec=replace(order.spec, max_budget_usd=20.0))
    with JobLog(settings) as log, Worker(settings, log) as worker:
        job = log.start(poor, actor="ann")
        done = worker.works_until(log, job, "failed", "completed")
    assert (done.status, done.code, versions(settings)) == ("failed", "BUDGET_EXCEEDED", [])
    assert done.cost_usd is not None and 20.0 <= done.cost_usd < 20.0 + step_usd


@pytest.mark.parametrize(
    ("rows", "code", "says"),
    [
        ([{"messages": [{"role": "user", "content": "21"}]}], "TUNING_FAILED", "no message of role assistant"),
        (None, "EXAMPLES_MISSING", "no train groups of policy default"),
    ],
)
def test_a_job_that_cannot_be_done_fails_with_its_reason_and_what_to_do(
    settings: Settings, log: JobLog, rows: list[dict[str, Any]] | None, code: str, says: str
) -> None:
    file = None if rows is None else lines_in_store(settings, *rows)
    job = log.start(ordered(settings, "sft", file), actor="ann")
    with Worker(settings, log) as worker:
        done = worker.works_until(log, job, "failed")
    assert done.code == code and says in done.reason and done.suggested_action


def test_jobs_are_ordered_by_the_command_line_and_carried_out_by_the_command(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(SFT) + "\n")

    def command(*words: str) -> Any:
        return invoke(settings, "jobs", *words)

    refused = command("start", "default", "--method", "sft", "--iterations", "3")
    assert refused.exit_code == 2 and "sft takes --examples" in refused.stderr
    found = command(
        "start", "default", "--method", "sft", "--examples", str(tmp_path / "a.jsonl"), "--output", "jsonl",
        "--config", '{"epochs": 2}',
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    job = json.loads(found.stdout)
    (port,) = free_ports(1)
    watched = settings.model_copy(update={"metrics": Metrics(port=port)})
    with running(watched, tmp_path, "tune --jobs"), JobLog(settings) as log:
        until(lambda: log.get(job["job_id"]).has_ended, "the end of the job", folder=tmp_path)

        def ended() -> bool:
            seen = parse(get(f"http://127.0.0.1:{port}/metrics")[1])
            return seen.total(tuning_metrics.ATTEMPTS.name, policy="default", outcome="completed") == 1

        until(ended, "its end in the metrics", folder=tmp_path)
        assert parse(get(f"http://127.0.0.1:{port}/metrics")[1]).total(tuning_metrics.STEPS.name) == 2
        assert get(f"http://127.0.0.1:{port}/readyz")[0] == get(f"http://127.0.0.1:{port}/healthz")[0] == 200
    shown = json.loads(command("show", job["job_id"], "--output", "json").stdout)
    assert (shown["status"], shown["version"], shown["order"]["method"]) == ("completed", 1, "sft")
    assert (shown["order"]["file"], shown["order"]["epochs"]) == ("a.jsonl", 2)


def test_a_job_that_tunes_an_agent_by_the_command_line_tunes_its_policy(settings: Settings) -> None:
    agent = {"agent_id": "helper", "kind": "registered", "name": "Helper", "type": "FINE_TUNED", "model_id": "coach"}
    register(settings, AgentEvent(event_id="", created_at=0, **agent))  # type: ignore[arg-type]
    words = ("jobs", "start", "helper", "--method", "sft", "--config", '{"groups_of": "default"}', "--output", "jsonl")
    found = invoke(settings, *words)
    assert found.exit_code == 0, found.output
    created = next(event for _, event in read(settings, JobEvent))
    assert (created.policy, created.spec and created.spec.agent) == ("coach", "helper")


def test_jobs_of_openais_client_and_of_rest_are_carried_out_and_their_model_answers(
    kafka_bootstrap: str, base: Base, tmp_path: Path
) -> None:
    script = {"replies": [{"when": "1 + 1", "reply": "2"}], "context_tokens": 4096}
    served = settings_of(kafka_bootstrap, tmp_path, script)
    tiny = served.model_copy(
        update={
            "model": Model(base=base.model.config._name_or_path),
            "policy": Policy(name="sums"),
            "trainer": served.trainer.model_copy(update={"checkpoints": tmp_path / "checkpoints"}),
        }
    )
    stop = threading.Event()
    with gateway(served) as found:
        works = threading.Thread(target=tuner.run, args=(tiny,), kwargs={"stop": stop})
        works.start()
        try:
            content = (json.dumps(SFT) + "\n").encode()
            file = found.client.files.create(file=("a.jsonl", content), purpose="fine-tune")
            jobs, method = found.client.fine_tuning.jobs, {"type": "supervised"}
            made = jobs.create(model="sums", training_file=file.id, method=method)  # type: ignore[arg-type]
            until(lambda: jobs.retrieve(made.id).status in ("succeeded", "failed"), "the end of the job")
            done = jobs.retrieve(made.id)
            assert (done.status, done.fine_tuned_model, done.error) == ("succeeded", "sums@1", None)
            assert done.method is not None and done.method.supervised is not None
            assert done.trained_tokens
            said = [event.message.partition(":")[0] for event in jobs.list_events(made.id)]
            assert said == ["completed", "iteration", "started", "created"]
            order = {"agent_id": "sums", "method": "sft", "training_file": file.id, "config": {"epochs": 2}}
            other = found.rest("POST", "/api/v1/finetune/peft", order, Idempotency_Key="peft")
            assert (other.status_code, other.json()["type"], other.json()["config"]["method"]) == (
                201,
                "FINE_TUNING",
                "sft",
            )
            where = f"/finetune/jobs/{other.json()['id']}/status"
            until(lambda: found.rest("GET", where).json()["status"] == "completed", "the other job")
            answer = found.client.chat.completions.create(
                model="sums@1", messages=[{"role": "user", "content": "1 + 1 ="}]
            )
            assert (answer.choices[0].message.content, answer.model) == ("2", "sums@1")
        finally:
            stop.set()
            works.join()
