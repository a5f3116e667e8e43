"""/mcp on the server of agents: our MCP server, reached through the same door as every route.

    /mcp, /mcp/policy, /mcp/scoring, … ──► made for the first request ──► the SDK's transport ──► ToolBox
    its tools ──► the whole server again, in memory, with the caller's key

Until then nothing of the SDK is imported; a server without the extra `mcp` says so. A call passes the door twice, as a
request to /mcp and as what its tool asks: both are recorded, and both count for the limits of its key.

A client that leaves ends its call, as the request of any client that leaves: the tool's request is cancelled where
possible, and recorded.

Our servers send nothing of their own, so a GET, which would wait for that, is refused: a stream that is held open for
nothing is a connection less, and a server that ends would wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http import errors
from gateway.http.intake import Intake
from gateway.http.mcp_paths import MCP_PATHS
from schemas.older_forms import MCP_HEADER
from streams.errors import CallError

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

INTAKE = Intake(max_bytes=4 * 1024 * 1024, max_values=100_000)
"""Of a call; the routes of tools have tighter bounds."""
NO_STREAM = "this server sends nothing of its own, so there is no stream to wait on; send requests with POST"
INVALID_REQUEST = -32600
INTERNAL_ERROR = -32603
MISSING = "this server offers no MCP: the extra is not installed; run `pip install 'streamward[mcp]'` where it runs"


class McpMount:
    """The MCP servers of a server, one for each set of tools. Close it in the event loop that answered."""

    streams = False
    """Whether the server sends messages of its own."""

    def __init__(self) -> None:
        self.server: ASGIApp | None = None
        """Where tools send their requests: the whole server, with its door."""
        self._making, self._closing = asyncio.Lock(), asyncio.Event()
        self._running: list[asyncio.Task[None]] = []
        self._managers: dict[str, StreamableHTTPSessionManager] = {}

    def add_to(self, app: Starlette) -> None:
        """Add the paths to an application."""
        for path, toolset in MCP_PATHS.items():
            app.router.routes.append(Route(path, McpPath(self, toolset)))

    async def answer(self, toolset: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] == "GET" and not self.streams:
            problem = _problem(INVALID_REQUEST, NO_STREAM)
            await JSONResponse(problem, 405, {"Allow": "POST, DELETE"})(scope, receive, send)
            return
        async with self._making:
            if toolset not in self._managers:
                try:
                    await self._start(toolset)
                except ImportError:
                    await JSONResponse(_problem(INTERNAL_ERROR, MISSING), 501)(scope, receive, send)
                    return
        manager = self._managers[toolset]
        try:
            raw = await INTAKE.body(Request(scope, receive))
        except CallError as exc:
            await errors.response(exc, errors.OPENAI)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        if (older := _older_version(scope, raw)) is not None:
            await JSONResponse(older, 400)(scope, receive, send)
            return
        await until_client_leaves(partial(manager.handle_request, trim_headers(scope)), raw, receive, send)

    async def close(self) -> None:
        """End every MCP server."""
        self._closing.set()
        await asyncio.gather(*self._running)

    async def _start(self, toolset: str) -> None:
        assert self.server is not None  # noqa: S101 - set before anything is answered
        manager, started = self.manager(toolset, self.server), asyncio.Event()
        self._running.append(asyncio.create_task(self._run(manager, started)))
        await started.wait()
        self._managers[toolset] = manager

    def manager(self, toolset: str, server: ASGIApp) -> StreamableHTTPSessionManager:
        """Return the SDK's transport of a set of tools, which ask `server`."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from gateway.mcp.log_toolbox import open_toolbox
        from gateway.mcp.mcp_server import build_server
        from gateway.mcp.toolbox import OwnServer

        return StreamableHTTPSessionManager(
            build_server(open_toolbox(OwnServer(server), toolset)),
            json_response=True,
            stateless=True,
            max_request_body_size=INTAKE.max_bytes,
        )

    async def _run(self, manager: StreamableHTTPSessionManager, started: asyncio.Event) -> None:
        """Keep the SDK's tasks in one task of their own: they end where they began."""
        async with manager.run():
            started.set()
            await self._closing.wait()


def _older_version(scope: Scope, raw: bytes) -> dict[str, Any] | None:
    """Return the error of a request whose header names a version that is not spoken; of newer clients the SDK's own."""
    from mcp_types import PROTOCOL_VERSION_META_KEY, UNSUPPORTED_PROTOCOL_VERSION
    from mcp_types.version import SUPPORTED_PROTOCOL_VERSIONS

    version = Headers(scope=scope).get("mcp-protocol-version", "").strip()
    if not version or version in SUPPORTED_PROTOCOL_VERSIONS or PROTOCOL_VERSION_META_KEY.encode() in raw:
        return None
    text = MCP_HEADER.text.format(version=version[:20], versions=", ".join(SUPPORTED_PROTOCOL_VERSIONS))
    problem = _problem(UNSUPPORTED_PROTOCOL_VERSION, text)
    problem["error"]["data"] = {"supported": list(SUPPORTED_PROTOCOL_VERSIONS), "requested": version[:20]}
    return problem


def _problem(code: int, message: str) -> dict[str, Any]:
    """Return an error as clients of MCP show it, whatever the status."""
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}


def trim_headers(scope: Scope) -> Scope:
    """Return a request without blanks around its headers' values (RFC 9110 section 5.5), which uvicorn passes on.

    The SDK compares `mcp-name` with the body.
    """
    return {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}


async def until_client_leaves(
    handle: Callable[[Receive, Send], Awaitable[None]], raw: bytes, receive: Receive, send: Send
) -> None:
    """Handle a request whose body is `raw`, and cancel that if its client leaves before the answer is complete."""
    leaving = asyncio.ensure_future(receive())  # after the body there is no other message
    body: Message | None = {"type": "http.request", "body": raw, "more_body": False}
    is_answered = False

    async def receive_again() -> Message:
        nonlocal body
        message, body = body, None
        return await asyncio.shield(leaving) if message is None else message

    async def send_watched(message: Message) -> None:
        nonlocal is_answered
        await send(message)
        is_answered = message["type"] == "http.response.body" and not message.get("more_body", False)

    handling = asyncio.ensure_future(handle(receive_again, send_watched))
    try:
        await asyncio.wait((handling, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not is_answered and not handling.done():
            handling.cancel()
        with suppress(asyncio.CancelledError):
            await handling
    finally:
        handling.cancel()
        leaving.cancel()


class McpPath:
    """The application at one path."""

    def __init__(self, mount: McpMount, toolset: str) -> None:
        self._mount, self._toolset = mount, toolset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._mount.answer(self._toolset, scope, receive, send)
