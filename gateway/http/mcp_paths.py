"""The paths of our MCP servers on `serve`, as the door knows them; mcp_mount.py and tool_socket.py answer them."""

from __future__ import annotations

from typing import Literal, get_args

from gateway.http.route import MCP, Route

Toolset = Literal["log", "policy", "scoring", "control", "registered"]
"""The log and operations on it, answers of a policy, scores, jobs and versions, or the tools of the registry."""
TOOLSETS: tuple[Toolset, ...] = get_args(Toolset)
MCP_PATHS: dict[str, Toolset] = {"/mcp": "log", **{f"/mcp/{toolset}": toolset for toolset in TOOLSETS[1:]}}
SOCKET_PATH = "/mcp/stream"
MCP_ROUTES = (
    *(
        Route(method, path, MCP, may="models.read")  # every role may; rights are checked for each tool
        for path in MCP_PATHS
        for method in ("POST", "GET", "DELETE")
    ),
    Route("GET", SOCKET_PATH, MCP, may="chat.call"),  # the handshake of a WebSocket; tool_socket.py answers it
)
