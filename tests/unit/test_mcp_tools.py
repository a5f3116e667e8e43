"""The tools of our MCP server: each is a route, with its arguments, and docs/mcp.md has them all."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from gateway.http.application import Application
from gateway.http.mcp_paths import MCP_PATHS
from gateway.http.route import Route
from gateway.mcp.log_toolbox import DATA, LogToolBox, open_toolbox
from gateway.mcp.mcp_mount import McpMount
from gateway.mcp.toolbox import MOST_CHARACTERS, ToolRequest, cut
from gateway.mcp.tools import MOST_TASKS, NOT_FOR_TOOLS, TOOLS, LogTool, RpcTool
from gateway.rooms.routes import TABLE
from schemas.json_arguments import from_json_texts
from streams.errors import CallError, LogError
from streams.plugins.toolsets import OWN_TOOLSETS

PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"
NAMED = {tool.name: tool for tool in TOOLS}


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_arguments_of_a_tool_are_a_schema_that_the_example_of_its_route_meets(tool: LogTool) -> None:
    Draft202012Validator.check_schema(tool.input_schema)
    properties = tool.input_schema["properties"]
    assert not NOT_FOR_TOOLS & set(properties) and set(tool.input_schema["required"]) <= set(properties)
    if tool.route.takes_json and not isinstance(tool, RpcTool):
        path = {name: "x" for name in tool.route.path.split("/") if name.startswith("{")}
        sent = {name.strip("{}"): text for name, text in path.items()} | tool.route.sends
        arguments = {tool.list_name: [sent]} if tool.list_name else sent
        Draft202012Validator(tool.input_schema).validate(arguments)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_call_is_a_request_that_the_door_knows_with_the_same_action(tool: LogTool) -> None:
    arguments = dict.fromkeys(tool.input_schema["required"], "a b?c")
    [request] = tool.requests({tool.list_name: [{}]} if tool.list_name else arguments)
    match = TABLE.find(request.method, request.path.replace("%3F", "").replace("%20", ""))
    assert match is not None and match.route is tool.route
    assert isinstance(tool, RpcTool) or match.route.may == tool.may


def test_parameters_of_path_and_query_and_fields_of_the_body_go_where_the_route_has_them() -> None:
    promote = {"policy": "sums?x=..#y", "version": 3, "expected": 2, "reason": "better"}
    [request] = NAMED["promote"].requests(promote)
    del promote["policy"]
    assert request == ToolRequest("POST", "/adapters/sums%3Fx%3D..%23y/promote", {}, json.dumps(promote).encode())
    [request] = NAMED["list_runs"].requests({"limit": 5, "failed_tools": True, "agent": "calc", "version": None})
    assert request == ToolRequest("GET", "/runs", {"limit": "5", "failed_tools": "true", "agent": "calc"}, None)
    [request] = NAMED["evaluate"].requests({"job_id": "j"})
    assert request.body is not None
    assert json.loads(request.body)["params"] == {"job_id": "j"}


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_an_argument_that_is_no_text_may_be_sent_as_its_json_text(tool: LogTool) -> None:
    properties = tool.input_schema["properties"]
    simple = {"string": "x", "integer": 3, "boolean": True}
    arguments = {name: simple[part["type"]] for name, part in properties.items() if part.get("type") in simple}
    if tool.route.sends and not isinstance(tool, RpcTool):
        arguments = dict.fromkeys(tool.input_schema["required"], "x") | dict(tool.route.sends)
        arguments = {tool.list_name: [arguments, arguments]} if tool.list_name else arguments
    takes = Draft202012Validator(tool.input_schema).evolve
    texts = {
        name: value
        if isinstance(value, str) or takes(schema=properties[name] | definitions(tool)).is_valid("{}")
        else json.dumps(value)
        for name, value in arguments.items()
    }
    assert tool.requests(texts) == tool.requests(arguments)


def definitions(tool: LogTool) -> dict[str, Any]:
    return {"$defs": tool.input_schema.get("$defs", {})}


@pytest.mark.parametrize(
    ("schema", "sent", "value"),
    [
        ({"type": "array", "items": {"type": "object"}}, '["{}"]', [{}]),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "[1]", [1]),
        ({"$ref": "#/$defs/Count"}, "3", 3),
        ({"type": "number"}, "3", 3),
        ({"type": ["boolean", "null"]}, "true", True),
        ({"type": "integer"}, "3.5", "3.5"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "array"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "array"}, "[1", "[1"),
        ({"anyOf": [{"type": "array"}, {"type": "string"}]}, "[1]", "[1]"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({}, "[1]", "[1]"),
    ],
)
def test_a_text_is_read_as_json_where_its_schema_takes_no_text_and_that_type(
    schema: dict[str, Any], sent: str, value: object
) -> None:
    whole = {"properties": {"it": schema}, "$defs": {"Count": {"type": "integer"}}}
    assert from_json_texts({"it": sent}, whole) == {"it": value}


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("show_group", {}, "tool show_group needs task_id"),
        ("show_group", {"task_id": 3}, "tool show_group needs task_id, a text"),
        ("show_group", {"task_id": "x", "taskid": "x"}, "has no argument 'taskid', only task_id"),
        ("show_group", {"task_id": "../healthz"}, "nothing has the task_id '../healthz'; a name has no slash"),
        ("ask", {"stream": True}, "has no argument 'stream'"),
        ("submit_tasks", {"tasks": []}, f"a list of 1 to {MOST_TASKS} objects"),
        ("submit_tasks", {"tasks": [{}] * (MOST_TASKS + 1)}, f"a list of 1 to {MOST_TASKS} objects"),
        ("submit_tasks", {"tasks": ["4 + 7 ="]}, "each of tasks is an object"),
    ],
)
def test_arguments_that_a_tool_does_not_have_are_refused_with_those_that_it_has(
    name: str, arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(CallError, match=re.escape(words)):
        NAMED[name].requests(arguments)


def test_a_result_is_cut_where_it_is_too_long_and_says_how_much_is_missing() -> None:
    assert cut("x" * MOST_CHARACTERS) == ["x" * MOST_CHARACTERS]
    beginning, count = cut("x" * (MOST_CHARACTERS + 1234))
    assert len(beginning) == MOST_CHARACTERS and count.startswith("Cut: 1,234 of 101,234 characters")


def _address(route: Route) -> str:
    """Return the path of a route, with that of its interface if there is one."""
    return route.path if len(route.paths) > 1 else route.paths[0]


def test_the_page_names_every_tool_with_its_route_its_action_and_its_sets() -> None:
    row = re.compile(r"^\| `(\w+)` \| (?:`[\w.]+` of )?`([^`]+)` \| `([\w.]+)` \| ([\w, ]+) \|$", re.MULTILINE)
    rows = row.findall(PAGE.read_text())
    expected = [
        (tool.name, f"{tool.route.method} {_address(tool.route)}", tool.may, ", ".join(tool.toolsets)) for tool in TOOLS
    ]
    assert rows == expected
    of_routes = {toolset for tool in TOOLS for toolset in tool.toolsets}
    assert of_routes == set(OWN_TOOLSETS)


def test_what_was_submitted_before_the_server_went_away_is_in_the_result() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        task_id = json.loads(request.content)["task_id"]
        if task_id == "c":
            raise httpx2.ConnectError("connection refused")
        return httpx2.Response(200, json={"task_id": task_id})

    async def outcome() -> tuple[list[str], bool]:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="http://serve") as client:
            tasks = {"tasks": [{"task_id": name} for name in "abcd"]}
            return await LogToolBox(client).call("submit_tasks", tasks, {})

    (problem, announced, results), is_error = asyncio.run(outcome())
    assert (
        is_error
        and announced == DATA
        and problem.startswith("2 of 4 were answered")
        and "connection refused" in problem
    )
    assert json.loads(results) == [{"task_id": "a"}, {"task_id": "b"}]


OTHER_SERVERS = {
    "a proxy's page": httpx2.Response(502, text="<html>Bad Gateway</html>"),
    "a login page": httpx2.Response(200, text="<html>log in"),
    "a redirection": httpx2.Response(302, headers={"location": "/login"}),
    "nothing": httpx2.Response(204),
    "a list": httpx2.Response(200, json=[]),
    "another API": httpx2.Response(200, json={"hello": "world"}),
}


@pytest.mark.parametrize("response", OTHER_SERVERS.values(), ids=OTHER_SERVERS)
@pytest.mark.parametrize("toolset", MCP_PATHS.values())
def test_a_server_that_is_not_ours_is_named_with_what_it_answered(response: httpx2.Response, toolset: str) -> None:
    async def list_tools() -> None:
        transport = httpx2.MockTransport(lambda _: response)
        async with httpx2.AsyncClient(transport=transport, base_url="http://serve") as client:
            await open_toolbox(client, toolset).tools({})

    words = f"http://serve answered {response.status_code} with .* is it the right address"
    with pytest.raises(LogError, match=words):
        asyncio.run(list_tools())


def test_ctrl_c_ends_a_server_on_standard_input_that_stays_open() -> None:
    command = [sys.executable, "-m", "streams.cli", "mcp", "--url", "http://127.0.0.1:1"]
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "editor", "version": "1"}}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(300) == -signal.SIGINT
        finally:
            process.kill()


@pytest.mark.parametrize("path", MCP_PATHS)
def test_without_the_extra_clients_are_told_so_in_an_error_of_the_protocol(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp import Client  # not before: its client of stdio keeps the stderr that there is at its import
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.exceptions import MCPError

    monkeypatch.setitem(sys.modules, "mcp.server.streamable_http_manager", None)
    app, mount = Application((), version="0", max_body_bytes=1_000), McpMount()
    mount.add_to(app)
    mount.server = app
    said: list[str] = []

    async def show() -> None:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://there") as http:
            answer = await http.post(path, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
            assert answer.status_code == 501
            said.append(answer.json()["error"]["message"])
            async with Client(streamable_http_client(f"http://there{path}", http_client=http)) as client:
                await client.list_tools()

    with pytest.RaisesGroup(pytest.RaisesExc(MCPError, match="install 'streamward.mcp.'"), flatten_subgroups=True):
        asyncio.run(show())
    assert "streamward[mcp]" in said[0]
