"""The tools of an MCP server, offered to the policy for one task.

    the task's prompt, tools/list ──► calls ──► tools/call, one by one ──► … ──► an answer without a call is the last

A server is a URL (streamable HTTP) or a command, which is started and used over its stdin and stdout. Each episode has
its own session; with a command, its own process. The environment gives no reward: the task's scorers judge the answer.

Not covered: MCP has no seed. Every episode of a task begins alike, and a tool's answer must depend only on the earlier
calls; otherwise the episode cannot be replayed.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import httpx2
from anyio import ClosedResourceError
from anyio.from_thread import start_blocking_portal
from anyio.streams.text import TextReceiveStream
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client import stdio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from plugins.environments.adapters.offered_tools import OfferedTools
from plugins.environments.episodes.environment import EpisodeError
from schemas import json_text
from schemas.events import Tool
from streams.egress.address_guard import UrlOrigin
from streams.egress.http_client import new_async_client
from streams.processes.worker_pipe import MAX_ANSWER_BYTES

MOST_CHARACTERS = 4 * MAX_ANSWER_BYTES
"""Of a message of a server, bytes over HTTP: what a step may show, in both of its forms, and escaped."""
INVALID_PARAMS = -32602
"""Of JSON-RPC: the server cannot use the call, and is otherwise well."""
DIES_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
"""Program that becomes another one, which Linux kills (PR_SET_PDEATHSIG, SIGKILL) when its parent ends.

A server is in a session of its own, so it is not killed with our process group."""


class BoundedLines(TextReceiveStream):
    """The output of a server that was started, up to a line that no step could show: the SDK would read on for minutes.

    It joins all chunks of a line again at each one. The stream ends there, and with it the session.
    """

    overflows = False
    """Whether that has ended the session of this process."""
    _line_characters = 0

    async def receive(self) -> str:
        """Return the next chunk. Raises ClosedResourceError for a line that is too long."""
        chunk = await super().receive()
        last = chunk.rpartition("\n")[2]
        self._line_characters = len(last) + (0 if "\n" in chunk else self._line_characters)
        if self._line_characters > MOST_CHARACTERS:
            BoundedLines.overflows = True
            await self.transport_stream.aclose()
            raise ClosedResourceError
        return chunk


stdio.TextReceiveStream = BoundedLines  # type: ignore[attr-defined]  # what the SDK reads lines with, which has no bound


class McpEnvironment(OfferedTools):
    """Offers the tools of `server`."""

    def __init__(self, server: str, prompt: str, system: str = "", messages: Any = (), credential: str = "") -> None:
        """`credential`: sent to an address as bearer token. Raises EpisodeError: bad_settings, crashed."""
        super().__init__(f"mcp:{server}", prompt, system, messages)
        self._server, self._credential = server, credential
        portal_context = start_blocking_portal()
        self._portal = portal_context.__enter__()
        # also at the end of the interpreter, as long as its thread still runs: later, stopping it waits for ever
        self._stop_portal = weakref.finalize(self, portal_context.gen.close)
        self._session: AbstractContextManager[Client] | None = None
        self._client = self._connect()
        self._is_new = True
        info = self._client.server_info
        self.version = info.version if info is not None else "unknown"

    def close(self) -> None:
        """End the session, and the server if it was started here."""
        self._disconnect()
        self._stop_portal()

    def end_session(self) -> None:
        """End the session, and the server if it was started here; the next episode begins another."""
        self._is_new = False
        self._disconnect()

    def _begin(self) -> tuple[Tool, ...]:
        """Begin a session, and list its tools."""
        if not self._is_new:
            self._disconnect()
            self._client = self._connect()
        self._is_new = False
        return self._list_tools()

    def _connect(self) -> Client:
        session = self._portal.wrap_async_context_manager(_client(self._server, self._credential))
        try:
            client = session.__enter__()
        except Exception as exc:  # of the transport, the protocol or the server's start, in groups of any depth
            message = f"{self._name}: no session: {_innermost(exc)}; is the server running?"
            raise EpisodeError(message, reason="crashed") from exc
        self._session = session
        return client

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)

    def _list_tools(self) -> tuple[Tool, ...]:
        tools: list[Tool] = []
        cursor: str | None = None
        while True:
            page = self._portal.call(lambda: self._client.list_tools(cursor=cursor))  # noqa: B023 - called at once
            tools += [
                Tool(name=tool.name, description=tool.description or "", parameters=json.dumps(tool.input_schema))
                for tool in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None:
                return tuple(tools)

    def _invoke(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        BoundedLines.overflows = False
        try:
            result = self._portal.call(lambda: self._client.call_tool(name, arguments))
        except MCPError as exc:
            if BoundedLines.overflows or str(MOST_CHARACTERS) in str(exc):  # of an answer over HTTP: its error names it
                problem = f"{self._name}: {name} answers with more than {MOST_CHARACTERS} characters"
                raise EpisodeError(problem, reason="too_large") from exc
            if exc.error.code != INVALID_PARAMS:
                raise EpisodeError(f"{self._name}: {name}: {exc}", reason="crashed") from exc
            return str(exc), False
        parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
        if not parts and result.structured_content is not None:
            parts = [json_text.one_line(result.structured_content)]
        return "\n".join(parts), not result.is_error


@asynccontextmanager
async def _client(server: str, credential: str) -> AsyncIterator[Client]:
    """Connect to an address, or to a command that is started and ends with this process."""
    if server.startswith(("http://", "https://")):
        # a proxy of the user's is left out: the connection goes to the named host or nowhere
        headers = {"authorization": f"Bearer {credential}"} if credential else {}
        timeout = httpx2.Timeout(30.0, read=300.0)
        async with (
            new_async_client(UrlOrigin.LISTED, MOST_CHARACTERS, timeout=timeout, headers=headers) as http,
            Client(streamable_http_client(server, http_client=http, max_sse_event_size=MOST_CHARACTERS)) as client,
        ):
            yield client
    else:
        words = shlex.split(server)
        if sys.platform == "linux":
            words = [sys.executable, "-I", "-S", "-c", DIES_WITH_PARENT, *words]
        process = StdioServerParameters(command=words[0], args=words[1:], env={**os.environ})
        async with Client(stdio_client(process, errlog=sys.stderr)) as client:
            yield client


def _innermost(exc: BaseException) -> BaseException:
    """Return what is inside groups of exceptions."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc
