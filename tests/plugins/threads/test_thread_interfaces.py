"""The interfaces of threads: rights, refusals in the words of each protocol, and clients of their older versions."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from gateway.http import jsonrpc
from gateway.http.application import Application
from gateway.http.door import Door
from gateway.http.limits import KeyLimits
from gateway.rooms.routes import ROUTES, TABLE
from plugins.threads.a2a.agent_cards import A2aCards
from plugins.threads.a2a.agent_tasks import A2A_METHODS, PUSH_METHODS, AgentMethods
from plugins.threads.acp.acp_agents import AcpAgents
from plugins.threads.acp.thread_interfaces import OLDER, OLDER_A2A
from streams.settings.model import Serve
from tests.import_graph import ROOT
from tests.support.callers import BEARER, Known

OLD_PATHS = (
    *("/.well-known/agent.json", "/a2a/default/.well-known/agent.json", "/ap/v1/agent/tasks", "/acp/agent/tasks"),
    *("/acp/assistants/search", "/acp/threads/t/state", "/acp/threads/count", "/acp/runs/crons", "/acp/runs/batch"),
)


@pytest.mark.parametrize("path", OLD_PATHS)
def test_a_path_of_an_older_protocol_says_what_is_spoken_to_any_key(path: str) -> None:
    nothing: Any = SimpleNamespace()
    served = Application((AcpAgents(nothing), A2aCards(nothing, "")), version="0", max_body_bytes=1_000)
    client = TestClient(Door(served, TABLE, Known("viewer"), KeyLimits(Serve())), headers=BEARER)
    answer, form = client.post(path), TABLE.older_form(path)
    assert form is not None and answer.status_code == 404
    assert f"POST {path}: this is {form.got}, and this server speaks {form.spoken}: {form.way_out}" in answer.text


def test_every_older_path_is_tried_and_none_has_a_route() -> None:
    assert {TABLE.older_form(path) for path in OLD_PATHS} == {form for _, form in (*OLDER, *OLDER_A2A)}
    assert [path for path in OLD_PATHS if TABLE.find("POST", path) is not None] == []


A2A_0 = (
    *("message/send", "message/stream", "tasks/send", "tasks/sendSubscribe", "tasks/get", "tasks/list", "tasks/cancel"),
    *("tasks/resubscribe", "tasks/pushNotification/set", "tasks/pushNotification/get"),
    *(f"tasks/pushNotificationConfig/{action}" for action in ("set", "get", "list", "delete")),
    "agent/getAuthenticatedExtendedCard",
)
"""The methods of A2A 0.2 and 0.3, section 7 of each."""


@pytest.mark.parametrize("method", [*A2A_0, "GetTask"])
def test_a_client_of_an_older_a2a_is_told_so_with_or_without_the_header(method: str) -> None:
    request = Request({"type": "http", "headers": []})
    methods = AgentMethods(cast(Any, None), cast(Any, None), request, cast(Any, SimpleNamespace())).table()
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "t"}}).encode()
    outcome = asyncio.run(jsonrpc.answer(call, methods, batches=False))
    error = cast(dict[str, Any], outcome)["error"]
    assert error["code"] == -32009 and "this server speaks A2A 1.0: use a client of A2A 1.0" in error["message"]
    assert A2A_METHODS.get(method, "A2A 0.3") in error["message"]


SDK = {
    "assistants": "POST /assistants/search, GET /assistants/a, POST /assistants, DELETE /assistants/a",
    "crons": "POST /runs/crons, POST /runs/crons/search, DELETE /runs/crons/c",
    "threads.count": "POST /threads/count",
    "threads.prune": "POST /threads/prune",
    "threads.get_state": "GET /threads/t/state",
    "threads.update_state": "POST /threads/t/state",
    "threads.stream": "POST /threads/t/commands, POST /threads/t/stream/events",
    "threads.join_stream": "GET /threads/t/stream",
    "runs.create_batch": "POST /runs/batch",
    "runs.cancel_many": "POST /runs/cancel",
    "threads.create": "POST /threads",
    "threads.get": "GET /threads/t",
    "threads.update": "PATCH /threads/t",
    "threads.delete": "DELETE /threads/t",
    "threads.search": "POST /threads/search",
    "threads.copy": "POST /threads/t/copy",
    "threads.get_history": "POST /threads/t/history",
    "runs.create": "POST /threads/t/runs, POST /runs",
    "runs.stream": "POST /threads/t/runs/stream, POST /runs/stream",
    "runs.wait": "POST /threads/t/runs/wait, POST /runs/wait",
    "runs.list": "GET /threads/t/runs",
    "runs.get": "GET /threads/t/runs/r",
    "runs.cancel": "POST /threads/t/runs/r/cancel",
    "runs.join": "GET /threads/t/runs/r/join",
    "runs.join_stream": "GET /threads/t/runs/r/stream",
    "runs.delete": "DELETE /threads/t/runs/r",
    "store.put_item": "PUT /store/items",
    "store.list_namespaces": "POST /store/namespaces",
}
"""What methods of langgraph-sdk 0.4.14 request, below /acp."""


def test_the_page_names_the_methods_of_langgraph_sdk_that_are_not_there_and_no_others() -> None:
    page = (ROOT / "docs" / "threads.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"\*\*Not offered of langgraph-sdk\*\*.*?\n\n", page, re.DOTALL)
    requests = {name: [each.split() for each in calls.split(", ")] for name, calls in SDK.items()}
    missing = {
        name: {TABLE.find(method, f"/acp{path}") is None for method, path in calls} for name, calls in requests.items()
    }
    assert {name for name, of_method in missing.items() if len(of_method) != 1} == set()
    assert set(re.findall(r"`client\.([a-z_.]+)`", sentence)) == {name for name in missing if missing[name] == {True}}


A2A_TWINS = {
    "SendMessage": "POST /runs/wait",
    "SendStreamingMessage": "POST /runs/stream",
    "GetTask": "GET /runs/{run_id}",
    "ListTasks": "POST /runs/search",
    "CancelTask": "POST /runs/{run_id}/cancel",
    "SubscribeToTask": "GET /runs/{run_id}/stream",
}
"""The route of the Agent Protocol that does the same."""
ASKS_NOTHING = {"GetExtendedAgentCard", *PUSH_METHODS}
"""Methods of A2A that are refused to everybody."""


def test_a_method_of_a2a_needs_what_the_route_of_the_agent_protocol_needs_that_does_the_same() -> None:
    routes = {f"{route.method} {route.path}": route for route in ROUTES}
    nothing = cast(Any, None)
    assert set(AgentMethods(nothing, nothing, nothing, nothing).table()) == {*A2A_TWINS, *ASKS_NOTHING, *A2A_METHODS}
    assert {routes[twin].may for twin in A2A_TWINS.values()} == {routes["POST /{agent_id}"].may}
    assert routes["GET /{agent_id}/.well-known/agent-card.json"].may == routes["POST /{agent_id}"].may


@pytest.mark.parametrize(("path", "code"), [("/acp/runs", "misdirected_request"), ("/a2a/calc", -32421)])
def test_a_refusal_before_any_route_is_in_the_words_of_its_protocol(path: str, code: object) -> None:
    answer = TABLE.dialect(path).refusal(421, "not one of this machine").model_dump()
    assert (answer["code"] if "code" in answer else answer["error"]["code"]) == code


def test_the_page_names_the_versions_of_the_clients_that_were_run() -> None:
    pinned = (ROOT / "tests" / "strangers" / "requirements.txt").read_text(encoding="utf-8")
    versions = re.findall(r"^(langgraph-sdk|a2a-sdk)==(\S+)$", pinned, re.MULTILINE)
    page = (ROOT / "docs" / "threads.md").read_text(encoding="utf-8")
    assert len(versions) == 2 and [name for name, version in versions if f"{name} {version}" not in page] == []
