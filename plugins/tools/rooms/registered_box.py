"""The tools of the registry, as MCP offers them: those that are trusted.

    GET /mcp/tools ──► RegistryTool ──► tools/list          tools/call ──► POST /mcp/tools/ID/invoke ──► ToolOutcome

Not covered: what an answer says. It is the answer of the tool that was called, as from any MCP server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from gateway.mcp.toolbox import ServerAnswer, ToolBox, ToolOutcome, ToolRequest, cut, in_path
from streams.errors import CallError

REGISTRY = "/mcp/tools"
TOOLSET = "registered"


class RegistryTool(NamedTuple):
    """A tool of the registry, as this server offers it."""

    name: str
    description: str
    input_schema: dict[str, Any]
    changes: bool = True
    """It may do anything."""


class RegisteredBox(ToolBox):
    """The set of registered tools, which change while it is open."""

    is_fixed: ClassVar[bool] = False

    async def tools(self, credentials: Mapping[str, str]) -> Sequence[RegistryTool]:
        """Return the tools that a caller may call. Raises CallError if the server refuses it, LogError."""
        answer = await self.send(ToolRequest("GET", REGISTRY, {}, None), credentials, "data")
        if answer.is_error:
            raise CallError("permission_denied", answer.message)
        rows = [row for row in answer.fields["data"] if row["trusted"]]
        return [RegistryTool(row["tool_id"], row["description"], row["parameters"]) for row in rows]

    async def call(self, name: str, arguments: Mapping[str, Any], credentials: Mapping[str, str]) -> ToolOutcome:
        """Call a tool. Raises CallError if there is none of this name."""
        answer = await self.invoke(name, arguments, credentials)
        if answer.status == 404:
            raise CallError("not_found", answer.message)
        if answer.is_error:
            return ToolOutcome([answer.message], is_error=True)
        return ToolOutcome(cut(answer.fields["content"]), bool(answer.fields["is_error"]))

    async def invoke(self, name: str, arguments: Mapping[str, Any], credentials: Mapping[str, str]) -> ServerAnswer:
        """Return the server's answer to a call. Raises CallError for no name, LogError."""
        path = f"{REGISTRY}/{in_path(name, 'tool')}/invoke"
        body = json.dumps({"arguments": dict(arguments)}).encode()
        return await self.send(ToolRequest("POST", path, {}, body), credentials, "content")

    async def refuse(self, path: str, credentials: Mapping[str, str]) -> ServerAnswer:
        """Return the server's answer to a request without a body, by which what is no call counts for its key, too."""
        return await self.send(ToolRequest("POST", path, {}, b""), credentials)
