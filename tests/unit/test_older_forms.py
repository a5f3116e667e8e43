"""A client of an older version of a protocol is told what it speaks, what is spoken here, and what to do."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from gateway.agents.chat import ChatBody
from gateway.http.application import Application
from gateway.http.body import checked
from gateway.http.door import Door
from gateway.http.limits import KeyLimits
from gateway.mcp.mcp_mount import McpMount
from gateway.rooms.routes import TABLE
from schemas.older_forms import FUNCTIONS, PATHS
from streams.engines.scripted.scripted_engine import Script
from streams.errors import CallError
from streams.settings.model import Serve
from tests.support.callers import BEARER, Known

DOCS = Path(__file__).parents[2] / "docs"
OLD_PATHS = (
    *(
        "/v1/assistants",
        "/agents/calc/v1/threads/t/runs",
        "/v1/engines/davinci/completions",
        "/v1/edits",
        "/v1/complete",
    ),
    *("/v1/fine-tunes", "/sse", "/mcp/sse"),
)


@pytest.mark.parametrize("path", OLD_PATHS)
def test_a_path_of_an_older_protocol_says_what_is_spoken_to_any_key(path: str) -> None:
    served = Application((), version="0", max_body_bytes=1_000)
    client = TestClient(Door(served, TABLE, Known("viewer"), KeyLimits(Serve())), headers=BEARER)
    answer, form = client.post(path), TABLE.older_form(path)
    assert form is not None and answer.status_code == 404
    assert f"POST {path}: this is {form.got}, and this server speaks {form.spoken}: {form.way_out}" in answer.text


def test_every_older_path_is_tried_and_none_has_a_route() -> None:
    assert {TABLE.older_form(path) for path in OLD_PATHS} == {form for _, form in PATHS}
    assert [path for route in TABLE.routes for path in route.paths if TABLE.older_form(path) is not None] == []
    assert [path for path in OLD_PATHS if TABLE.find("POST", path) is not None] == []
    assert TABLE.older_form("/v1/chat/completions") is None and TABLE.older_form("/v1/other") is None


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


@pytest.mark.parametrize("client", ["Codex CLI", "Claude Code"])
def test_the_row_of_a_client_with_a_long_prompt_has_the_scripted_context_that_takes_it(client: str) -> None:
    (row,) = re.findall(rf"^\| {client} .*$", (DOCS / "serve.md").read_text(encoding="utf-8"), re.MULTILINE)
    (size,), (setting,) = re.findall(r"about ([\d,]+) bytes", row), re.findall(r'`(\{"context_tokens".*?\})`', row)
    least = int(size.replace(",", ""))
    assert Script().context_tokens < least < Script(**json.loads(setting)).context_tokens
