"""Agents of other servers that are tools: each call is a task over A2A, recorded, asked, cancelled and continued.

The other server is this one: an agent here calls `host` at its own A2A address.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugins.environments.settings import Environments
from plugins.threads.log.thread_settings import Threads
from schemas.events import ThreadEvent
from streams.kafka import admin
from tests.plugins.threads.test_acting_runs import client_of, roles, steps
from tests.plugins.threads.thread_server import Client
from tests.plugins.threads.tool_server import SCRIPT, ToolServer, added, register_all, tool_call, with_tools
from tests.plugins.tools.test_remote_agent import card, ok, peer, task
from tests.support.agent_server import ServeProcess, audited, check_audit
from tests.support.commands import invoke, rows_of
from tests.support.processes import read, until


def calling(message: str) -> str:
    return tool_call("far_host", message=message)


FAR: dict[str, Any] = {
    "replies": [
        *SCRIPT["replies"],
        {"when": "how is Ulm", "reply": calling("weather in Ulm?")},
        {"when": "tool: Hot.", "reply": "They say: hot."},
        {"when": "a bed, please", "reply": calling("book the Lamb")},
        {"when": "tool: You sleep at the Lamb.", "reply": "A bed at the Lamb."},
        {"when": "tool: Then not.", "reply": "No bed."},
        {"when": "slow, please", "reply": calling("wait for A")},
        {"when": "again, please", "reply": calling("again for A")},
        {"when": "tool: A is done.", "reply": "It was done."},
        {"when": "described otherwise", "reply": "I may not ask them."},
    ]
}
GUIDE = {"agent_id": "guide"}


def with_neighbour(tools: ToolServer) -> ToolServer:
    """Return a server that may call its own agent `host` over A2A."""
    settings = tools.settings
    listed = settings.environments.model_copy(update={"servers": endpoint_of(tools)})  # type: ignore[attr-defined]
    return tools._replace(settings=settings.model_copy(update={"environments": listed}))


def endpoint_of(tools: ToolServer) -> str:
    return f"a2a:{tools.settings.serve.url}/a2a/host"


def register(tools: ToolServer, client: Client) -> None:
    """Register `host` with its tools, and `guide`, which calls it over A2A."""
    register_all(client)
    added(client.ask("POST", "/mcp/tools", {"tool_id": "far_host", "endpoint": endpoint_of(tools)}))
    added(client.ask("POST", "/rl/agents", {**GUIDE, "model_id": "sums", "tool_ids": ["far_host"]}))


@pytest.fixture(scope="module")
def server(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolServer]:
    with with_tools(kafka_bootstrap, tmp_path_factory.mktemp("far"), FAR) as plain:
        tools = with_neighbour(plain)
        with audited(tools.settings):
            register(tools, client_of(tools))
            yield tools


@pytest.fixture
def client(server: ToolServer) -> Client:
    return client_of(server)


def task_of(server: ToolServer, run_id: str) -> str:
    """Return the only task that a run's calls have."""
    [task] = {event.call.remote_task for event in server.events(run_id) if event.call and event.call.remote_task}
    return task


@pytest.mark.kafka
def test_a_call_is_a_task_of_the_other_agent_and_its_step_names_it(server: ToolServer, client: Client) -> None:
    run = client.run(client.thread(), "how is Ulm", **GUIDE)
    assert roles(run)[-2:] == [("tool", "Hot."), ("assistant", "They say: hot.")]
    name = run["run"]["run_id"]
    assert steps(server.events(name)) == [
        "run_requested", "run_answered", "call_begun", "call_accepted", "call_ended", "run_ended",
    ]  # fmt: skip
    assert client.send("GET", f"/runs/{task_of(server, name)}")["agent_id"] == "host"
    sql = f"SELECT remote_task, attempts FROM run_calls WHERE run_id = '{name}'"  # noqa: S608
    [row] = rows_of(invoke(server.settings, "query", sql))
    assert tuple(row.values()) == (task_of(server, name), 1)
    told = client.ask("POST", "/mcp/tools/far_host/invoke", {"arguments": {"message": "weather in Ulm?"}})
    assert (told.status_code, told.json()["content"]) == (200, "Hot.")


@pytest.mark.kafka
@pytest.mark.parametrize(("answer", "end"), [("yes", "A bed at the Lamb."), ("no", "No bed.")])
def test_a_run_waits_for_an_answer_to_the_other_agent_and_hands_it_on(
    server: ToolServer, client: Client, answer: str, end: str
) -> None:
    before = server.made().count("book Lamb")
    run = client.run(client.thread(), "a bed, please", **GUIDE)["run"]
    [wait] = run["requires_action"]
    assert (wait["name"], wait["waits_for"], wait["question"]) == ("far_host", "remote", "book waits for consent")
    refused = client.ask("POST", "/mcp/tools/far_host/invoke", {"arguments": {"message": "book the Lamb"}}).json()
    assert refused["is_error"] and "only a run of an agent can answer" in refused["content"]
    client.send("POST", f"/runs/{run['run_id']}/resume", {"resume": answer})
    assert roles(client.send("GET", f"/runs/{run['run_id']}/wait"))[-1] == ("assistant", end)
    assert server.made().count("book Lamb") == before + (answer == "yes")


@pytest.mark.kafka
@pytest.mark.parametrize("question", ["slow, please", "a bed, please"])
def test_a_cancelled_run_cancels_the_task_whether_it_works_or_asks(
    server: ToolServer, client: Client, question: str
) -> None:
    run = client.send("POST", "/runs", {"thread_id": client.thread(), "input": question, **GUIDE})["run_id"]
    last = "call_accepted" if question == "slow, please" else "run_paused"
    until(lambda: last in steps(server.events(run)), "the task is accepted, or asks")
    client.send("POST", f"/runs/{run}/cancel", status=204)
    task = task_of(server, run)
    until(lambda: steps(server.events(task))[-1] == "run_cancelled", "the task is cancelled, too")
    assert "ended A" not in server.made()


@pytest.mark.kafka
def test_a_changed_card_is_refused_until_a_person_accepts_it(server: ToolServer, client: Client) -> None:
    register_again = {"agent_id": "host", "model_id": "sums", "capabilities": ["flights"], "tool_ids": ["weather"]}
    added(client.ask("POST", "/rl/agents", register_again))
    assert roles(client.run(client.thread(), "how is Ulm", **GUIDE))[-1] == ("assistant", "I may not ask them.")
    [row] = [row for row in client.ask("GET", "/mcp/tools").json()["data"] if row["tool_id"] == "far_host"]
    assert not row["trusted"] and row["digest"] != row["newest_digest"]
    accepted = client.ask("POST", "/mcp/tools/far_host/accept", {"digest": row["newest_digest"]}).json()["data"][0]
    assert accepted["trusted"] and "flights" in accepted["description"]


@pytest.mark.kafka
def test_a_task_ends_with_the_time_of_its_run_and_its_answer_may_be_that_of_the_run(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    methods: list[str] = []

    def answers(method: str, _: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if method == "GET":
            return ok(card(url))
        call = json.loads(body)
        methods.append(call["method"])
        if "for ever" in body.decode() or call["method"] != "SendMessage":
            working = task("TASK_STATE_WORKING")
            return ok({"result": {"task": working} if call["method"] == "SendMessage" else working})
        return ok({"result": {"task": task("TASK_STATE_COMPLETED", artifacts=[{"parts": [{"text": "From afar."}]}])}})

    script = {
        "replies": [
            {"when": "hand me over", "reply": tool_call("far", message="hello")},
            {"when": "too long", "reply": tool_call("far", message="for ever")},
        ]
    }
    with peer(answers) as url, with_tools(kafka_bootstrap, tmp_path, script) as plain:
        limited = {"environments": Environments(servers=f"a2a:{url}"), "threads": Threads(run_s=2)}
        tools = plain._replace(settings=plain.settings.model_copy(update=limited))
        with audited(tools.settings):
            client = client_of(tools)
            added(client.ask("POST", "/mcp/tools", {"tool_id": "far", "endpoint": f"a2a:{url}", "handoff": True}))
            added(client.ask("POST", "/rl/agents", {**GUIDE, "model_id": "sums", "tool_ids": ["far"]}))
            run = client.run(client.thread(), "too long", **GUIDE)["run"]
            assert (run["status"], run["error"]) == ("timeout", "it has no answer after 2 s (threads.run_s)")
            until(lambda: "CancelTask" in methods, "the task is cancelled")
            handed = client.run(client.thread(), "hand me over", **GUIDE)
            assert roles(handed)[-2:] == [("tool", "From afar."), ("assistant", "From afar.")]


@pytest.mark.kafka
@pytest.mark.kills
@pytest.mark.parametrize("pause_s", [0.1, 1.0])
def test_after_kill_9_the_next_server_continues_the_same_task(
    kafka_bootstrap: str, tmp_path: Path, pause_s: float
) -> None:
    with with_tools(kafka_bootstrap, tmp_path, FAR) as plain:
        tools = with_neighbour(plain)
        admin.apply_topics(tools.settings)
        server = ServeProcess(tools.settings, tmp_path)
        client = client_of(tools)
        register_all(client)
        again = {"agent_id": "host", "model_id": "sums", "tool_ids": ["again"]}
        added(client.ask("POST", "/rl/agents", again))
        register_far = {"tool_id": "far_host", "endpoint": endpoint_of(tools)}
        added(client.ask("POST", "/mcp/tools", register_far))
        added(client.ask("POST", "/rl/agents", {**GUIDE, "model_id": "sums", "tool_ids": ["far_host"]}))
        run = client.send("POST", "/runs", {"thread_id": client.thread(), "input": "again, please", **GUIDE})["run_id"]
        until(lambda: "call_accepted" in steps(tools.events(run)), "the task is accepted", folder=tmp_path)
        time.sleep(pause_s)
        server.kill()
        server.start()
        assert roles(client.send("GET", f"/runs/{run}/wait"))[-1] == ("assistant", "It was done.")
        requested = [event for _, event in read(tools.settings, ThreadEvent) if event.kind == "run_requested"]
        assert {event.run_id for event in requested} == {run, task_of(tools, run)}
        kinds = steps(tools.events(run))
        assert (kinds.count("call_begun"), kinds.count("call_accepted"), kinds.count("call_ended")) == (1, 1, 1)
        server.stop()
        check_audit(tools.settings)
