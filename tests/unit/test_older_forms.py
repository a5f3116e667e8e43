"""A client of an older version of a protocol is told what it speaks, what is spoken here, and what to do."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.requests import Request

from gateway.a2a.agent_tasks import AgentMethods
from gateway.agents.chat import ChatBody
from gateway.http import jsonrpc
from gateway.http.application import Application
from gateway.http.body import checked
from gateway.http.limits import KeyLimits
from gateway.mcp.mcp_mount import McpMount
from gateway.people.door import Door
from gateway.rooms.routes import TABLE
from schemas.older_forms import A2A_METHODS, FUNCTIONS, PATHS, older_path
from streams.engines.scripted.scripted_engine import Script
from streams.errors import CallError
from streams.settings.model import Serve
from tests.unit.test_door import BEARER, Known

DOCS = Path(__file__).parents[2] / "docs"
OLD_PATHS = (
    *(
        "/v1/assistants",
        "/agents/calc/v1/threads/t/runs",
        "/v1/engines/davinci/completions",
        "/v1/edits",
        "/v1/complete",
    ),
    *("/v1/fine-tunes", "/.well-known/agent.json", "/a2a/default/.well-known/agent.json", "/sse", "/mcp/sse"),
    *("/acp/assistants/search", "/acp/threads/t/state", "/acp/threads/count", "/acp/runs/crons", "/acp/runs/batch"),
    *("/ap/v1/agent/tasks", "/acp/agent/tasks"),
)


@pytest.mark.parametrize("path", OLD_PATHS)
def test_a_path_of_an_older_protocol_says_what_is_spoken_to_any_key(path: str) -> None:
    served = Application((), version="0", max_body_bytes=1_000)
    client = TestClient(Door(served, TABLE, Known("viewer"), KeyLimits(Serve())), headers=BEARER)
    answer, form = client.post(path), older_path(path)
    assert form is not None and answer.status_code == 404
    assert f"POST {path}: this is {form.got}, and this server speaks {form.spoken}: {form.way_out}" in answer.text


def test_every_older_path_is_tried_and_none_has_a_route() -> None:
    assert {older_path(path) for path in OLD_PATHS} == {form for _, form in PATHS}
    assert [path for route in TABLE.routes for path in route.paths if older_path(path) is not None] == []
    assert [path for path in OLD_PATHS if TABLE.find("POST", path) is not None] == []
    assert older_path("/v1/chat/completions") is None and older_path("/v1/other") is None


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
        ({"messages": [{"role": "function", "name": "f", "content": "1"}]}, "messages[0].role"),
    ],
)
def test_openais_older_calls_are_named_wherever_they_are(fields: dict[str, Any], parameter: str) -> None:
    with pytest.raises(CallError) as refused:
        checked(ChatBody, {"model": "m", "messages": [{"role": "user", "content": "?"}], **fields})
    assert refused.value.parameter == parameter and FUNCTIONS.text in refused.value.message


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


@pytest.mark.parametrize("version", ["2024-10-07", "0.9", "2099-01-01"])
def test_a_version_of_mcp_that_is_not_spoken_is_named_with_those_that_are(version: str) -> None:
    app, mount = Application((), version="0", max_body_bytes=1_000), McpMount()
    mount.add_to(app)
    mount.server = app

    async def ask(spoken: str) -> httpx.Response:
        headers = {"mcp-protocol-version": spoken, "accept": "application/json, text/event-stream"}
        call = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            return await http.post("/mcp", json=call, headers=headers)

    async def ask_both() -> list[httpx.Response]:
        answers = [await ask(version), await ask("2025-06-18")]
        await mount.close()
        return answers

    refused, answered = asyncio.run(ask_both())
    error = refused.json()["error"]
    assert (
        refused.status_code == 400
        and f"this is MCP {version}, and this server speaks MCP 2024-11-05," in error["message"]
    )
    assert error["data"]["requested"] == version and answered.json()["result"] == {}


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
    page = (DOCS / "agent-protocol.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"\*\*Not offered of langgraph-sdk\*\*.*?\n\n", page, re.DOTALL)
    requests = {name: [each.split() for each in calls.split(", ")] for name, calls in SDK.items()}
    missing = {
        name: {TABLE.find(method, f"/acp{path}") is None for method, path in calls} for name, calls in requests.items()
    }
    assert {name for name, of_method in missing.items() if len(of_method) != 1} == set()
    assert set(re.findall(r"`([a-z_.]+)`", sentence)) == {name for name in missing if missing[name] == {True}}


@pytest.mark.parametrize("client", ["Codex CLI", "Claude Code"])
def test_the_row_of_a_client_with_a_long_prompt_has_the_scripted_context_that_takes_it(client: str) -> None:
    (row,) = re.findall(rf"^\| {client} .*$", (DOCS / "agents.md").read_text(encoding="utf-8"), re.MULTILINE)
    (size,), (setting,) = re.findall(r"about ([\d,]+) bytes", row), re.findall(r'`(\{"context_tokens".*?\})`', row)
    least = int(size.replace(",", ""))
    assert Script().context_tokens < least < Script(**json.loads(setting)).context_tokens
