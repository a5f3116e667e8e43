"""The paths of our MCP servers on `serve`, as the door knows them; mcp_mount.py answers them."""

from __future__ import annotations

from gateway.http.route import MCP, Route
from streams.plugins.toolsets import toolset_names

MCP_PATHS = {"/mcp" if toolset == "log" else f"/mcp/{toolset}": toolset for toolset in toolset_names()}
"""The set of tools at each."""
MCP_ROUTES = tuple(
    Route(method, path, MCP, may="models.read")  # every role may; rights are checked for each tool
    for path in MCP_PATHS
    for method in ("POST", "GET", "DELETE")
)
