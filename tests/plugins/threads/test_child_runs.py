"""Agents that are tools of agents: each call is a run of its own, bounded, cancelled and continued with its parent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from plugins.threads.acp.run_limits import RunLimits
from plugins.threads.log.thread_settings import Threads
from plugins.threads.log.thread_state import RunState, fold
from schemas.events import Message, RunCall, ThreadEvent, ToolCall, TrajectoryEvent
from streams.kafka import admin
from streams.settings.model import Settings
from tests.plugins.threads.test_a2a import call, message, refusal
from tests.plugins.threads.test_acting_runs import client_of, roles, steps
from tests.plugins.threads.thread_server import Client
from tests.plugins.threads.tool_server import AGENTS, ToolServer, register_agents, with_tools
from tests.support.agent_server import ServeProcess, audited, check_audit
from tests.support.commands import invoke, rows_of
from tests.support.factories import thread_event
from tests.support.log.keys import open_keys
from tests.support.processes import read, until

BOSS = {"agent_id": "boss"}


@pytest.fixture(scope="module")
def server(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolServer]:
    with with_tools(kafka_bootstrap, tmp_path_factory.mktemp("children"), AGENTS, idle_s=2) as plain:
        limited = plain.settings.model_copy(update={"threads": Threads(max_turns=3)})
        tools = plain._replace(settings=limited)
        with audited(tools.settings):
            register_agents(client_of(tools))
            yield tools


@pytest.fixture
def client(server: ToolServer) -> Client:
    return client_of(server)


def child_of(server: ToolServer, run_id: str) -> str:
    """Return the only child of a run."""
    [child] = {event.call.child_run for event in server.events(run_id) if event.call and event.call.child_run}
    return child


@pytest.mark.kafka
def test_a_call_of_an_agent_is_a_run_of_its_own_whose_answer_is_the_result(server: ToolServer, client: Client) -> None:
    run = client.run(client.thread(), "how is Ulm", **BOSS)
    assert roles(run)[-2:] == [("tool", "Hot."), ("assistant", "The host says: hot.")]
    name = run["run"]["run_id"]
    assert steps(server.events(name)) == ["run_requested", "run_answered", "call_begun", "call_ended", "run_ended"]
    child = server.events(child_of(server, name))
    assert steps(child) == ["run_requested", "run_answered", "call_begun", "call_ended", "run_ended"]
    asked, ended = child[0], server.events(name)[3].call
    assert asked.parent is not None and ended is not None
    assert (asked.parent.run_id, asked.parent.depth, asked.agent_id, asked.actor) == (name, 1, "host", "api")
    assert ended.completion_tokens and ended.duration_ms is not None
    columns = "agent_id, depth, tool_id, ending"
    sql = f"SELECT {columns} FROM run_tree WHERE '{name}' IN (run_id, parent_id) ORDER BY depth"  # noqa: S608
    rows = [tuple(row.values()) for row in rows_of(invoke(server.settings, "query", sql))]
    assert rows == [("boss", 0, None, "success"), ("host", 1, "ask_host", "success")]


@pytest.mark.kafka
@pytest.mark.parametrize("by_child", [False, True])
def test_a_run_waits_for_its_child_that_waits_and_goes_on_with_it(
    server: ToolServer, client: Client, by_child: bool
) -> None:
    before = server.made().count("book Lamb")
    run = client.run(client.thread(), "a bed, please", **BOSS)["run"]
    [wait] = run["requires_action"]
    assert (run["status"], wait["name"], wait["waits_for"]) == ("interrupted", "ask_host", "child")
    child = client.send("GET", f"/runs/{wait['run_id']}")
    assert [call["waits_for"] for call in child["requires_action"]] == ["consent"]
    answered = child["run_id"] if by_child else run["run_id"]
    client.send("POST", f"/runs/{answered}/resume", {"resume": "yes"})
    if by_child:
        until(lambda: "run_resumed" in steps(server.events(run["run_id"])), "its parent goes on")
    ended = client.send("GET", f"/runs/{run['run_id']}/wait")
    assert roles(ended)[-1] == ("assistant", "A bed at the Lamb.")
    assert server.made().count("book Lamb") == before + 1


@pytest.mark.kafka
def test_an_answer_that_was_passed_to_a_child_may_be_sent_again(server: ToolServer, client: Client) -> None:
    task = call(client, "SendMessage", message("a bed, please"), "boss")["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    before, yes = server.made().count("book Lamb"), message("yes", taskId=task["id"])
    ended = call(client, "SendMessage", yes, "boss")["task"]
    assert ended["status"]["state"] == "TASK_STATE_COMPLETED"
    assert call(client, "SendMessage", yes, "boss")["task"] == ended
    assert refusal(client, "SendMessage", message("yes", taskId=task["id"]), "boss")[1] == "UNSUPPORTED_OPERATION"
    assert server.made().count("book Lamb") == before + 1


@pytest.mark.kafka
def test_a_cancelled_run_cancels_its_child(server: ToolServer, client: Client) -> None:
    run = client.send("POST", "/runs", {"thread_id": client.thread(), "input": "slow, please", **BOSS})["run_id"]
    until(lambda: "begun A" in server.made(), "the tool of the child has begun")
    client.send("POST", f"/runs/{run}/cancel", status=204)
    child = client.send("GET", f"/runs/{child_of(server, run)}/wait")["run"]
    assert child["status"] == "interrupted" and "ended A" not in server.made()
    waiting = client.run(client.thread(), "a bed, please", **BOSS)["run"]
    client.send("POST", f"/runs/{waiting['run_id']}/cancel", status=204)
    name = waiting["requires_action"][0]["run_id"]
    until(lambda: steps(server.events(name))[-1] == "run_cancelled", "a child that waits is cancelled, too")


@pytest.mark.kafka
def test_a_circle_of_agents_and_a_child_without_an_answer_end_by_name(server: ToolServer, client: Client) -> None:
    run = client.run(client.thread(), "in circles", agent_id="circle")
    assert roles(run)[-1] == ("assistant", "Deep enough.")
    events, name = list[ThreadEvent](), run["run"]["run_id"]
    for _ in range(4):
        events += server.events(name)
        name = child_of(server, name)
    [refused] = [event.call for event in server.events(name) if event.kind == "call_ended"]
    assert refused is not None and (refused.error, refused.child_run) == ("max_depth", None)
    assert [event.parent.depth for event in events if event.parent is not None] == [1, 2, 3]
    lost = client.run(client.thread(), "for long, please", **BOSS)
    assert roles(lost)[-1] == ("assistant", "The host did not say.")
    [ended] = [event.call for event in server.events(lost["run"]["run_id"]) if event.kind == "call_ended"]
    assert ended is not None and ended.error == "max_turns"


@pytest.mark.kafka
def test_a_run_that_is_handed_over_ends_with_the_answer_of_the_other_agent(server: ToolServer, client: Client) -> None:
    thread = client.thread()
    run = client.run(thread, "hand me to Ulm", agent_id="desk")
    assert roles(run)[-2:] == [("tool", "Hot."), ("assistant", "Hot.")]
    name = run["run"]["run_id"]
    events = server.events(name)
    assert steps(events) == ["run_requested", "run_answered", "call_begun", "call_ended", "run_ended"]
    assert (events[-1].ending, events[-1].turn_id) == ("success", None) and events[-1].metadata["handoff"]
    sql = f"SELECT agent_id, handoff FROM run_tree WHERE '{name}' IN (run_id, parent_id) ORDER BY depth"  # noqa: S608
    rows = [tuple(row.values()) for row in rows_of(invoke(server.settings, "query", sql))]
    assert rows == [("desk", False), ("host", True)]
    assert roles(client.run(thread, "and Bonn?", agent_id="desk"))[-1] == ("assistant", "I do not know.")
    until(lambda: ("ended", "Hot.") in ends_of(server, name), "its trajectory has ended, with that answer")


def ends_of(server: ToolServer, trajectory_id: str) -> list[tuple[str, str | None]]:
    events = [event for _, event in read(server.settings, TrajectoryEvent) if event.trajectory_id == trajectory_id]
    return [(event.kind, event.output) for event in events]


@pytest.mark.kafka
def test_an_agent_without_an_answer_takes_no_run_over(server: ToolServer, client: Client) -> None:
    run = client.run(client.thread(), "hand me to nowhere", agent_id="desk")
    assert roles(run)[-1] == ("assistant", "The host did not say.")
    refused = client.ask("POST", "/mcp/tools", {"tool_id": "x", "endpoint": "functions_of_runs:book", "handoff": True})
    assert refused.status_code == 400 and "an agent alone takes a run over" in refused.text


@pytest.mark.kafka
def test_a_key_of_one_agent_calls_no_other_through_a_tool(kafka_bootstrap: str, tmp_path: Path) -> None:
    with with_tools(kafka_bootstrap, tmp_path, AGENTS, auth="keys") as tools:
        admin.apply_topics(tools.settings)
        with open_keys(tools.settings) as person, audited(tools.settings) as url:
            owner = Client(url, {"x-api-key": person.create(role="admin", actor="ann").text})
            register_agents(owner)
            for agent, question in (("boss", "how is Ulm"), ("desk", "hand me to Ulm")):
                key = person.create(role="submitter", agent_id=agent, actor="ann")
                bound = Client(url, {"x-api-key": key.text, "x-agent-id": agent})
                run = bound.run(bound.thread(), question, agent_id=agent)
                assert roles(run)[-2:] == [("tool", "there is no agent 'host'"), ("assistant", "I may not ask them.")]
                [refused] = [one.call for one in tools.events(run["run"]["run_id"]) if one.kind == "call_ended"]
                assert refused is not None and (refused.error, refused.child_run) == ("not_found", None)
            assert tools.made() == [], "the other agent was not run"
            assert roles(owner.run(owner.thread(), "how is Ulm", **BOSS))[-1] == ("assistant", "The host says: hot.")
            assert tools.made() == ["weather Ulm"]


def test_a_child_shares_the_limits_of_the_runs_above_it() -> None:
    usage = {"turn_id": "turn", "prompt_tokens": 5, "completion_tokens": 8}
    call = ToolCall(id="a", name="ask", arguments="{}")
    answer = thread_event(
        "run_answered",
        event_id="answered",
        messages=(Message(role="assistant", content="", tool_calls=(call,)),),
        **usage,
    )
    made = RunCall(call_id="a", tool_id="ask", arguments="{}", child_run="c", prompt_tokens=2, completion_tokens=3)
    result = Message(role="tool", content="2", tool_call_id="a")
    ended = thread_event("call_ended", event_id="ended", turn_id="turn", call=made, messages=(result,))
    state = None
    for event in (thread_event("created"), thread_event("run_requested"), answer, ended):
        state = fold(state, event)
    assert state is not None
    parent = state.runs["r"]
    assert (parent.steps.prompt_tokens, parent.steps.completion_tokens) == (7, 11), "with those of its child"
    limits = RunLimits(Settings().model_copy(update={"threads": Threads(max_tokens=11)}))
    child = RunState(request=replace(thread_event("run_requested"), run_id="c"), updated_at=0)
    assert limits.limit_of(child) is None
    outcome = limits.limit_of(child, [parent])
    assert outcome is not None and outcome.ending == "max_tokens"


@pytest.mark.kafka
@pytest.mark.kills
@pytest.mark.parametrize("pause_s", [0.1, 0.8, 2.0])
def test_after_kill_9_in_mid_child_it_is_the_same_run(kafka_bootstrap: str, tmp_path: Path, pause_s: float) -> None:
    with with_tools(kafka_bootstrap, tmp_path, AGENTS) as tools:
        admin.apply_topics(tools.settings)
        server = ServeProcess(tools.settings, tmp_path)
        client = client_of(tools)
        register_agents(client)
        body = {"thread_id": client.thread(), "input": "again, please", **BOSS}
        run = client.send("POST", "/runs", body)["run_id"]
        until(lambda: "begun A" in tools.made(), "the call of the child has begun", folder=tmp_path)
        time.sleep(pause_s)
        server.kill()
        server.start()
        ended = client.send("GET", f"/runs/{run}/wait")
        assert roles(ended)[-1] == ("assistant", "It was done.")
        events = [event for _, event in read(tools.settings, ThreadEvent)]
        assert len({event.run_id for event in events if event.kind == "run_requested"}) == 2
        for name in (run, child_of(tools, run)):
            kinds = steps(tools.events(name))
            assert (kinds.count("run_answered"), kinds.count("call_ended"), kinds.count("run_ended")) == (1, 1, 1)
        assert steps(tools.events(run)).count("call_begun") == 1
        server.stop()
        check_audit(tools.settings)
