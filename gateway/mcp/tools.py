"""The tools of our MCP server: routes of the server, under the names that an assistant calls.

    ROUTES ──► tools that they declare ──► JSON Schema of the input: what path, query and body of the route take
    arguments ──► ToolRequest: method, path, query, body ──► the server, as any request

So a tool may do what its caller's key may, refuses in the same words, and leaves the same event of its request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from pydantic import BaseModel

from gateway.http.route import MethodTool, Route
from gateway.mcp.toolbox import ToolRequest, in_path
from gateway.rooms.routes import ROUTES
from schemas.events import Tool
from schemas.faults import excerpt_of
from schemas.json_arguments import from_json_texts
from streams.access.roles import Action, allowed_to
from streams.errors import CallError
from streams.plugins.toolsets import OWN_TOOLSETS

UNCHANGING = allowed_to("viewer") | {"scores.try"}
LISTS = {"submit_tasks": "tasks"}
NOT_FOR_TOOLS = frozenset({"stream", "stream_options"})
"""Fields of a body that a tool does not have: it answers once."""
MOST_TASKS = 100
EXCERPT = 40
"""Most characters of a wrong argument in a message."""


@dataclass(frozen=True)
class LogTool:
    """A tool: a route, and its description for an assistant."""

    name: str
    route: Route
    """The route that answers."""
    description: str

    @property
    def toolsets(self) -> tuple[str, ...]:
        """The sets that have it."""
        return self.route.toolsets

    @property
    def changes(self) -> bool:
        """Whether something is different afterwards."""
        return self.may not in UNCHANGING

    @property
    def list_name(self) -> str:
        """The argument that has a list of bodies, each of which is a request; empty: the arguments are one."""
        return LISTS.get(self.name, "")

    @property
    def may(self) -> Action:
        """The action that the caller's role has to allow."""
        return cast(Action, self.route.may)  # no tool logs people in

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of its arguments."""
        schema = _merge_schemas(self.route.path_names, self._models)
        if not self.list_name:
            return schema
        bodies = {"type": "array", "items": schema, "minItems": 1, "maxItems": MOST_TASKS}
        definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
        return _object({self.list_name: bodies}, [self.list_name]) | definitions

    def requests(self, arguments: Mapping[str, Any]) -> list[ToolRequest]:
        """Return the requests that a call is. Raises CallError for arguments that the tool does not have."""
        self._check_names(arguments)
        arguments = from_json_texts(arguments, self.input_schema)
        if not self.list_name:
            return [self.request(arguments)]
        bodies = arguments.get(self.list_name)
        if not isinstance(bodies, list) or not 1 <= len(bodies) <= MOST_TASKS:
            got = f" (got {excerpt_of(bodies, EXCERPT)!r})" if isinstance(bodies, str) else ""
            problem = f"tool {self.name} needs {self.list_name}, a list of 1 to {MOST_TASKS} objects{got}"
            raise CallError("invalid", problem, self.list_name)
        if not all(isinstance(body, dict) for body in bodies):
            raise CallError("invalid", f"tool {self.name}: each of {self.list_name} is an object", self.list_name)
        return [self.request(body) for body in bodies]

    def request(self, arguments: Mapping[str, Any]) -> ToolRequest:
        """Return one request with these arguments."""
        rest = dict(arguments)
        path = self.route.paths[0]
        for name in self.route.path_names:
            value = rest.pop(name, None)
            if not isinstance(value, str) or not value:
                raise CallError("invalid", f"tool {self.name} needs {name}, a text", name)
            path = path.replace("{" + name + "}", in_path(value, name))
        if self.route.takes_json:
            return ToolRequest(self.route.method, path, {}, self._body(rest))
        return ToolRequest(self.route.method, path, _query(rest), None)

    @property
    def _models(self) -> list[type[BaseModel]]:
        return self.route.models

    def _body(self, fields: Mapping[str, Any]) -> bytes:
        return json.dumps(fields).encode()

    def _check_names(self, arguments: Iterable[str]) -> None:
        names = self.input_schema["properties"]
        for name in arguments:
            if name not in names:
                problem = f"tool {self.name} has no argument {name[:80]!r}, only {', '.join(names) or 'none'}"
                raise CallError("invalid", problem, name[:80])


@dataclass(frozen=True)
class RpcTool(LogTool):
    """A tool that is a method of JSON-RPC."""

    rpc: MethodTool

    @property
    def may(self) -> Action:
        """The action that the caller's role has to allow."""
        return self.rpc.may

    @property
    def _models(self) -> list[type[BaseModel]]:
        return [self.rpc.parameters]

    def _body(self, fields: Mapping[str, Any]) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": 1, "method": self.rpc.method, "params": fields}).encode()


def _tool(name: str, route: Route, declared: str | MethodTool) -> LogTool:
    if isinstance(declared, MethodTool):
        return RpcTool(name, route, declared.description, declared)
    return LogTool(name, route, declared or route.description)


TOOLS = tuple(_tool(name, route, declared) for route in ROUTES for name, declared in route.tools.items())
"""Those that routes declare, in their order, a plugin's after ours."""


def tools_of(toolset: str, actions: frozenset[Action] | None = None) -> list[LogTool]:
    """Return the tools of a set that these actions allow; None: all of them."""
    return [tool for tool in TOOLS if toolset in tool.toolsets and (actions is None or tool.may in actions)]


def own_tools() -> dict[str, tuple[Tool, ...]]:
    """Return every tool of each of the server's own sets, as an admin's key is shown them."""
    return {
        toolset: tuple(
            Tool(name=tool.name, description=tool.description, parameters=json.dumps(tool.input_schema, sort_keys=True))
            for tool in tools_of(toolset)
        )
        for toolset in OWN_TOOLSETS
    }


def _merge_schemas(path_names: Sequence[str], models: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """Return one object with the parameters of a path and the fields of these models."""
    properties: dict[str, Any] = {name: {"type": "string"} for name in path_names}
    required: list[str] = list(path_names)
    definitions: dict[str, Any] = {}
    for model in models:
        schema = model.model_json_schema()
        properties |= {name: part for name, part in schema["properties"].items() if name not in NOT_FOR_TOOLS}
        required += schema.get("required", [])
        definitions |= schema.get("$defs", {})
    return _object(properties, required) | ({"$defs": definitions} if definitions else {})


def _object(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _query(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters of a query as it has them."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in fields.items()
        if value is not None
    }
