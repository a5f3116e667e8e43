"""/mcp/stream as a WebSocket (RFC 6455): a call of a registered tool is a message, and so is its answer when it comes.

    handshake ──► GET /mcp/stream, within the server, with the caller's key ──► 426: accepted, as it may call tools
    {id, tool, arguments} ──► POST /mcp/tools/{tool}/invoke, likewise ──► {id, …}, in the order in which they end

    what is no call ──► POST /mcp/stream without a body, likewise ──► {id: null, error}; the tenth ──► closed, 1008

So the door decides about the handshake and about each message: all are recorded, all count for the limits of the key,
and a connection is closed at the first message after its key was revoked.

Not covered: a call whose client leaves, or whose server ends, continues to its end, and its answer is not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.http import errors
from gateway.http.body import read
from gateway.http.intake import Intake, read_apart
from gateway.http.route import BODY_BYTES, BODY_VALUES
from gateway.mcp.toolbox import CREDENTIALS, OwnServer
from plugins.tools.rooms.registered_box import TOOLSET, RegisteredBox
from plugins.tools.rooms.registered_tools import MOST_CALLS, StreamCall
from streams.errors import CallError

SOCKET_PATH = "/mcp/stream"
MESSAGES = Intake(max_bytes=BODY_BYTES, max_values=BODY_VALUES)
"""Of a message, as of the route that it calls."""
MOST_NO_CALLS = 10
"""Messages that are no calls, until the connection is closed."""
POLICY_VIOLATION = 1008
KEY_UNKNOWN, KEY_LIMITED = 401, 429
KEY_REFUSED = (KEY_UNKNOWN, 403, KEY_LIMITED, 503)
"""Statuses of the door that are about the key: unknown, not allowed, too often, not checked."""
PAUSE_S = 1.0
"""How long a message of a key that is beyond its limits keeps its place."""
UPGRADE_REQUIRED = 426
NEEDS_SOCKET = "this is a WebSocket; connect with ws:// or wss://, or send the calls with POST"


class ToolSocket:
    """The WebSocket of a server."""

    def __init__(self) -> None:
        self.server: ASGIApp | None = None
        """Where its requests go: the whole server, with its door."""

    def add_to(self, app: Starlette) -> None:
        """Add the path to an application."""
        app.router.routes += [Route(SOCKET_PATH, _needs_socket), WebSocketRoute(SOCKET_PATH, self.answer)]

    async def answer(self, socket: WebSocket) -> None:
        """Answer the calls of one connection until it ends."""
        assert self.server is not None  # noqa: S101 - set before anything is answered
        server = OwnServer(self.server)
        refusal = await _refused_handshake(server, socket)
        if refusal is None:
            await socket.accept()
            await _SocketCalls(socket, RegisteredBox(server, TOOLSET)).answer()
        else:
            await socket.send_denial_response(refusal)


class _SocketCalls:
    """The calls of one connection. It is read no further while `MOST_CALLS` wait for their answers."""

    def __init__(self, socket: WebSocket, tools: RegisteredBox) -> None:
        self._socket, self._tools = socket, tools
        self._places = asyncio.Semaphore(MOST_CALLS)
        self._open: set[asyncio.Task[None]] = set()
        self._no_calls = 0

    async def answer(self) -> None:
        try:
            while (message := await self._socket.receive())["type"] == "websocket.receive":
                await self._places.acquire()
                task = asyncio.create_task(self._answer_one(message))
                self._open.add(task)
                task.add_done_callback(self._end)
        finally:
            for task in self._open:
                task.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._places.release()

    async def _answer_one(self, message: Mapping[str, Any]) -> None:
        raw = message.get("bytes") or (message.get("text") or "").encode()
        call_id, status = None, 0
        try:
            call = await self._read(raw)
            call_id = call.id
            status, answer = await self._tools.invoke(call.tool, call.arguments, self._socket.headers)
        except CallError as exc:
            answer = errors.REST.problem(errors.without_secrets(exc)).model_dump(exclude_unset=True)
            if call_id is None:
                self._no_calls += 1
                refused = await self._tools.refuse(SOCKET_PATH, self._socket.headers)
                status, answer = refused if refused.status in KEY_REFUSED else (refused.status, answer)
        with suppress(RuntimeError, WebSocketDisconnect):  # the client has left
            await self._socket.send_json({"id": call_id, **answer})
            if status == KEY_UNKNOWN or self._no_calls >= MOST_NO_CALLS:
                await self._socket.close(POLICY_VIOLATION, "the key is no longer valid, or these are no calls")
        if status == KEY_LIMITED:
            await asyncio.sleep(PAUSE_S)  # in which its place is not given to the next message

    async def _read(self, raw: bytes) -> StreamCall:
        """Return the call in a message. Raises CallError if there is none."""
        await MESSAGES.check(raw)
        return await read_apart(partial(read, StreamCall), raw)


async def _refused_handshake(server: OwnServer, socket: WebSocket) -> Response | None:
    """Return what the server answers to a caller who may not call tools; None to one who may."""
    headers = {name: socket.headers[name] for name in (*CREDENTIALS, "host", "origin") if name in socket.headers}
    answer = await server.request("GET", SOCKET_PATH, params={}, content=None, headers=headers)
    if answer.status_code == UPGRADE_REQUIRED:
        return None
    return Response(answer.content, answer.status_code, dict(answer.headers))


async def _needs_socket(_: Request) -> Response:
    response = errors.response(CallError("unsupported", NEEDS_SOCKET), errors.REST)
    response.status_code = UPGRADE_REQUIRED
    response.headers["Upgrade"], response.headers["Connection"] = "websocket", "Upgrade"
    return response
