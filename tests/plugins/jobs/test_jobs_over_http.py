"""Jobs by JSON-RPC on a real log: names and parameters as documents spell them, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from functools import reduce
from typing import Any

import httpx
import pytest

from gateway.http.application import Application
from plugins.agents.registry.agent_log import AgentLog
from plugins.agents.rooms.agent_registration import AgentRegistration
from plugins.jobs.api.rest import TrainingJobs
from plugins.jobs.api.rpc import NOT_FOUND, REFUSED, JsonRpc
from plugins.jobs.fold import state as job_state
from plugins.jobs.fold.job_answers import tool_accuracy, tool_accuracy_by_version
from plugins.jobs.fold.questions import ITERATION, JOB, suite_name
from plugins.jobs.log.job_log import JobLog
from schemas.events import JobEvent, ResponseTurn, Task
from streams.kafka import times
from streams.kafka.followed import FollowedOnDemand
from streams.settings.model import Batches, Settings
from tests.support.documented import as_documented
from tests.support.factories import adapter_event, group, job_event, job_spec, member, response
from tests.support.log.shared_node import own_topics
from tests.support.processes import read, until, write

pytestmark = pytest.mark.kafka
QUERIES = [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(12)]
ORDER = {"agent_id": "default", "training_queries": QUERIES, "config": {"n_iterations": 3, "batch_size": 4}}

PATHS = ("/api/v1/jsonrpc", "/jsonrpc")


class Client:
    """Calls the methods of one gateway."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._log = FollowedOnDemand(JobLog, settings)
        agents = FollowedOnDemand(AgentLog, settings)
        apis = [JsonRpc(settings, self._log), TrainingJobs(settings, self._log), AgentRegistration(settings, agents)]
        self.app = Application(apis, version="0", max_body_bytes=100_000)

    def __enter__(self) -> Client:
        self._log.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._log.__exit__()

    def send(self, body: Any, *, path: str = PATHS[0], headers: dict[str, str] | None = None) -> httpx.Response:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()

        async def post() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                return await client.post(path, content=raw, headers=headers)

        answer = asyncio.run(post())
        as_documented(answer)
        return answer

    def get(self, path: str) -> Any:
        """Return the answer to a request."""

        async def get() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                return await client.get(path)

        answer = asyncio.run(get())
        as_documented(answer)
        return answer.json()

    def call(self, method: str, params: Any, **how: Any) -> Any:
        found = self.send({"jsonrpc": "2.0", "method": f"training.{method}", "params": params, "id": 1}, **how).json()
        return found.get("result", found.get("error"))


@pytest.fixture(scope="module")
def client(kafka_bootstrap: str) -> Iterator[Client]:
    settings = own_topics(kafka_bootstrap, {"policy_partitions": 1}, batches=Batches(groups=4, max_policy_lag=0))
    with Client(settings) as made:
        yield made


@pytest.mark.parametrize("path", PATHS)
def test_a_job_is_started_and_its_status_read_at_both_paths(client: Client, path: str) -> None:
    started = client.call("start_grpo", ORDER, path=path)
    assert (started["status"], started["total_iterations"], started["budget_usd"]) == ("queued", 3, None)
    assert started["created_at"].endswith("Z")
    status = client.call("get_status", {"job_id": started["job_id"]}, path=path)
    assert status == started
    assert set(status["metrics"]) >= {"success_rate", "avg_reward", "tool_accuracy"}


def test_the_tool_accuracy_of_a_job_is_that_of_its_newest_iterations_answers(client: Client) -> None:
    def called(*outcomes: bool | None) -> tuple[ResponseTurn, ...]:
        return tuple(
            ResponseTurn(number=n, start=0, end=1, tool=None if ok is None else "go", ok=ok or ok is None)
            for n, ok in enumerate(outcomes)
        )

    settings = client.settings
    answers = [response(sampling_id=f"i{n}", agent_id="calc", turns=turns)
               for n, turns in enumerate((called(False), called(True, False, None), called(True, True)))]  # fmt: skip
    groups = []
    for number, (place, answer) in enumerate(zip(write(settings, *answers), answers, strict=True)):
        own = member(response_id=answer.response_id, partition=place.partition, offset=place.offset)
        place_of_task = {JOB: "job-1", ITERATION: str(max(1, number))}
        groups.append(group(task_id=f"i{number}", policy="walker", responses=(own,), metadata=place_of_task))
    end = write(settings, *groups)[-1].offset + 1
    spec = job_spec(agent="calc")
    events = [job_event("created", spec=spec, policy="walker"), job_event("started", 1, policy="walker"),
              job_event("iteration", 2, iteration=2, version=2, groups_next=end, policy="walker")]  # fmt: skip
    job = reduce(job_state.fold, events, None)
    assert job is not None and tool_accuracy(settings, job) == 1.0
    assert tool_accuracy(settings, dataclasses.replace(job, iteration=1)) == pytest.approx(1 / 3)
    assert tool_accuracy(settings, dataclasses.replace(job, iteration=3)) is None
    assert tool_accuracy(settings, dataclasses.replace(job, spec=job_spec())) is None, "no agent, no tools"


def test_the_tool_accuracy_of_held_out_questions_is_that_of_each_version(client: Client) -> None:
    def called(*outcomes: bool) -> tuple[ResponseTurn, ...]:
        return tuple(ResponseTurn(number=n, start=0, end=1, tool="go", ok=ok) for n, ok in enumerate(outcomes))

    settings = client.settings
    about: dict[str, Any] = {"job_id": "tools", "policy": "caller", "created_at": times.now_ms()}
    spec = job_spec(agent="calc", held_out_share=0.9)
    events = [job_event("created", spec=spec, event_id="tools-0", **about),
              job_event("started", 1, event_id="tools-1", **about),
              job_event("iteration", 2, event_id="tools-2", **about),
              job_event("evaluated", 3, event_id="tools-3", iteration=1, version=1, **about)]  # fmt: skip
    job = reduce(job_state.fold, events, None)
    assert job is not None and job.held_out
    answers = [(0, called(False, True)), (0, called(False)), (1, called(True)), (1, called(True, True, False)), (2, ())]
    stored = [response(sampling_id=f"h{n}", agent_id="calc", turns=turns) for n, (_, turns) in enumerate(answers)]
    groups = []
    for n, (place, answer, (version, _)) in enumerate(zip(write(settings, *stored), stored, answers, strict=True)):
        own = member(response_id=answer.response_id, partition=place.partition, offset=place.offset)
        held_out = {"suite": suite_name(job), "suite_size": "2", "pinned_version": str(version)}
        groups.append(group(task_id=f"h{n}", policy="caller", purpose="eval", responses=(own,), metadata=held_out))
    other = dataclasses.replace(groups[0], task_id="else", metadata=groups[0].metadata | {"suite": "another"})
    write(settings, *groups, groups[0], other)
    assert tool_accuracy_by_version(settings, job) == {0: pytest.approx(1 / 3), 1: 0.75}
    assert tool_accuracy_by_version(settings, dataclasses.replace(job, held_out=())) == {}
    assert tool_accuracy_by_version(settings, dataclasses.replace(job, spec=job_spec())) == {}, "no agent, no tools"
    figures = {"success": 0.5, "mean_reward": 0.4}
    measured = adapter_event("evaluated", 1, policy="caller", suite=suite_name(job), metrics=figures)
    write(settings, *events, adapter_event("trained", 1, policy="caller"), measured)
    asked = {"job_id": "tools", "version": 1}
    until(lambda: client.call("evaluate", asked).get("metrics") is not None, "the server has read the job")
    evaluated = client.call("evaluate", asked)
    assert evaluated.get("metrics") == {"success_rate": 0.5, "avg_reward": 0.4, "tool_accuracy": 0.75}, evaluated
    assert client.call("evaluate", {"job_id": "tools", "version": 0})["metrics"]["tool_accuracy"] is None, "pending"
    metrics = client.get("/rl/training/tools/metrics")
    assert [each["tool_accuracy"] for each in metrics["evaluations"]] == [0.75]
    assert metrics["metrics"]["tool_accuracy"] is None, "no answer of the newest iteration called a tool"


def test_parameters_may_be_positional(client: Client) -> None:
    started = client.call("start_grpo", list(ORDER.values()))
    assert client.call("get_status", [started["job_id"]])["job_id"] == started["job_id"]


def test_a_job_is_paused_resumed_cancelled_and_listed(client: Client) -> None:
    name = client.call("start_grpo", ORDER)["job_id"]
    assert client.call("pause", {"job_id": name})["status"] == "paused"
    assert client.call("resume", {"job_id": name})["status"] == "queued"
    assert client.call("cancel", {"job_id": name, "reason": "over"})["reason"] == "over"
    refused = client.call("pause", {"job_id": name})
    assert refused["code"] == REFUSED and "the job is cancelled" in refused["data"]["message"]
    listed = client.call("list_jobs", {"status": "cancelled", "agent_id": "default"})
    assert [job["job_id"] for job in listed["jobs"]] == [name] and listed["total"] == 1


def test_another_gateway_sees_what_one_has_written(client: Client) -> None:
    name = client.call("start_grpo", ORDER)["job_id"]
    with Client(client.settings) as other:
        assert other.call("get_status", {"job_id": name})["status"] == "queued"


def test_a_request_that_is_sent_again_with_its_key_has_its_effect_once(client: Client) -> None:
    key = {"Idempotency-Key": "monday"}
    first, second = (client.call("start_grpo", ORDER, headers=key) for _ in range(2))
    assert first == second == client.call("start_grpo", {**ORDER, "idempotency_key": "monday"})
    other = client.call("start_grpo", {**ORDER, "config": {"n_iterations": 4}}, headers=key)
    assert other["code"] == REFUSED and "was another order" in other["data"]["message"]
    assert sum(event.job_id == first["job_id"] for _, event in read(client.settings, JobEvent)) == 1


def test_a_job_of_a_policy_without_a_version_is_ordered_as_on_the_command_line(client: Client) -> None:
    order = {**ORDER, "agent_id": "q-00", "config": {"n_iterations": 3, "batch_size": 4, "new_policy": True}}
    job = client.call("start_grpo", order, headers={"Idempotency-Key": "new"})
    assert (job["policy"], job["status"]) == ("q-00", "queued")
    assert client.call("start_grpo", order, headers={"Idempotency-Key": "new"}) == job


@pytest.mark.parametrize(
    ("method", "params", "code", "says"),
    [
        ("start_grpo", {**ORDER, "config": {"n_iterations": 3, "learning_rate": 0.5}}, -32602, "trainer.learning_rate"),
        ("start_grpo", {**ORDER, "config": {"n_iterations": 3, "max_budget_usd": -1}}, -32602, "max_budget_usd"),
        ("start_grpo", {**ORDER, "training_queries": []}, -32602, "training_queries"),
        ("start_grpo", {**ORDER, "model": "gpt"}, -32602, "there is no field"),
        ("start_grpo", {**ORDER, "agent_id": "nobody"}, NOT_FOUND, "there is no policy and no agent 'nobody'"),
        ("get_status", {"job_id": "nobody"}, NOT_FOUND, "there is no job 'nobody'"),
        ("get_status", {}, -32602, "job_id is required"),
        ("export_trajectories", {"job_id": "x", "limit": -1}, -32602, "limit"),
        ("list_jobs", {"status": "asleep"}, -32602, "status"),
        ("stop", {}, -32601, "known: training.cancel, training.evaluate, "),
    ],
)
def test_what_is_wrong_has_its_code_and_names_its_parameter(
    client: Client, method: str, params: dict[str, Any], code: int, says: str | None
) -> None:
    before = len(read(client.settings, JobEvent))
    found = client.call(method, params)
    assert found["code"] == code
    assert says is None or says in found["data"]["message"]
    assert len(read(client.settings, JobEvent)) == before


def test_the_answers_of_a_job_without_any_are_none_and_nothing_is_measured_before_it_starts(client: Client) -> None:
    before = len(read(client.settings, Task))
    name = client.call("start_grpo", ORDER)["job_id"]
    exported = client.call("export_trajectories", {"job_id": name, "success_only": True, "min_reward": 0.5})
    assert (exported["count"], exported["trajectories"]) == (0, [])
    assert "has not started" in client.call("evaluate", {"job_id": name})["data"]["message"]
    assert len(read(client.settings, Task)) == before


def test_notifications_and_batches_go_over_http(client: Client) -> None:
    name = client.call("start_grpo", ORDER)["job_id"]
    pause = {"jsonrpc": "2.0", "method": "training.pause", "params": {"job_id": name}}
    assert (client.send(pause).status_code, client.send(pause).content) == (204, b"")
    batch = [{"jsonrpc": "2.0", "method": "training.get_status", "params": {"job_id": name}, "id": n} for n in (1, 2)]
    assert [one["result"]["status"] for one in client.send(batch).json()] == ["paused", "paused"]


STATUS = {"jsonrpc": "2.0", "method": "training.list_jobs", "params": {}, "id": 1}
HALF = "\ud800"


@pytest.mark.parametrize(
    "request_",
    [
        STATUS | {"id": HALF},
        STATUS | {"id": [HALF]},
        STATUS | {"jsonrpc": HALF},
        STATUS | {"method": HALF},
        STATUS | {"params": {"status": HALF}},
        STATUS | {"params": {HALF: 1}},
        STATUS | {"params": [HALF]},
        STATUS | {HALF: 1},
        HALF,
    ],
    ids=lambda request_: json.dumps(request_)[-40:],
)
@pytest.mark.parametrize("is_escaped", [True, False])
def test_half_of_a_surrogate_pair_anywhere_in_a_batch_is_a_parse_error_and_nothing_of_it_is_done(
    client: Client, request_: Any, is_escaped: bool
) -> None:
    before = len(read(client.settings, JobEvent))
    text = json.dumps([STATUS | {"method": "training.start_grpo", "params": ORDER}, request_], ensure_ascii=is_escaped)
    answer = client.send(text.encode(errors="surrogatepass"))
    assert answer.status_code == 200
    assert (answer.json()["error"]["code"], answer.json()["id"]) == (-32700, None)
    assert len(read(client.settings, JobEvent)) == before


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_an_id_that_no_answer_can_repeat_is_invalid_and_the_rest_of_the_batch_is_answered(
    client: Client, number: str
) -> None:
    batch = [STATUS, STATUS | {"id": "ID"}]
    answer = client.send(json.dumps(batch).replace('"ID"', number).encode())
    listed, refused = answer.json()
    assert (listed["id"], refused["error"]["code"], refused["id"]) == (1, -32600, None)


def test_a_body_that_is_too_long_is_refused(client: Client) -> None:
    found = client.send({"x": "x" * 200_000})
    assert (found.status_code, found.json()["error"]["code"]) == (413, -32600)
