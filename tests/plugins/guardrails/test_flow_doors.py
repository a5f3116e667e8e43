"""The rule by flow at each door: the same verdict in the same words, and consents with who gave them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from plugins.guardrails.guardrail_settings import Guardrails
from schemas.events import GuardrailVerdict, Observed, Sampling
from streams.settings.model import Settings
from tests.plugins.threads.thread_server import Client
from tests.plugins.threads.tool_server import ToolServer, added, tool_call, with_tools
from tests.support.agent_server import audited
from tests.support.processes import read

pytestmark = pytest.mark.kafka

SCRIPT: dict[str, Any] = {
    "replies": [
        {"when": "plan my night", "reply": tool_call("weather", city="Ulm")},
        {"when": "tool: 31 degrees in Ulm", "reply": tool_call("book", hotel="Lamb")},
        {"when": "tool: booked Lamb", "reply": "You sleep at the Lamb."},
        {"when": "only book", "reply": tool_call("book", hotel="Lamb")},
        {"when": "tool: a person refused this call", "reply": "Then not."},
        {"when": "ask the clerk", "reply": tool_call("weather", city="Bonn")},
        {"when": "tool: 31 degrees in Bonn", "reply": tool_call("ask_clerk", message="only book")},
        {"when": "tool: You sleep at the Lamb.", "reply": "Done."},
    ]
}
ASKS = "book sends, pays, deletes or reaches outside, and {}; a person has to consent to this call"
AFTER_WEATHER = ASKS.format("text from an untrusted source was read before: weather")
UNKNOWN = ASKS.format("this server does not know what its caller has read")
READ: list[dict[str, Any]] = [
    {"role": "user", "content": "plan my night"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "31 degrees in Ulm"},
]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
    for name in ("weather", "book")
]


class Door(NamedTuple):
    """A server with the rule, and somebody who calls it."""

    tools: ToolServer
    client: Client

    @property
    def settings(self) -> Settings:
        return self.tools.settings

    def verdicts(self, conversation: str | None) -> list[tuple[str, str]]:
        """Return the verdicts on calls in a conversation, with their reasons."""
        events = (event for _, event in read(self.settings, GuardrailVerdict))
        return [(event.verdict, event.reason) for event in events if event.trajectory_id == conversation]

    def answer(self, trajectory: str, **body: Any) -> httpx.Response:
        path = f"/agents/host/trajectories/{trajectory}/v1/chat/completions"
        return self.client.ask("POST", path, {"model": "sums", "messages": READ, "tools": TOOLS, **body})

    def consent(self, **body: str) -> None:
        added(self.client.ask("POST", "/guardrails/consents", {"reason": "she was asked", "tool_id": "book", **body}))


@pytest.fixture(scope="module")
def door(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with with_tools(kafka_bootstrap, tmp_path_factory.mktemp("flow"), SCRIPT) as plain:
        rule = Guardrails(flow="enforce")
        settings = plain.settings.model_copy(update={"guardrails": rule})
        with audited(settings) as url:
            door = Door(plain._replace(settings=settings), Client(url, {}))
            entries = ({"tool_id": "weather", "untrusted": True}, {"tool_id": "book", "acts": True})
            for entry in entries:
                body = {"endpoint": f"functions_of_runs:{entry['tool_id']}", **entry}
                added(door.client.ask("POST", "/mcp/tools", body))
            added(door.client.ask("POST", "/mcp/tools", {"tool_id": "ask_clerk", "endpoint": "agent:clerk"}))
            agents = {"host": ["weather", "book"], "clerk": ["book"], "boss": ["weather", "ask_clerk"]}
            for agent, tool_ids in agents.items():
                body = {"agent_id": agent, "model_id": "sums", "tool_ids": tool_ids}
                added(door.client.ask("POST", "/rl/agents", body))
            yield door


@pytest.mark.parametrize(("answer", "said"), [("yes", "You sleep at the Lamb."), ("no", "Then not.")])
def test_a_run_asks_before_it_acts_on_untrusted_text(door: Door, answer: str, said: str) -> None:
    before = door.tools.made().count("book Lamb")
    run = door.client.run(door.client.thread(), "plan my night", agent_id="host")["run"]
    [waiting] = run["requires_action"]
    assert (run["status"], waiting["waits_for"], waiting["question"]) == ("interrupted", "consent", AFTER_WEATHER)
    door.client.send("POST", f"/runs/{run['run_id']}/resume", {"resume": answer})
    ended = door.client.send("GET", f"/runs/{run['run_id']}/wait")
    assert ended["messages"][-1]["content"] == said
    assert door.tools.made().count("book Lamb") - before == (answer == "yes")
    consented = ("pass", AFTER_WEATHER.replace("a person has to consent to this call", "api consented"))
    expected = [("block", AFTER_WEATHER), *([consented] if answer == "yes" else [])]
    assert door.verdicts(run["run_id"]) == expected


def test_a_run_that_has_read_nothing_untrusted_acts_at_once(door: Door) -> None:
    run = door.client.run(door.client.thread(), "only book", agent_id="host")
    assert run["messages"][-1]["content"] == "You sleep at the Lamb."
    assert [verdict for verdict, _ in door.verdicts(run["run"]["run_id"])] == ["pass"]


def test_a_thread_remembers_what_its_earlier_runs_have_read(door: Door) -> None:
    thread = door.client.thread()
    first = door.client.run(thread, "plan my night", agent_id="host")["run"]
    door.client.send("POST", f"/runs/{first['run_id']}/resume", {"resume": "no"})
    door.client.send("GET", f"/runs/{first['run_id']}/wait")
    second = door.client.run(thread, "only book", agent_id="host")["run"]
    assert second["requires_action"][0]["question"] == AFTER_WEATHER


def test_an_agent_that_answers_a_call_has_read_what_its_caller_read(door: Door) -> None:
    run = door.client.run(door.client.thread(), "ask the clerk", agent_id="boss")["run"]
    assert run["status"] == "interrupted"
    child = run["requires_action"][0]["run_id"]
    assert door.verdicts(child)[0][0] == "block"
    door.client.send("POST", f"/runs/{run['run_id']}/cancel", status=204)


def test_a_call_over_http_is_refused_in_the_same_words_until_somebody_consents(door: Door) -> None:
    def invoke(**headers: str) -> httpx.Response:
        url, sent = f"{door.client.url}/mcp/tools/book/invoke", {"arguments": {"hotel": "Lamb"}}
        return httpx.post(url, json=sent, headers=headers, timeout=300)

    refused = invoke()
    assert (refused.status_code, refused.json()["error"]["message"]) == (403, UNKNOWN)
    door.consent()
    assert (invoke().json()["content"], invoke().status_code) == ("booked Lamb", 403)
    assert door.answer("flow-1").status_code == 403
    named = invoke(**{"x-streamward-trajectory": "flow-1"})
    assert (named.status_code, named.json()["error"]["message"]) == (403, AFTER_WEATHER)
    streamed = httpx.post(
        f"{door.client.url}/mcp/stream", json={"calls": [{"id": "1", "tool": "book", "arguments": {}}]}, timeout=300
    )
    assert UNKNOWN in streamed.text


def test_a_call_by_json_rpc_is_refused_in_the_same_words_until_somebody_consents(door: Door) -> None:
    def call(**headers: str) -> tuple[bool, str]:
        asked = {"name": "book", "arguments": {"hotel": "Lamb"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
        sent = {"accept": "application/json, text/event-stream", **headers}
        result = httpx.post(f"{door.client.url}/mcp/registered", json=body, headers=sent, timeout=300).json()["result"]
        return result.get("isError", False), result["content"][0]["text"]

    assert call() == (True, UNKNOWN)
    door.consent()
    assert call() == (False, "booked Lamb")
    assert call() == (True, UNKNOWN)  # a consent lets one call pass
    assert door.answer("flow-rpc").status_code == 403
    assert call(**{"x-streamward-trajectory": "flow-rpc"}) == (True, AFTER_WEATHER)


def test_a_call_over_a_socket_is_refused_in_the_same_words_until_somebody_consents(door: Door) -> None:
    def call(calls: ClientConnection) -> dict[str, Any]:
        calls.send(json.dumps({"id": "1", "tool": "book", "arguments": {"hotel": "Lamb"}}))
        answer: dict[str, Any] = json.loads(calls.recv(timeout=300))
        return answer

    address = f"ws{door.client.url.removeprefix('http')}/mcp/stream"
    with connect(address) as calls:
        assert UNKNOWN in json.dumps(call(calls))
        door.consent()
        assert "booked Lamb" in json.dumps(call(calls))
        assert UNKNOWN in json.dumps(call(calls))
    assert door.answer("flow-socket").status_code == 403
    with connect(address, additional_headers={"x-streamward-trajectory": "flow-socket"}) as calls:
        assert AFTER_WEATHER in json.dumps(call(calls))


def test_an_answer_that_acts_on_untrusted_text_is_not_handed_out_until_somebody_consents(door: Door) -> None:
    refused = door.answer("flow-2")
    assert (refused.status_code, refused.json()["error"]["message"]) == (403, AFTER_WEATHER)
    streamed = door.answer("flow-3", stream=True)
    assert AFTER_WEATHER in streamed.text and "Lamb" not in streamed.text
    door.consent(agent_id="host", trajectory_id="flow-2")
    [choice] = door.answer("flow-2").json()["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "book"
    harmless = [{"role": "user", "content": "plan my night"}]
    assert door.answer("flow-4", messages=harmless).json()["choices"][0]["finish_reason"] == "tool_calls"


def test_an_episode_ends_with_the_reason_where_its_policy_acts_on_untrusted_text(door: Door) -> None:
    from plugins.agents.runs.connection_pool import KeptAlive
    from plugins.environments.episode_calls import CallFailed, ModelCalls

    run: Any = SimpleNamespace(
        base_url=f"{door.client.url}/agents/host/trajectories/flow-5",
        trajectory_id="flow-5",
        task=SimpleNamespace(policy="sums", sampling=Sampling()),
    )
    server = KeptAlive(door.client.url)
    calls = ModelCalls(server, run, 60.0, threading.Event())
    shown = Observed(environment="inn@1", seed=1, digest="0" * 64)
    with pytest.raises(CallFailed) as failed:
        calls.answer(READ, TOOLS, shown)
    assert (failed.value.ending, AFTER_WEATHER in str(failed.value)) == ("failed", True)
    server.close()
