"""Our MCP server on standard input and output, for an assistant that starts it: a client of `streamward serve`.

assistant ──► stdin ──► build_server ──► ToolBox ──► HTTP, with the key ──► `streamward serve`
"""

from __future__ import annotations

import asyncio

import httpx
from mcp.server.stdio import stdio_server

from gateway.mcp.mcp_paths import Toolset
from gateway.mcp.mcp_server import build_server
from gateway.mcp.toolbox import ToolBox

ANSWER_S = 600.0
"""How long the server may take for an answer."""


def run(url: str, key: str | None, toolset: Toolset) -> None:
    """Answer until standard input ends."""
    asyncio.run(_answer(url, {} if key is None else {"authorization": f"Bearer {key}"}, toolset))


async def _answer(url: str, credentials: dict[str, str], toolset: Toolset) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S) as client, stdio_server() as (read, write):
        server = build_server(ToolBox(client, toolset), credentials)
        await server.run(read, write, server.create_initialization_options())
