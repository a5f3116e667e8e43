"""Orders of jobs in environments on a real log: one verdict in the same words everywhere, and who may order what."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from plugins.environments.settings import Environments
from plugins.jobs.controller import controller
from plugins.jobs.log.job_log import JobLog
from schemas.events import JobEnvironment, RequestEvent
from streams.access.roles import ROLES
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Scoring, Settings
from tests.support.agent_server import serving, settings_of
from tests.support.commands import invoke
from tests.support.documented import HOOKS
from tests.support.factories import episodes_spec, job_event
from tests.support.log.keys import open_keys
from tests.support.processes import read, until

pytestmark = pytest.mark.kafka
pytest.importorskip("plugins.tools")  # some name an entry of its registry
CARELESS = """
class Careless:
    version = "1"
    resets = 0

    def reset(self, seed):
        Careless.resets += 1
        return str(Careless.resets)

    def step(self, action):
        return "over", 1.0, True, False, {}
"""
SCORER = """
import streamward

@streamward.entry_point("score/1")
def score(task, response, settings):
    return 1.0
"""
CONFIG = {"n_iterations": 2}


class Door(NamedTuple):
    """A server with keys, and a key of each role and of a tenant."""

    settings: Settings
    url: str
    keys: dict[str, str]

    def http(self, method: str, path: str, body: Any, role: str = "admin") -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[role]}"}
        with httpx.Client(event_hooks=HOOKS, timeout=300) as client:
            return client.request(method, self.url + path, json=body, headers=headers)

    def by_rest(self, order: dict[str, Any], role: str = "admin") -> str:
        """Return the id of the job, or the message of the error."""
        answer = self.http("POST", "/finetune/jobs", {"type": "RL_TRAINING", **order}, role).json()
        return str(answer.get("id") or answer["error"]["message"])

    def by_rpc(self, order: dict[str, Any], role: str = "admin") -> str:
        body = {"jsonrpc": "2.0", "id": 1, "method": "training.start_grpo", "params": order}
        answer = self.http("POST", "/jsonrpc", body, role).json()
        return str(answer["result"]["job_id"] if "result" in answer else answer["error"]["data"]["message"])

    def by_mcp(self, order: dict[str, Any], role: str = "admin") -> str:
        async def call() -> str:
            headers = {"Authorization": f"Bearer {self.keys[role]}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=300) as http,
                Client(streamable_http_client(f"{self.url}/mcp", http_client=http)) as client,
            ):
                result = await client.call_tool("start_job", {"type": "RL_TRAINING", **order})
            text = "".join(content.text for content in result.content if content.type == "text")
            return text if result.is_error else str(json.loads(text[text.index("{") : text.rindex("}") + 1])["id"])

        return asyncio.run(call())

    def by_command(self, order: dict[str, Any], role: str = "admin") -> str:
        words = ["jobs", "start", order["agent_id"], "--iterations", str(order["config"]["n_iterations"])]
        environment = dict(order["environment"])
        words += ["--environment", environment.pop("name"), "--output", "jsonl"]
        for name, value in environment.items():
            words += [f"--{name.replace('_', '-')}", json.dumps(value) if name == "settings" else str(value)]
        result = invoke(self.settings, *words)
        return str(json.loads(result.stdout)["job_id"]) if result.exit_code == 0 else " ".join(result.stderr.split())

    @property
    def entrances(self) -> list[Callable[[dict[str, Any]], str]]:
        return [self.by_rest, self.by_rpc, self.by_mcp, self.by_command]


@pytest.fixture(scope="module")
def door(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("orders")
    (folder / "careless_game.py").write_text(CARELESS)
    (folder / "own_scorer.py").write_text(SCORER)
    plain = settings_of(kafka_bootstrap, folder, auth="keys")
    code = {
        "environments": Environments(modules="careless_game, .", timeout_s=60),
        "scoring": Scoring(modules="own_scorer, ."),
    }
    settings = plain.model_copy(update=code)
    admin.apply_topics(settings)
    with open_keys(settings) as person:
        keys: dict[str, str] = {role: person.create(role=role, actor="ann").text for role in ROLES}
        keys["red"] = person.create(role="submitter", actor="ann", tenant="red").text
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with serving(settings) as url:
            yield Door(settings, url, keys)


def order_of(name: str, **fields: Any) -> dict[str, Any]:
    return {"agent_id": "sums", "environment": {"name": name, **fields}, "config": CONFIG}


def test_a_job_in_an_environment_is_ordered_at_every_entrance(door: Door) -> None:
    kept = {"environment": "guess", "settings": {"highest": 4}, "name": "arena", "max_turns": 3}
    assert door.http("POST", "/rl/environments", kept).status_code == 200
    job_ids = [order(order_of("arena", episodes=9, held_out=5)) for order in door.entrances]
    with JobLog(door.settings) as log:
        specs = [log.get(job_id).spec for job_id in job_ids]
    assert len(set(job_ids)) == len(door.entrances) and len(set(specs)) == 1
    environment = specs[0].environment
    assert environment is not None and (environment.name, environment.settings) == ("guess", '{"highest": 4}')
    assert (len(environment.seeds), len(environment.held_out_seeds), specs[0].max_turns) == (9, 5, 3)
    listed = door.http("GET", "/rl/environments", None, role="viewer").json()["data"]
    assert [row["name"] for row in listed] == ["arena"]


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (order_of("gess"), "environment: no environment is called 'gess'; did you mean guess"),
        (order_of("guess", settings={"hihgest": 4}), "environment: guess has no setting 'hihgest'; known: "),
        (order_of("os:Path"), "environment: os:Path is not opened: environments.modules lists careless_game, ."),
        (order_of("mcp:http://10.0.0.1/mcp"), "mcp:http://10.0.0.1/mcp is not opened: environments.servers lists no"),
        (order_of("careless_game:Careless"), "seed 0 gave two episodes that differ at reset"),
        (order_of("guess", episodes=0), "environment.episodes: Input should be greater than or equal to 1"),
    ],
)
def test_an_environment_is_refused_in_the_same_words_at_every_entrance(
    door: Door, order: dict[str, Any], says: str
) -> None:
    with JobLog(door.settings) as log:
        before = len(log.jobs)
        for entrance in door.entrances:
            problem = entrance(order)
            assert says in problem, f"{entrance.__name__}: {problem}"
        assert len(log.jobs) == before


def test_a_record_that_no_gateway_has_checked_fails_before_anything_is_asked(door: Door) -> None:
    unknown = JobEnvironment(name="gess", seeds=(1,))
    careless = JobEnvironment(name="careless_game:Careless", seeds=(0,))
    specs = [episodes_spec(environment=environment) for environment in (unknown, careless)]
    with JobLog(door.settings) as log, Producer(door.settings) as producer:
        for number, spec in enumerate(specs):
            producer.send(job_event("created", job_id=f"raw-{number}", policy=f"raw{number}", spec=spec))
        producer.flush()
        stop = threading.Event()
        running = threading.Thread(target=controller.run, args=(door.settings,), kwargs={"stop": stop})
        running.start()
        try:
            for number in range(len(specs)):
                until(lambda name=f"raw-{number}": log.find(name) and log.get(name).has_ended, "the end of the job")
        finally:
            stop.set()
            running.join()
        jobs = [log.get(f"raw-{number}") for number in range(len(specs))]
    assert {(job.status, job.code, job.iteration, job.base_version) for job in jobs} == {
        ("failed", "TASK_REFUSED", 0, None)
    }
    assert jobs[0].reason.startswith("environment: no environment is called 'gess'; did you mean guess")
    assert "seed 0 gave two episodes that differ at reset" in jobs[1].reason
    assert "agents environments try" in (jobs[0].suggested_action or "")


@pytest.mark.parametrize("role", ["submitter", "trainer", "red"])
def test_an_environment_that_is_code_takes_the_right_to_run_code_and_a_built_in_one_does_not(
    door: Door, role: str
) -> None:
    for entrance in (door.by_rest, door.by_rpc, door.by_mcp):
        refused = entrance(order_of("careless_game:Careless"), role)
        assert "environment 'careless_game:Careless' is none of those that are built in, and is run" in refused
        assert ("a key without a tenant" if role == "red" else "code.run is for: admin") in refused
        assert len(entrance(order_of("guess"), role)) == 36


def test_a_scorer_that_is_code_takes_that_right_in_a_job_too(door: Door) -> None:
    order = order_of("guess") | {"config": {**CONFIG, "reward_sources": ["own_scorer:score"]}}
    for entrance in (door.by_rest, door.by_rpc, door.by_mcp):
        problem = entrance(order, "trainer")
        assert "scorer 'own_scorer:score' is a function that is run" in problem and "for: admin" in problem
        assert len(entrance(order)) == 36


@pytest.mark.parametrize("role", ["viewer", "promoter"])
def test_who_may_not_order_jobs_has_no_environment_played(door: Door, role: str) -> None:
    for entrance in (door.by_rest, door.by_rpc, door.by_mcp):
        assert "jobs.order is for: submitter, trainer, admin" in entrance(order_of("guess"), role)


def test_a_tenant_names_its_own_entries_and_no_other_tenants(door: Door) -> None:
    for tenant in ("red", "blue"):
        body = {"tool_id": f"{tenant}.duel", "endpoint": "environment:guess", "settings": {"highest": 4}}
        assert door.http("POST", "/mcp/tools", body).status_code == 201
    assert len(door.by_rest(order_of("duel"), "red")) == 36
    unknown = door.by_rest(order_of("blue.nothing"), "red")
    assert door.by_rest(order_of("blue.duel"), "red") == unknown.replace("nothing", "duel")
    task = {"task_id": "t", "input": "?", "purpose": "serve", "agent": "environment", "max_turns": 2}
    own = door.http("POST", "/tasks", {**task, "environment": {"name": "duel", "seed": 1}}, "red")
    assert own.status_code == 201, own.text
    other = {**task, "task_id": "u", "environment": {"name": "blue.duel", "seed": 1}}
    assert door.http("POST", "/tasks", other, "red").status_code == 403


def test_an_order_that_was_denied_is_recorded_as_such(door: Door) -> None:
    door.by_rpc(order_of("careless_game:Careless"), "submitter")
    until(
        lambda: any(
            (event.method, event.action, event.allowed) == ("training.start_grpo", "code.run", False)
            for _, event in read(door.settings, RequestEvent)
        ),
        "the event of the request",
    )
