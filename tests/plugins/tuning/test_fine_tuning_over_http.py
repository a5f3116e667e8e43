"""OpenAI's client with another base URL, and REST: jobs on a real log behind the real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob

from plugins.environments.settings import Environments
from plugins.jobs.controller import controller
from plugins.jobs.log.job_log import JobCommand, JobLog
from schemas.events import AdapterEvent, AgentEvent, Event, JobEvent, RewardSource, derive_id
from streams.adapters import store
from streams.errors import RefusedError
from streams.kafka.producer import Producer
from streams.settings.model import Batches, Settings
from tests.plugins.tuning.tuning_gateway import Gateway, gateway
from tests.support import factories
from tests.support.agent_server import settings_of
from tests.support.log.loop_on_log import LoopOnLog
from tests.support.processes import read, until, write

pytestmark = pytest.mark.kafka
SCRIPT = {"replies": [{"when": "1 + 1", "reply": "2"}], "context_tokens": 4096}
ROWS = [{"messages": [{"role": "user", "content": f"{n} + {n} ="}], "answer": str(2 * n)} for n in range(20)]
GRADER = {
    "type": "string_check",
    "name": "right",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
ODD = "tests.support.doubles.odd_environment:OddEnvironment"
QUERIES = [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(12)]
PEFT = {"agent_id": "coach"}
TUNE = {**PEFT, "type": "FINE_TUNING"}
ORDER = {"type": "RL_TRAINING", "agent_id": "sums", "training_queries": QUERIES, "config": {"n_iterations": 3}}


def with_batches(settings: Settings) -> Settings:
    return settings.model_copy(update={"batches": Batches(groups=4, max_policy_lag=0)})


@pytest.fixture(scope="module")
def served(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("fine-tuning")
    settings = with_batches(settings_of(kafka_bootstrap, folder, SCRIPT, max_body_mb=1))
    small = settings.topics.model_copy(update={"max_record_bytes": 300_000})
    listed = Environments(modules="., tests.support.doubles")
    with gateway(settings.model_copy(update={"topics": small, "environments": listed})) as found:
        yield found


def uploaded(client: OpenAI, rows: Any = None) -> str:
    content = "".join(json.dumps(row) + "\n" for row in (ROWS if rows is None else rows)).encode()
    return client.files.create(file=("sums.jsonl", content), purpose="fine-tune").id


def ordered(client: OpenAI, *, file: str | None = None, **changes: Any) -> FineTuningJob:
    method: Any = {"type": "reinforcement", "reinforcement": {"grader": GRADER}}
    given: dict[str, Any] = {"model": "sums", "training_file": file or uploaded(client), "method": method, **changes}
    return client.fine_tuning.jobs.create(**given)


def created(settings: Settings, job_id: str) -> int:
    return sum(event.job_id == job_id and event.kind == "created" for _, event in read(settings, JobEvent))


# --- a whole job ------------------------------------------------------------------------------------------------------


def test_a_job_by_openais_client_trains_and_its_model_answers(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = with_batches(settings_of(kafka_bootstrap, tmp_path, SCRIPT))

    def with_weights(event: Event) -> Event:
        if not isinstance(event, AdapterEvent) or event.kind != "trained":
            return event
        local = tmp_path / f"made-{event.version}"
        local.mkdir()
        (local / "adapter_model.safetensors").write_bytes(b"weights %d" % event.version)
        uri, files = store.publish(local, settings.adapters.store, "sums", event.version)
        return replace(event, uri=uri, files=files)

    stop = threading.Event()
    with gateway(settings) as served, LoopOnLog(settings, "sums", made=with_weights):
        running = threading.Thread(target=controller.run, args=(settings,), kwargs={"stop": stop})
        running.start()
        try:
            jobs = served.client.fine_tuning.jobs
            file = uploaded(served.client)
            every: Any = {"eval_interval": 1}
            method: Any = {"type": "reinforcement", "reinforcement": {"grader": GRADER, "hyperparameters": every}}
            job = ordered(served.client, file=file, method=method, extra_body={"config": {"n_iterations": 3}})
            assert (job.status, job.fine_tuned_model, job.training_file) in [
                ("queued", None, file),
                ("running", None, file),
            ]
            served.client.files.delete(file)  # the questions are in the log
            until(lambda: jobs.retrieve(job.id).status == "succeeded", "the job to succeed")
        finally:
            stop.set()
            running.join()
        done = jobs.retrieve(job.id)
        points = list(jobs.checkpoints.list(job.id, limit=1))
        events = list(jobs.list_events(job.id, limit=2))
        assert done.fine_tuned_model is not None and done.finished_at is not None
        answer = served.client.chat.completions.create(
            model=done.fine_tuned_model, messages=[{"role": "user", "content": "1 + 1 ="}]
        )
    assert (answer.choices[0].message.content, answer.model) == ("2", done.fine_tuned_model)
    best = max(points, key=lambda one: one.metrics.to_dict()["success"])
    assert done.fine_tuned_model == best.fine_tuned_model_checkpoint
    assert [one.step_number for one in points] == [3, 2, 1]
    assert [one.fine_tuned_model_checkpoint for one in points] == ["sums@3", "sums@2", "sums@1"]
    assert [event.message.partition(":")[0] for event in events] == [
        "completed",
        *("evaluated", "iteration") * 3,
        "evaluated",
        "started",
        "created",
    ]
    assert {event.level for event in events} == {"info"}
    assert {event.type for event in events if event.message.startswith("iteration")} == {"metrics"}
    assert len({event.id for event in events}) == len(events)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_a_job_is_paused_resumed_cancelled_and_then_refuses(served: Gateway) -> None:
    jobs = served.client.fine_tuning.jobs
    job = ordered(served.client, metadata={"run": "monday"}, seed=0)
    assert (job.object, job.model, job.metadata, job.seed) == ("fine_tuning.job", "sums", {"run": "monday"}, 0)
    assert job.method is not None and job.method.reinforcement is not None
    assert job.method.reinforcement.grader.to_dict() == GRADER
    assert [jobs.pause(job.id).status, jobs.resume(job.id).status, jobs.cancel(job.id).status] == [
        "paused",
        "queued",
        "cancelled",
    ]
    for command in (jobs.pause, jobs.resume, jobs.cancel):
        with pytest.raises(openai.ConflictError, match="the job is cancelled") as raised:
            command(job.id)
        assert raised.value.response.headers["x-should-retry"] == "false"
    found = jobs.retrieve(job.id)
    assert (found.status, found.fine_tuned_model, found.error) == ("cancelled", None, None)
    newest = jobs.list_events(job.id, limit=1)
    assert (newest.data[0].message, newest.has_more) == ("cancelled: asked for", True)


def test_jobs_are_listed_newest_first_and_by_their_metadata(served: Gateway) -> None:
    jobs, file = served.client.fine_tuning.jobs, uploaded(served.client)
    mine = [ordered(served.client, file=file, metadata={"listed": str(n)}).id for n in range(3)]
    none = ordered(served.client, file=file).id
    assert [job.id for job in jobs.list(limit=2)][:4] == [none, *mine[::-1]]
    assert [job.id for job in jobs.list(metadata={"listed": "1"})] == [mine[1]]
    assert list(jobs.list(metadata={"listed": ""})) == []
    assert none in [job.id for job in jobs.list(extra_query={"metadata": "null"})]
    page = jobs.list(after=mine[2], limit=1)
    assert ([job.id for job in page.data], page.has_more) == ([mine[1]], True)


def test_a_request_with_its_key_has_its_effect_once_and_another_body_is_refused(served: Gateway) -> None:
    key = {"Idempotency-Key": "tuesday"}
    file = uploaded(served.client)
    first = ordered(served.client, file=file, extra_headers=key)
    assert ordered(served.client, file=file, extra_headers=key) == first
    with pytest.raises(openai.ConflictError, match="was another order") as raised:
        ordered(served.client, file=file, metadata={"a": "b"}, extra_headers=key)
    assert raised.value.code == "conflict"
    assert created(served.settings, first.id) == 1
    paused = [served.client.fine_tuning.jobs.pause(first.id, extra_headers=key).status for _ in range(2)]
    assert paused == ["paused", "paused"]


def test_a_clients_own_retry_is_the_same_job_and_a_new_order_is_not(served: Gateway) -> None:
    file = uploaded(served.client)
    first = ordered(served.client, file=file, metadata={"retry": "1"})
    again = ordered(served.client, file=file, metadata={"retry": "1"}, extra_headers={"x-stainless-retry-count": "1"})
    other = ordered(served.client, file=file, metadata={"retry": "1"})
    assert (again.id, other.id != first.id) == (first.id, True)


def test_of_two_commands_at_once_one_has_an_effect_and_the_other_is_told(served: Gateway) -> None:
    job, both = ordered(served.client), threading.Barrier(2)

    def over_http() -> str | None:
        both.wait()
        try:
            return str(served.client.fine_tuning.jobs.pause(job.id).status)
        except openai.ConflictError:
            return None

    def typed(other: JobLog) -> str | None:
        both.wait()
        try:
            return other.command(job.id, JobCommand(kind="paused", actor="ann", reason="asked for")).status
        except RefusedError:
            return None

    with JobLog(served.settings) as other, ThreadPoolExecutor(2) as pool:
        ends = [future.result() for future in (pool.submit(over_http), pool.submit(typed, other))]
    kinds = [event.message for event in served.client.fine_tuning.jobs.list_events(job.id)]
    assert sorted(map(str, ends)) == ["None", "paused"]
    assert kinds == ["paused: asked for", "created: ordered"]


@pytest.mark.parametrize(
    ("changes", "status", "param", "says"),
    [
        ({"model": "nobody"}, 404, "model", "cannot be trained; this server has sums"),
        ({"file": "file-" + "0" * 64}, 404, "training_file", "was never uploaded here, or was deleted"),
        ({"extra_body": {"colour": "red"}}, 400, "colour", "there is no field"),
        ({"suffix": "mine"}, 400, "suffix", "POLICY@VERSION"),
        ({"method": {"type": "dpo"}}, 400, "training_file", "line 1: expected prompt, chosen, rejected or input"),
        ({"extra_body": {"config": {"max_budget_usd": -1.0}}}, 400, "config.max_budget_usd", "greater than 0"),
        ({"extra_body": {"config": {"max_budget_usd": 1.0}}}, 400, "config.prices", "a price is missing"),
        ({"extra_headers": {"Idempotency-Key": "x" * 201}}, 400, "Idempotency-Key", "201 characters"),
    ],
)
def test_what_is_wrong_with_an_order_is_said_in_openais_words(
    served: Gateway, changes: dict[str, Any], status: int, param: str, says: str
) -> None:
    before = len(read(served.settings, JobEvent))
    with pytest.raises(openai.APIStatusError, match=says) as raised:
        ordered(served.client, **changes)
    assert (raised.value.status_code, raised.value.param) == (status, param)
    assert len(read(served.settings, JobEvent)) == before


def test_a_deleted_file_and_a_file_with_one_question_twice_make_no_job(served: Gateway) -> None:
    gone = uploaded(served.client, [*ROWS, {"other": 1}])
    served.client.files.delete(gone)
    with pytest.raises(openai.NotFoundError, match="was deleted"):
        ordered(served.client, file=gone)
    with pytest.raises(openai.BadRequestError, match="line 21 has the same question as line 4"):
        ordered(served.client, file=uploaded(served.client, [*ROWS, ROWS[3]]))


def test_more_questions_than_a_record_holds_make_no_job(served: Gateway) -> None:
    rows = [{"messages": [{"role": "user", "content": f"{n}{'x' * 10_000}"}], "answer": "2"} for n in range(60)]
    with pytest.raises(openai.BadRequestError, match=r"training_file: .* takes at most 300000\.") as raised:
        ordered(served.client, file=uploaded(served.client, rows))
    assert raised.value.param == "training_file"


def test_null_is_as_if_it_were_left_out(served: Gateway) -> None:
    nulls = dict.fromkeys(("validation_file", "suffix", "integrations", "seed", "metadata", "hyperparameters"))
    config = dict.fromkeys(("n_iterations", "held_out_share", "max_budget_usd", "prices", "target_gain"))
    assert ordered(served.client, extra_body={**nulls, "config": config}).status == "queued"
    agent = {"agent_id": "nulls", "model_id": "sums", **dict.fromkeys(("name", "type", "memory_config", "tools"))}
    found = served.rest("POST", "/rl/agents", agent).json()
    assert (found["name"], found["type"], found["memory_config"], found["tools"]) == ("nulls", "PROMPT_BASED", {}, [])
    trial = {"environment": "calculator", **dict.fromkeys(("seed", "settings", "actions", "max_turns"))}
    assert served.rest("POST", "/rl/environments", trial).json()["seed"] == 0


@pytest.mark.parametrize("ask", ["retrieve", "pause", "resume", "cancel", "list_events"])
def test_a_job_that_nobody_ordered_is_not_found(served: Gateway, ask: str) -> None:
    job = ordered(served.client)
    for name in ("ftjob-1", job.id[:8]):
        with pytest.raises(openai.NotFoundError, match="there is no job"):
            getattr(served.client.fine_tuning.jobs, ask)(name)
    with pytest.raises(openai.NotFoundError, match="there is no job"):
        served.client.fine_tuning.jobs.checkpoints.list("ftjob-1")


def test_a_job_that_failed_says_why_and_its_events_have_levels(served: Gateway) -> None:
    job = ordered(served.client)

    def event(kind: Any, sequence: int, **changes: Any) -> JobEvent:
        whole = {"job_id": job.id, "policy": "sums", "event_id": derive_id(job.id, kind, sequence), **changes}
        return factories.job_event(kind, sequence, **whole)

    spent = {"prompt_tokens": 3.0, "completion_tokens": 4.0}
    write(
        served.settings,
        event("started", 1),
        event("budget_warned", 2, metrics=spent),
        event("budget_exceeded", 3, code="BUDGET_EXCEEDED", reason="spent", suggested_action="pay"),
    )
    until(lambda: served.client.fine_tuning.jobs.retrieve(job.id).status == "failed", "the job to have failed")
    found = served.client.fine_tuning.jobs.retrieve(job.id)
    assert found.error is not None
    assert (found.error.code, found.error.message, found.trained_tokens) == ("BUDGET_EXCEEDED", "spent; pay", 7)
    levels = [one.level for one in served.client.fine_tuning.jobs.list_events(job.id)]
    assert levels == ["error", "warn", "info", "info"]


# --- REST -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
def test_a_job_is_ordered_and_looked_at_by_rest(served: Gateway, prefix: str) -> None:
    answer = served.rest("POST", f"{prefix}/finetune/jobs", ORDER, Idempotency_Key=f"rest{prefix}")
    job = answer.json()
    assert (answer.status_code, job["type"], job["status"]) == (201, "RL_TRAINING", "queued")
    assert (job["config"]["n_iterations"], job["config"]["questions"]) == (3, 12)
    assert served.rest("GET", f"{prefix}/finetune/jobs/{job['id']}/status").json() == job
    metrics = served.rest("GET", f"{prefix}/rl/training/{job['id']}/metrics").json()
    assert (metrics["id"], metrics["iterations"], metrics["evaluations"]) == (job["id"], [], [])
    seen = served.client.fine_tuning.jobs.retrieve(job["id"])
    assert (seen.status, seen.model, seen.training_file) == ("queued", "sums", None)
    other = served.rest("POST", f"{prefix}/finetune/jobs", {**ORDER, "tenant": None}, Idempotency_Key=f"rest{prefix}")
    assert other.json()["id"] == job["id"]
    more = {**ORDER, "config": {"n_iterations": 4}}
    refused = served.rest("POST", f"{prefix}/finetune/jobs", more, Idempotency_Key=f"rest{prefix}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")


def test_the_figures_of_a_job_are_those_of_its_events(served: Gateway) -> None:
    name = served.rest("POST", "/finetune/jobs", ORDER).json()["id"]
    with Producer(served.settings) as producer:
        for number, kind in enumerate(("started", "evaluated", "iteration"), start=1):
            given: Any = {"job_id": name, "policy": "sums", "event_id": derive_id(name, kind, number)}
            producer.send(factories.job_event(kind, number, **given))  # type: ignore[arg-type]
    path = f"/rl/training/{name}/metrics"
    until(lambda: served.rest("GET", path).json()["iterations"] != [], "an iteration")
    found = served.rest("GET", path).json()
    assert [(one["iteration"], one["version"]) for one in found["iterations"]] == [(1, 1)]
    assert [one["success"] for one in found["evaluations"]] == [0.5]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "param", "says"),
    [
        ("POST", "/finetune/jobs", {**ORDER, "type": "FINE_TUNING"}, 400, "invalid", "training_queries", "RL_TRAINING"),
        ("POST", "/finetune/jobs", {**ORDER, "method": "sft"}, 400, "invalid", "method", "is for FINE_TUNING"),
        ("POST", "/finetune/jobs", {**TUNE, "config": {"lr": 1}}, 400, "invalid", "config.lr", "no field"),
        ("POST", "/finetune/jobs", {**TUNE, "training_file": "f"}, 404, "not_found", "training_file", "no file"),
        ("POST", "/finetune/jobs", {**TUNE, "config": {"lora_rank": 0}}, 400, "invalid", "config.lora_rank", "equal"),
        ("POST", "/finetune/jobs", {**ORDER, "config": {"lora_rank": 4, "n_iterations": 3}}, 400, "invalid",
         "config.lora_rank", "a job that tunes"),
        ("POST", "/finetune/jobs", {"agent_id": "sums", "config": {"n_iterations": 3}}, 400, "invalid",
         "training_queries", "is required"),
        ("POST", "/finetune/jobs", {**ORDER, "type": "PROMPT_TUNING"}, 400, "unsupported", "type", "only RL_"),
        ("POST", "/finetune/jobs", {**ORDER, "colour": 1}, 400, "unknown_parameter", "colour", "no field"),
        ("POST", "/finetune/jobs", {**ORDER, "training_queries": []}, 400, "invalid", "training_queries", "at least 1"),
        (
            "POST", "/finetune/jobs", {**ORDER, "training_queries": [*QUERIES, QUERIES[0]]}, 400, "invalid",
            "training_queries[12].query", "repeats",
        ),
        ("POST", "/finetune/jobs", {**ORDER, "agent_id": "nobody"}, 404, "not_found", "agent_id", "no policy and no"),
        ("GET", "/finetune/jobs/nobody/status", None, 404, "not_found", None, "there is no job 'nobody'"),
        ("GET", "/rl/training/nobody/metrics", None, 404, "not_found", None, "there is no job 'nobody'"),
        ("POST", "/finetune/peft", {}, 400, "invalid", "agent_id", "is required"),
        ("POST", "/finetune/peft", {**PEFT, "method": "ppo"}, 400, "invalid", "method", "'sft' or 'dpo'"),
        ("POST", "/finetune/peft", {**PEFT, "config": {"lr": 1}}, 400, "invalid", "config.lr", "no field"),
        ("POST", "/finetune/peft", {**PEFT, "training_file": "f"}, 404, "not_found", "training_file", "no file"),
        ("POST", "/finetune/peft", {"agent_id": "../x"}, 400, "invalid", "agent_id", "cannot be kept in a store"),
        ("POST", "/rl/agents", {"agent_id": "../x", "model_id": "sums"}, 400, "invalid", "agent_id", "pattern"),
        ("POST", "/rl/agents", {"agent_id": "x", "model_id": "gpt"}, 404, "not_found", "model_id", "no model 'gpt'"),
        ("POST", "/rl/agents", {"agent_id": "x", "model_id": "sums@9"}, 404, "not_found", "model_id", "sums@9"),
        ("POST", "/rl/environments", {"environment": "gues"}, 404, "not_found", "environment", "did you mean guess"),
        (
            "POST", "/rl/environments", {"environment": "os:path"}, 400, "unsupported", "environment",
            "environments.modules lists ., tests.support.doubles",
        ),
        (
            "POST", "/rl/environments", {"environment": "guess", "settings": {"colour": 1}}, 400, "invalid", "settings",
            "has no setting 'colour'",
        ),
        ("POST", "/rl/environments", {"environment": "guess", "max_turns": 0}, 400, "invalid", "max_turns", "to 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_by_rest_has_its_code_and_what_to_do(
    served: Gateway, method: str, path: str, body: Any, status: int, code: str, param: str | None, says: str
) -> None:
    before = len(read(served.settings, JobEvent)) + len(read(served.settings, AgentEvent))
    answer = served.rest(method, path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert says in error["message"]
    assert error["details"]["suggested_action"] and error["timestamp"].endswith("Z")
    assert (error["type"], error["details"]["parameter"]) == ("invalid_request_error", param)
    assert len(read(served.settings, JobEvent)) + len(read(served.settings, AgentEvent)) == before


def test_an_agent_is_registered_once_and_a_job_may_train_it(served: Gateway) -> None:
    config = {
        "agent_id": "helper",
        "name": "Helper",
        "model_id": "sums",
        "memory_config": {"turns": 4},
        "capabilities": ["sums"],
        "tools": [{"name": "calc", "description": "d", "parameters": {"type": "object"}}],
    }
    first = served.rest("POST", "/rl/agents", config, Idempotency_Key="helper")
    assert (first.status_code, first.json()["type"]) == (201, "PROMPT_BASED")
    assert {name: first.json()[name] for name in config} == config
    assert served.rest("POST", "/rl/agents", config).json() == first.json()
    assert served.rest("POST", "/rl/agents", config, Idempotency_Key="helper").json() == first.json()
    changed = {**config, "capabilities": []}
    refused = served.rest("POST", "/rl/agents", changed, Idempotency_Key="helper")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert served.rest("POST", "/rl/agents", changed).json()["capabilities"] == []
    written = [event for _, event in read(served.settings, AgentEvent) if event.agent_id == "helper"]
    assert [event.event_id for event in written] == [derive_id("helper", n) for n in range(2)]
    job = served.rest("POST", "/finetune/jobs", {**ORDER, "agent_id": "helper"}).json()
    assert job["config"]["agent"] == "helper"


def test_a_job_of_an_agent_that_names_no_scorer_has_those_that_the_agent_is_registered_with(served: Gateway) -> None:
    sources = [{"name": "numeric", "weight": 0.5, "settings": {"number": "last"}}]
    agent = {"agent_id": "counter", "model_id": "sums", "reward_sources": sources}
    assert served.rest("POST", "/rl/agents", agent).json()["reward_sources"] == sources
    order = {**ORDER, "agent_id": "counter"}
    default, chosen = (
        served.rest("POST", "/finetune/jobs", {**order, "config": {**ORDER["config"], **config}}).json()["id"]
        for config in ({}, {"reward_sources": ["exact"]})
    )
    specs = {event.job_id: event.spec for _, event in read(served.settings, JobEvent) if event.kind == "created"}
    expected = RewardSource(name="numeric", weight=0.5, settings=json.dumps(sources[0]["settings"]))
    assert [specs[name].reward_sources for name in (default, chosen)] == [(expected,), (RewardSource(name="exact"),)]


def test_a_job_of_type_fine_tuning_is_the_one_that_peft_orders(served: Gateway) -> None:
    body = {"agent_id": "pupil", "method": "dpo", "config": {"groups_of": "sums", "lora_rank": 4}}
    job = served.rest("POST", "/finetune/jobs", {**body, "type": "FINE_TUNING"}, Idempotency_Key="pupil").json()
    assert (job["type"], job["status"], job["config"]["method"]) == ("FINE_TUNING", "queued", "dpo")
    assert (job["config"]["agent_id"], job["config"]["lora_rank"]) == ("pupil", 4)
    assert served.rest("POST", "/finetune/peft", body, Idempotency_Key="pupil").json() == job


def test_an_order_without_a_type_is_of_its_agents_type(served: Gateway) -> None:
    def ordered(agent_type: str, **fields: Any) -> dict[str, Any]:
        agent = {"agent_id": agent_type.lower(), "model_id": "sums", "type": agent_type}
        assert served.rest("POST", "/rl/agents", agent).status_code == 201
        answer = served.rest("POST", "/finetune/jobs", {"agent_id": agent["agent_id"], **fields})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    by_rewards = {"training_queries": QUERIES, "config": {"n_iterations": 3}}
    tuned = ordered("FINE_TUNED")
    assert (tuned["type"], tuned["config"]["agent_id"], tuned["config"]["groups_of"]) == (
        "FINE_TUNING",
        "fine_tuned",
        "sums",
    )
    assert ordered("RL_TRAINED", **by_rewards)["type"] == ordered("PROMPT_BASED", **by_rewards)["type"] == "RL_TRAINING"
    assert ordered("FINE_TUNED", type="RL_TRAINING", **by_rewards)["type"] == "RL_TRAINING"
    assert next(event.policy for _, event in read(served.settings, JobEvent) if event.job_id == tuned["id"]) == "sums"


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        (["exakt"], "did you mean exact"),
        ([{"name": "numeric", "settings": {"colour": 1}}], "has no setting 'colour'"),
        (["exact", "exact"], "combine them in one `mix`"),
    ],
)
def test_an_agent_is_not_registered_with_a_scorer_that_could_not_score(
    served: Gateway, sources: list[Any], says: str
) -> None:
    agent = {"agent_id": "odd", "model_id": "sums", "reward_sources": sources}
    answer = served.rest("POST", "/rl/agents", agent)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reward_sources")
    assert says in answer.json()["error"]["message"]


def test_an_environment_is_tried_and_described(served: Gateway) -> None:
    asked = {"environment": "calculator", "seed": 7, "actions": ["3", "4"]}
    found = served.rest("POST", "/rl/environments", asked).json()
    assert found["environment"].startswith("calculator@") and found["deterministic"] is True
    assert found["messages"][-1]["role"] == "user" and found["messages"][-1]["content"]
    assert found["actions"] <= 2
    assert served.rest("POST", "/rl/environments", asked).json() == found
    assert served.rest("POST", "/rl/environments", {**asked, "seed": 8}).json()["digest"] != found["digest"]


def test_an_environment_of_a_module_that_the_operator_lists_is_played_and_another_is_not_opened(
    served: Gateway,
) -> None:
    asked = {"environment": ODD, "seed": 3, "actions": ["go"]}
    found = served.rest("POST", "/rl/environments", asked)
    assert found.status_code == 200, found.text
    assert (found.json()["environment"], found.json()["actions"]) == (f"{ODD}@1", 1)
    assert [one["content"] for one in found.json()["messages"]] == ["seed 3"]
    beside = {**asked, "environment": ODD.replace("doubles.odd_environment", "agent_server")}
    refused = served.rest("POST", "/rl/environments", beside)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported")
    assert "a task can only name what is listed; add tests.support.agent_server" in refused.json()["error"]["message"]


def test_the_description_of_the_interface_has_jobs_and_files(served: Gateway) -> None:
    described = served.rest("GET", "/openapi.json").json()
    assert {"/v1/files", "/v1/fine_tuning/jobs", "/finetune/jobs", "/rl/agents", "/rl/environments"} <= set(
        described["paths"]
    )
    assert {"CreateFineTuningBody", "TrainingOrderBody", "AgentConfig"} <= set(described["components"]["schemas"])
    limit = described["paths"]["/v1/fine_tuning/jobs/{job_id}/events"]["get"]["parameters"]
    assert [one["name"] for one in limit] == ["job_id", "after", "limit"]
