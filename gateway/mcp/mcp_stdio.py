"""Our MCP server on standard input and output, for an assistant that starts it: a client of `streamward serve`.

assistant ──► stdin ──► build_server ──► ToolBox ──► HTTP, with the key ──► `streamward serve`
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping

import httpx2
from mcp.server.stdio import stdio_server

from gateway.mcp.log_toolbox import open_toolbox
from gateway.mcp.mcp_server import build_server
from streams.errors import SettingsError

MOST_PORTS = 65535
ANSWER_S = 600.0
"""How long the server may take for an answer."""


def run(url: str, credentials: Mapping[str, str], toolset: str) -> None:
    """Answer until standard input ends, or Ctrl-C. `credentials`: headers with the key.

    Raises SettingsError for an invalid URL.
    """
    # asyncio would wait for the thread that reads standard input, which nothing interrupts
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(_answer(server_url(url), {name.lower(): text for name, text in credentials.items()}, toolset))


def server_url(url: str) -> httpx2.URL:
    """Return the address of a server. Raises SettingsError for an invalid one."""
    with contextlib.suppress(httpx2.InvalidURL):
        parts = httpx2.URL(url)
        if parts.scheme in ("http", "https") and parts.host and (parts.port or 1) <= MOST_PORTS:
            return parts
    raise SettingsError(f"--url is {url!r}; expected the address of `streamward serve`, e.g. http://127.0.0.1:8790")


async def _answer(url: httpx2.URL, credentials: dict[str, str], toolset: str) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=ANSWER_S) as client, stdio_server() as (read, write):
        server = build_server(open_toolbox(client, toolset), credentials)
        await server.run(read, write, server.create_initialization_options())
