"""Runs that act: the server calls an agent's tools within a run, asks where it has to, and is killed meanwhile."""

from __future__ import annotations

import json
import random
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.log.run_tools import CallStop
from schemas.events import ThreadEvent, TrajectoryEvent, Turn
from streams.kafka import admin
from tests.plugins.threads.thread_server import Client
from tests.plugins.threads.tool_server import (
    AGENTS,
    ToolServer,
    added,
    register_agents,
    register_all,
    tool_call,
    with_tools,
)
from tests.support.agent_server import ServeProcess, audited
from tests.support.commands import invoke
from tests.support.log.keys import open_keys
from tests.support.processes import read, until

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def server(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolServer]:
    with with_tools(kafka_bootstrap, tmp_path_factory.mktemp("acting")) as tools, audited(tools.settings):
        register_all(client_of(tools))
        yield tools


def client_of(server: ToolServer) -> Client:
    return Client(f"http://127.0.0.1:{server.settings.serve.port}", {})


@pytest.fixture
def client(server: ToolServer) -> Client:
    return client_of(server)


def roles(answer: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in answer["messages"]]


def steps(events: list[ThreadEvent]) -> list[str]:
    return [event.kind for event in events]


HOST = {"agent_id": "host"}
WEATHER = [
    ("user", "weather in Ulm?"),
    ("assistant", "Let me look."),
    ("tool", "31 degrees in Ulm"),
    ("assistant", "Hot."),
]


def test_a_run_calls_a_tool_and_answers_with_its_result(server: ToolServer, client: Client) -> None:
    run = client.run(client.thread(), "weather in Ulm?", agent_id="host")
    assert (run["run"]["status"], roles(run)) == ("success", WEATHER)
    events = server.events(run["run"]["run_id"])
    assert steps(events) == ["run_requested", "run_answered", "call_begun", "call_ended", "run_ended"]
    ended = events[3].call
    assert ended is not None and ended.error is None and ended.duration_ms is not None and len(ended.digest or "") == 64
    assert (ended.tool_id, json.loads(ended.arguments)) == ("weather", {"city": "Ulm"})
    turns = [turn for _, turn in read(server.settings, Turn) if turn.trajectory_id == run["run"]["run_id"]]
    assert [turn.number for turn in turns] == [0, 1]
    assert turns[1].parent_id == turns[0].turn_id, "the second call continues the first"
    again = client.run(run["run"]["thread_id"], "weather in Ulm?", agent_id="host")
    assert roles(again)[: len(WEATHER)] == WEATHER


def test_a_stream_has_each_step_as_it_happens_and_goes_on_after_any_event(client: Client) -> None:
    body = {"thread_id": client.thread(), "input": "weather in Ulm?", "agent_id": "host"}
    body["stream_mode"] = ["messages", "updates", "values"]
    events = list(client.stream("POST", "/runs/stream", body))
    whole = [event for event in events if event["event"] != "messages/partial"]
    complete = ["messages/complete", "updates", "values"]
    assert [event["event"] for event in whole] == ["metadata", "values", *complete * 3, "end"]
    assert [event["id"] for event in whole] == [
        "0",
        "1",
        "3",
        "4",
        "5",
        "1-3",
        "1-4",
        "1-5",
        "2-3",
        "2-4",
        "2-5",
        "2-7",
    ]
    updates = [json.loads(event["data"]) for event in whole if event["event"] == "updates"]
    assert [list(update) for update in updates] == [["host"], ["tools"], ["host"]]
    assert roles(json.loads(whole[-2]["data"])) == WEATHER
    run = json.loads(whole[0]["data"])["run_id"]
    path = f"/runs/{run}/stream?stream_mode=values&stream_mode=messages&stream_mode=updates"
    for place, event in enumerate(whole[:-1]):
        assert list(client.stream("GET", path, after=event["id"])) == whole[place + 1 :]


def booked(client: Client) -> Any:
    """Return a run that waits for consent, after the call that needs none."""
    run = client.run(client.thread(), "book the Lamb", agent_id="host")
    assert run["run"]["status"] == "interrupted"
    [wait] = run["run"]["requires_action"]
    assert (wait["name"], wait["arguments"], wait["waits_for"]) == ("book", {"hotel": "Lamb"}, "consent")
    return run["run"]


@pytest.mark.parametrize(("answer", "said"), [("yes", "You sleep at the Lamb."), (False, "Then not.")])
def test_a_call_that_needs_consent_is_made_once_a_person_says_yes(
    server: ToolServer, client: Client, answer: Any, said: str
) -> None:
    before = server.made().count("book Lamb")
    run = booked(client)
    assert client.send("GET", f"/threads/{run['thread_id']}")["status"] == "interrupted"
    body = {"thread_id": run["thread_id"], "input": "and?", "agent_id": "host"}
    assert "waits for run" in client.send("POST", "/runs", body, 409)["message"]
    resumed = client.send("POST", f"/runs/{run['run_id']}/resume", {"resume": answer})
    assert resumed["run_id"] == run["run_id"]
    ended = client.send("GET", f"/runs/{run['run_id']}/wait")
    assert (ended["run"]["status"], roles(ended)[-1][1]) == ("success", said)
    assert server.made().count("book Lamb") - before == (answer == "yes")
    [decision] = [event for event in server.events(run["run_id"]) if event.kind == "run_resumed"]
    assert (decision.actor, decision.decisions[0].allowed) == ("api", answer == "yes")
    late = client.send("POST", f"/runs/{run['run_id']}/resume", {"resume": answer}, 409)
    assert "waits for nothing" in late["message"]


@pytest.mark.parametrize("by_message", [False, True])
def test_a_tool_of_the_client_interrupts_the_run_which_goes_on_with_the_result(
    client: Client, by_message: bool
) -> None:
    thread = client.thread()
    stream = {"thread_id": thread, "input": "which size?", "agent_id": "host", "stream_mode": ["values"]}
    first = list(client.stream("POST", "/runs/stream", stream))
    [question] = json.loads(first[-2]["data"])["__interrupt__"]
    assert (first[-1]["event"], question["value"]["waits_for"]) == ("end", "results")
    result = [{"role": "tool", "content": "large", "tool_call_id": question["id"]}]
    answer = {"messages": result} if by_message else {"command": {"resume": "large"}}
    body = {"thread_id": thread, "agent_id": "host", "stream_mode": ["messages", "values"], **answer}
    rest = list(client.stream("POST", "/runs/stream", body))
    assert json.loads(rest[0]["data"])["run_id"] == json.loads(first[0]["data"])["run_id"]
    kinds = [event["event"] for event in rest if event["event"] != "messages/partial"]
    assert kinds == ["metadata", *["messages/complete", "values"] * 2, "end"]
    assert [content for _, content in roles(json.loads(rest[-2]["data"]))][-2:] == ["large", "Large it is."]


def test_a_run_ends_by_the_name_of_its_limit(server: ToolServer, client: Client) -> None:
    body = {"config": {"recursion_limit": 3}, "agent_id": "host"}
    run = client.run(client.thread(), "for ever", **body)["run"]
    assert run["status"] == "error" and "3 answers" in run["error"] and "recursion_limit" in run["error"]
    events = server.events(run["run_id"])
    assert (events[-1].ending, steps(events).count("call_ended")) == ("max_turns", 2)


def test_a_tool_that_fails_is_a_result_that_the_model_reads(server: ToolServer, client: Client) -> None:
    run = client.run(client.thread(), "break it", agent_id="host")
    assert roles(run)[-1] == ("assistant", "It is broken.")
    [ended] = [event.call for event in server.events(run["run"]["run_id"]) if event.kind == "call_ended"]
    assert ended is not None and ended.error is not None
    turns = [turn for _, turn in read(server.settings, Turn) if turn.trajectory_id == run["run"]["run_id"]]
    assert json.loads(turns[1].metadata["failed_tools"]) == [ended.call_id]


def test_a_cancelled_run_stops_the_call_in_progress(server: ToolServer, client: Client) -> None:
    thread, before = client.thread(), server.made().count("begun A")
    run = client.send("POST", "/runs", {"thread_id": thread, "input": "wait for A", "agent_id": "host"})["run_id"]
    until(lambda: server.made().count("begun A") > before, "the tool has begun")
    client.send("POST", f"/runs/{run}/cancel", status=204)
    assert client.send("GET", f"/runs/{run}/wait")["run"]["status"] == "interrupted"
    assert roles(client.run(thread, "weather in Ulm?", agent_id="host"))[-1] == WEATHER[-1]
    assert "ended A" not in server.made()
    assert steps(server.events(run))[-1] == "run_cancelled"


def test_calls_of_one_answer_are_made_at_the_same_time_and_their_results_are_in_its_order(
    server: ToolServer, client: Client
) -> None:
    run = client.run(client.thread(), "both", agent_id="host")
    assert [said for _, said in roles(run)][2:] == ["A was after B", "waited B", "B was last."]
    results = [event.call for event in server.events(run["run"]["run_id"]) if event.kind == "call_ended"]
    assert [(call.tool_id, call.error) for call in results if call is not None] == [("after", None), ("wait", None)]


def test_an_environment_keeps_its_state_from_call_to_call_of_a_run_and_begins_anew_in_the_next(client: Client) -> None:
    board = {"environment": "tictactoe", "seed": 3, "settings": {"tools": True}, "name": "board"}
    tried = client.ask("POST", "/rl/environments", board)
    assert tried.status_code == 200, tried.text
    added(client.ask("POST", "/rl/agents", {"agent_id": "player", "model_id": "sums", "tool_ids": ["board.mark"]}))
    for thread in (client.thread(), client.thread()):
        first, second = [said for role, said in roles(client.run(thread, "play", agent_id="player")) if role == "tool"]
        assert (first.splitlines()[1], second) == ("4 X 6", "error: free are 2 3 4 6 7 8 9")


# --- rights -----------------------------------------------------------------------------------------------------------


def test_a_run_calls_nothing_that_its_caller_may_not_call_now(kafka_bootstrap: str, tmp_path: Path) -> None:
    with with_tools(kafka_bootstrap, tmp_path, auth="keys") as tools:
        admin.apply_topics(tools.settings)
        with open_keys(tools.settings) as person, audited(tools.settings) as url:
            owner, caller = (person.create(role=role, actor="ann") for role in ("admin", "submitter"))
            red = person.create(role="submitter", tenant="red", actor="ann")
            clients = [Client(url, {"x-api-key": key.text, "x-agent-id": "host"}) for key in (owner, caller, red)]
            register_all(clients[0])
            run = booked(clients[1])
            person.revoke(caller.key_id, actor="ann", reason="it left")
            clients[0].send("POST", f"/runs/{run['run_id']}/resume", {"resume": "yes"})
            ended = clients[0].send("GET", f"/runs/{run['run_id']}/wait")
            assert roles(ended)[-2:] == [("tool", f"key {caller.key_id} was revoked"), ("assistant", "I may not.")]
            [made] = [event.call for event in tools.events(run["run_id"]) if event.kind == "call_ended"][1:]
            assert made is not None and (made.error, made.duration_ms) == ("denied", None)
            other = clients[2].run(clients[2].thread(), "weather in Ulm?", agent_id="host")
            assert roles(other)[-1] == ("assistant", "I may not."), "the registry of a tenant is its own"
        assert tools.made() == ["weather Ulm"]


def test_a_call_that_is_stopped_before_it_opens_its_endpoint_ends_when_it_does() -> None:
    stop, killed = CallStop(), list[str]()
    stop.stop()
    stop.arm(lambda: killed.append("late"))
    assert killed == ["late"]


def test_a_call_that_has_ended_holds_no_process_and_ends_none() -> None:
    """Its process makes the next call; 277 of them were held at once, each until objects in a circle were collected."""

    class Endpoint:
        was_killed = False

        def kill(self) -> None:
            Endpoint.was_killed = True

    endpoint, stop = Endpoint(), CallStop(accept=lambda _: stop.stop())
    stop.arm(endpoint.kill)
    held = weakref.ref(endpoint)
    del endpoint
    assert held() is not None
    stop.disarm()
    stop.stop()
    assert held() is None and not Endpoint.was_killed


def test_a_run_that_waits_for_a_person_is_not_ended_as_one_that_was_abandoned(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    with with_tools(kafka_bootstrap, tmp_path, idle_s=0.5) as tools, audited(tools.settings):
        client = client_of(tools)
        register_all(client)
        waiting = booked(client)["run_id"]
        idle = client.run(client.thread(), "weather in Ulm?", agent_id="host")["run"]["run_id"]
        until(lambda: idle in turns_of_ended(tools), "the trajectory of a run that has ended is ended")
        assert waiting not in turns_of_ended(tools)
        client.send("POST", f"/runs/{waiting}/resume", {"resume": "yes"})
        until(lambda: waiting in turns_of_ended(tools), "the trajectory is ended after its run")
        assert turns_of_ended(tools) == {idle: 2, waiting: 2}


def test_a_run_that_ends_without_the_consent_it_asked_for_says_so_in_every_view_of_runs(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    with with_tools(kafka_bootstrap, tmp_path, AGENTS, idle_s=0.5) as tools, audited(tools.settings) as url:
        client = client_of(tools)
        register_agents(client)
        asked = {"book the Lamb": "host", "which size?": "host", "a bed, please": "boss"}
        runs = [client.run(client.thread(), text, agent_id=agent)["run"]["run_id"] for text, agent in asked.items()]
        for run in runs:
            client.send("POST", f"/runs/{run}/cancel", status=204)
        until(lambda: set(runs) <= turns_of_ended(tools).keys(), "the trajectories are ended")
        listed = invoke(tools.settings, "runs", "list", "--output", "jsonl").stdout.splitlines()
        rows = {row["run_ids"][0]: row["ending"] for row in map(json.loads, listed)}
        over_http = httpx.get(f"{url}/runs").json()["data"]
    assert [rows[run] for run in runs] == ["waits_for_consent", "waits_for_tool", "waits_for_consent"]
    assert {row["run_ids"][0]: row["ending"] for row in over_http} == rows


def turns_of_ended(server: ToolServer) -> dict[str, int | None]:
    ended = (event for _, event in read(server.settings, TrajectoryEvent) if event.kind == "ended")
    return {event.trajectory_id: event.turns for event in ended}


# --- kill -9 ----------------------------------------------------------------------------------------------------------

NAMES = ("wait a", "wait b", "again c", "again d")
"""Two calls that may not be made again, and two that may."""
KILLED: dict[str, Any] = {
    "replies": [
        *({"when": f"please {name}", "reply": tool_call(name[:-2], name=name[-1])} for name in NAMES),
        *({"when": f"tool: waited {name[-1]}", "reply": f"{name[-1]} is done."} for name in NAMES),
        {"when": "tool: it was done", "reply": "So it was."},
    ]
}


@pytest.mark.kills
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_kill_9_in_mid_call_no_step_is_lost_and_none_is_made_twice(
    kafka_bootstrap: str, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    with with_tools(kafka_bootstrap, tmp_path, KILLED) as tools:
        admin.apply_topics(tools.settings)
        server = ServeProcess(tools.settings, tmp_path)
        client = client_of(tools)
        register_all(client)
        runs = {
            name: client.send("POST", "/runs", {"thread_id": client.thread(), "input": f"please {name}"} | HOST)[
                "run_id"
            ]
            for name in NAMES
        }
        until(lambda: tools.made() != [], "a call has begun", folder=tmp_path)
        time.sleep(draw.uniform(0, 3))
        server.kill()
        server.start()
        allowed = []
        for name, run_id in runs.items():
            run = client.send("GET", f"/runs/{run_id}/wait")["run"]
            if run["status"] == "interrupted":
                assert [wait["waits_for"] for wait in run["requires_action"]] == ["unfinished"], (
                    "a person has to say so"
                )
                answer = draw.choice(["yes", "it was done"])
                allowed += [name] if answer == "yes" else []
                client.send("POST", f"/runs/{run_id}/resume", {"resume": answer})
                run = client.send("GET", f"/runs/{run_id}/wait")["run"]
            assert run["status"] == "success"
            kinds = steps(tools.events(run_id))
            results = kinds.count("call_ended") + kinds.count("run_resumed") - (name in allowed)
            assert (kinds.count("run_answered"), results, kinds.count("run_ended")) == (1, 1, 1)
            begun = tools.made().count(f"begun {name[-1]}")
            assert begun == kinds.count("call_begun") or begun == kinds.count("call_begun") - 1
            assert begun <= (2 if name.startswith("again") or name in allowed else 1)
        server.stop()
