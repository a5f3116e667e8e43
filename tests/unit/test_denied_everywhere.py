"""What REST denies a key is denied by every other way in: each route, each tool of each set, each role.

    TABLE, TOOLS ──► every principal ──► REST's answer and the other one ──► the same

All of it is generated from the tables that the server uses, so that a route, tool or method that is added is tested.
One without a right fails here, and so does a route that changes what takes another right than its own.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, TypeVar

import httpx
import pytest
from mcp import Client
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.application import Application, Endpoint
from gateway.http.door import Door
from gateway.http.limits import KeyLimits
from gateway.http.mcp_paths import MCP_PATHS
from gateway.http.principal import decide_at_door, set_principal
from gateway.http.route import Route, routes_of
from gateway.mcp.log_toolbox import LogToolBox
from gateway.mcp.mcp_mount import McpMount
from gateway.mcp.mcp_server import build_server
from gateway.mcp.tools import TOOLS, LogTool, RpcTool
from gateway.rooms.routes import PARTS, PLUGIN_ROOMS, ROOMS, TABLE, OwnPermissions
from schemas.events import AccessRole
from streams.access.roles import ROLES, Action
from streams.plugins.toolsets import OWN_TOOLSETS
from streams.settings.model import Serve
from tests.support.callers import BEARER, Known

T = TypeVar("T")
REVISION = "2025-11-25"
NO_LIMITS = Serve(auth="keys", key_per_s=0, key_at_once=0)


REACHED: ASGIApp = JSONResponse({"object": "reached", "data": [], "content": "", "is_error": False})
"""What every route answers that is reached."""


class Principal(NamedTuple):
    """The grant of a key."""

    role: AccessRole
    tenant: str | None
    agent_id: str | None

    @property
    def known(self) -> Known:
        """The keys of a server that knows this one."""
        return Known(self.role, tenant=self.tenant, agent_id=self.agent_id)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of its requests."""
        return BEARER | ({} if self.agent_id is None else {"x-agent-id": self.agent_id})


PRINCIPALS = [Principal(*grant) for grant in product(ROLES, (None, "red"), (None, "calc"))]
each_principal = pytest.mark.parametrize("principal", PRINCIPALS, ids=lambda principal: "-".join(map(str, principal)))


@asynccontextmanager
async def server(known: Known, room: object = None) -> Any:
    """Yield a client of a server with its door, tables, MCP and this room; its other routes say that they were
    reached."""
    mount, served = McpMount(), [OwnPermissions(), *filter(None, [room])]
    app_of_rooms = Application(served, version="0", max_body_bytes=1_000_000)
    mount.add_to(app_of_rooms)
    answered = {path for each in served for route in routes_of(type(each)) for path in route.paths} | MCP_PATHS.keys()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (app_of_rooms if scope["path"] in answered else REACHED)(scope, receive, send)

    mount.server = Door(app, TABLE, known, KeyLimits(NO_LIMITS))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(mount.server), base_url="http://127.0.0.1") as http:
        yield http
    await mount.close()


def using(principal: Principal, use: Callable[[httpx.AsyncClient], Awaitable[T]], room: object = None) -> T:
    async def run() -> T:
        async with server(principal.known, room) as http:
            http.headers.update(principal.headers)
            return await use(http)

    return asyncio.run(run())


def denial(answer: Any) -> str | None:
    """Return the message with which an interface denies something, or the first of several; None if it does not."""
    first = answer[0] if isinstance(answer, list) else answer
    error = first.get("error", first)  # the Agent Protocol has no object around it
    if error.get("message") == "permission_denied":
        return str(error["data"]["message"])
    return str(error["message"]) if error.get("code") == "permission_denied" else None


# --- routes -----------------------------------------------------------------------------------------------------------


@each_principal
def test_a_route_answers_whom_its_right_allows_under_each_of_its_paths(principal: Principal) -> None:
    door, key = Door(REACHED, TABLE, principal.known, KeyLimits(NO_LIMITS)), principal.known.key

    async def sweep() -> list[str]:
        wrong = []
        for route in TABLE.routes:
            for path in route.paths:
                if route.is_open:
                    continue
                filled = path.replace("{agent_id}", "calc")
                status = await status_of(door, route.method, re.sub("{.*?}", "x", filled), principal.headers)
                decision = decide_at_door(key, route.may, "calc" if filled != path else principal.agent_id)  # type: ignore[arg-type]
                if (status, decision.allowed) not in ((200, True), (403, False)):
                    wrong.append(f"{route.method} {path}: {status}, {decision.why}")
        return wrong

    assert asyncio.run(sweep()) == []


@pytest.mark.parametrize("sent", [{}, {"authorization": "Bearer sw_0011223344556677_x"}, {"x-api-key": "tml-a.b.d"}])
def test_no_route_answers_without_a_key_or_to_one_that_is_none(sent: dict[str, str]) -> None:
    door = Door(REACHED, TABLE, Known("admin"), KeyLimits(NO_LIMITS))

    async def sweep() -> set[int]:
        routes = [(route.method, path) for route in TABLE.routes if not route.is_open for path in route.paths]
        return {await status_of(door, method, re.sub("{.*?}", "x", path), sent) for method, path in routes}

    assert asyncio.run(sweep()) == {401}


async def status_of(app: ASGIApp, method: str, path: str, headers: dict[str, str]) -> int:
    """Return the status of an answer, without the work of a client: there are thousands."""
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": raw}
    await app(scope, receive, send)
    return statuses[0]


# --- fields of a body that have something else done, too --------------------------------------------------------------

CHANGES: dict[str, tuple[Action, ...]] = {
    "streams.adapters.decisions.decide": ("adapters.promote",),
    "self._log.tasks.submit": ("tasks.submit",),
}
"""What routes call to change something, and what a role has to allow for it, whichever route calls it."""
EVERY_ROOM = [*ROOMS, *PLUGIN_ROOMS, *(room for part in PARTS for room in part.ROOMS)]


def calls_of(room: type, name: str, seen: set[str]) -> Iterator[str]:
    """Yield what a method of a room calls, itself or by way of other methods and functions of its module."""
    if name in seen:
        return
    seen.add(name)
    module = sys.modules[room.__module__]
    function = getattr(room, name, None) or vars(module)[name]
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        own = called.removeprefix("self.")
        function = vars(module).get(own)
        if own in vars(room) or (inspect.isfunction(function) and function.__module__ == module.__name__):
            yield from calls_of(room, own, seen)
            continue
        first, _, rest = called.partition(".")
        target = vars(module).get(first)
        if inspect.ismodule(target):
            called = f"{target.__name__}.{rest}"
        elif inspect.isfunction(target):
            called = f"{target.__module__}.{target.__name__}"
        yield called


def test_a_route_asks_for_the_right_to_everything_that_it_changes() -> None:
    check_rights(EVERY_ROOM, CHANGES)


def check_rights(rooms: Iterable[type], changes: Mapping[str, tuple[Action, ...]]) -> None:
    """Assert it: a route has one right, and may call what another route asks another right for."""
    wrong, reached = [], set()
    for room in rooms:
        for route in routes_of(room):
            asks = {route.may, *route.further.values()}
            for called in {*calls_of(room, route.name, set())} & changes.keys():
                reached.add(called)
                wrong += [f"{route.name}: {called} takes {may}" for may in changes[called] if may not in asks]
    assert wrong == []
    assert reached == {*changes}, "a name here is no longer called so"


@each_principal
def test_a_field_that_has_more_done_is_refused_to_whom_that_is_denied_and_the_rest_is_not(principal: Principal) -> None:
    key = principal.known.key

    async def status(route: Route, fields: dict[str, Any]) -> int:
        body = json.dumps({**route.sends, **fields}).encode()

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": route.method, "path": route.path, "query_string": b"", "headers": headers}
        set_principal(scope, key)
        endpoint = Endpoint(replace(route, arguments=("body",)), lambda body: REACHED, 1_000_000)
        return (await endpoint.answer(Request(scope, receive))).status_code

    async def sweep() -> int:
        count = 0
        for route in TABLE.routes:
            for path, action in route.further.items():
                name, _, inner = path.partition(".")
                for value in ("production", None):
                    allowed = value is None or decide_at_door(key, action, principal.agent_id).allowed
                    found = await status(route, {name: {inner: value} if inner else value})
                    assert found == (200 if allowed else 403), (route.path, path, value)
                    count += 1
        return count

    assert asyncio.run(sweep()) == 2 * sum(len(route.further) for route in TABLE.routes)


# --- tools ------------------------------------------------------------------------------------------------------------


OF_ROUTES = [tool for tool in TOOLS if not isinstance(tool, RpcTool)]
"""Those that a route decides; one that is a method of JSON-RPC is decided by its room, in the tests of its plugin."""


def arguments_of(tool: LogTool) -> dict[str, Any]:
    return {tool.list_name: [{}]} if tool.list_name else dict.fromkeys(tool.input_schema["required"], "x")


async def by_rest(http: httpx.AsyncClient, tool: LogTool) -> str | None:
    """Return why REST denies what a tool asks; None if it does not."""
    [request] = tool.requests(arguments_of(tool))
    answer = await http.request(request.method, request.path, params=request.query, content=request.body)
    return denial(answer.json())


async def by_mcp(http: httpx.AsyncClient, path: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    headers = {"accept": "application/json", "mcp-protocol-version": REVISION}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer: dict[str, Any] = (await http.post(path, json=body, headers=headers)).json()
    return answer


@each_principal
@pytest.mark.parametrize(("path", "toolset"), [each for each in MCP_PATHS.items() if each[1] in OWN_TOOLSETS])
def test_a_tool_is_denied_over_http_in_the_words_of_its_route_and_not_listed_then(
    principal: Principal, path: str, toolset: str
) -> None:
    async def compare(http: httpx.AsyncClient) -> None:
        listing = await by_mcp(http, path, "tools/list", {})
        allowed = []
        for tool in OF_ROUTES:
            answer = await by_mcp(http, path, "tools/call", {"name": tool.name, "arguments": arguments_of(tool)})
            if toolset not in tool.toolsets:
                assert f"there is no tool '{tool.name}'" in answer["error"]["message"], "another set has it"
                continue
            refusal, result = await by_rest(http, tool), answer["result"]
            if refusal is None:
                allowed.append(tool.name)
                assert denial(json.loads(result["content"][-1]["text"])) is None, tool.name
            else:
                assert result["isError"] and refusal in result["content"][-1]["text"], tool.name
        names = {tool.name for tool in OF_ROUTES}
        assert [tool["name"] for tool in listing["result"]["tools"] if tool["name"] in names] == allowed

    using(principal, compare)


@each_principal
@pytest.mark.parametrize("toolset", OWN_TOOLSETS)
def test_a_tool_is_denied_on_standard_input_and_output_too(principal: Principal, toolset: str) -> None:
    async def compare(http: httpx.AsyncClient) -> None:
        http.headers.pop("x-agent-id", None)  # `streamward mcp` names no agent
        async with Client(build_server(LogToolBox(http, toolset), BEARER)) as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
            for tool in (tool for tool in OF_ROUTES if toolset in tool.toolsets):
                refusal = await by_rest(http, tool)
                result: Any = await client.call_tool(tool.name, arguments_of(tool))
                text = result.content[-1].text
                assert (refusal is not None) == (denial(json.loads(text)) is not None), tool.name
                assert refusal is None or (result.is_error and refusal in text)
                assert tool.name in listed or refusal is not None

    using(principal, compare)


@each_principal
def test_resources_are_denied_as_their_routes_are(principal: Principal) -> None:
    check_denied(
        principal,
        ("/mcp", "resources/read", {"uri": "streamward://groups/x"}, "GET", "/groups/x"),
        ("/mcp", "resources/read", {"uri": "streamward://runs/x"}, "GET", "/runs/x"),
    )


def check_denied(principal: Principal, *requests: tuple[str, str, dict[str, Any], str, str]) -> None:
    """Assert that requests of MCP are denied in the words of their routes: path, method, parameters, verb, route."""

    async def compare(http: httpx.AsyncClient) -> None:
        for path, method, params, verb, route in requests:
            refusal = denial((await http.request(verb, route, content=b"{}" if verb == "POST" else None)).json())
            text = json.dumps(await by_mcp(http, path, method, params), ensure_ascii=False)
            assert refusal is None or refusal in text, (route, text)
            assert (refusal is None) == ("is for: " not in text and "may only act as" not in text), text

    using(principal, compare)


@pytest.mark.parametrize("path", [path for path, toolset in MCP_PATHS.items() if toolset != "log"])
def test_a_set_of_tools_does_not_give_as_a_resource_what_it_does_not_give_by_a_tool(path: str) -> None:
    async def compare(http: httpx.AsyncClient) -> None:
        assert (await by_mcp(http, path, "resources/templates/list", {}))["result"]["resourceTemplates"] == []
        for uri in ("streamward://groups/x", "streamward://runs/x"):
            answer = await by_mcp(http, path, "resources/read", {"uri": uri})
            assert "there is no resource" in answer["error"]["message"], answer

    using(Principal("admin", None, None), compare)


METHODS = {
    "tools/list": "what the key may",
    "tools/call": "decided by the tool's route",
    "resources/list": "schemas and pages of the documentation, which are public",
    "resources/templates/list": "their forms",
    "resources/read": "decided by the route of its tool",
    "prompts/list": "one text of ours",
    "prompts/get": "one text of ours",
    "ping": "nothing",
    "server/discover": "what is the same for everybody",
}
"""What the server answers, and why nobody gets by it what REST denies."""


def test_every_method_of_the_mcp_server_is_one_whose_rights_are_tested() -> None:
    methods = set(build_server(LogToolBox(httpx.AsyncClient(timeout=300)), {})._request_handlers)
    assert methods == set(METHODS)
