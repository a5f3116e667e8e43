"""Several servers of one log: one has the place and answers, the others forward to it until one of them has it.

    request ──► this server has the place ──► the application
            └─► another has it ──► body ──► its URL, in the group ──► its answer, as it comes
                                    ▲          └──► it reads no request now: wait for the next one ──┐
                                    └────────────────────────────────────────────────────────────────┘

One hop: a server without the place refuses a forwarded request unread (MOVED), and the sender looks again. One that has
it says so before it reads the request (TAKEN): the status and headers of its answer are the first line of what follows.
So a request waits while the place moves, whatever becomes of the servers that did not take it, and is taken once. If
the server that took it ends before its answer begins, the client gets status 503: the turn may be recorded, and a retry
then gets the recorded answer. A request at a server that is no member any more is cut off.

A WebSocket is forwarded message by message; it ends (1012) when the place moves, and its client connects again.

Not covered: an address (serve.address_connections, logins) is that of the forwarding server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import httpx2
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from gateway.http.errors import refusal, response
from gateway.http.intake import Intake
from gateway.http.route import BODY_BYTES, RouteTable
from streams.errors import CallError, LogError

FORWARDED, MOVED, TAKEN = b"x-streamward-forwarded", b"x-streamward-moved", b"x-streamward-taken"
"""Headers: of a forwarded request, of its refusal by a server that does not have the place, and of one that has it."""
LOOK_S = 0.25
"""How often the members are read, and a request without a server looks for one."""
WAIT_S = 120.0
"""How long a request waits for a server that has the place."""
CONNECT_S = 2.0
HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"))
"""Headers of one connection, RFC 9110, section 7.6.1."""
DENIAL_HEADERS = frozenset((b"content-type", b"retry-after", b"www-authenticate"))
"""Headers of a refused handshake that its client gets."""
TOLD_CODES = frozenset((1000, 1001, 1003, 1007, 1008, 1009, 1011, 1012, 1013))
"""Codes by which a server ends a WebSocket, which its client gets; others say that the connection broke (RFC 6455)."""


class LogPlace(Protocol):
    """The right to answer for a log."""

    @property
    def is_held(self) -> bool:
        """Whether this server certainly has it."""

    def member_urls(self) -> list[str]:
        """Return the URLs of the server that has it, and of those that try to take it. Raises LogError."""


class Gate:
    """The application of one of several servers: its own while it has the place, another server otherwise."""

    def __init__(self, place: LogPlace, elsewhere: ASGIApp, health: ASGIApp, table: RouteTable) -> None:
        """`elsewhere` answers what this server does not."""
        self._place, self._elsewhere, self._health, self._table = place, elsewhere, health, table
        self._app: ASGIApp | None = None
        self._answering = 0

    def open(self, app: ASGIApp) -> None:
        """Answer with this application from now on."""
        self._app = app

    async def close(self, within_s: float) -> None:
        """Let no further request in, and return once those in progress have ended, at most after `within_s`."""
        self._app = None
        deadline = time.monotonic() + within_s
        while self._answering and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S / 5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app = self._app if self._place.is_held else None
        is_forwarded = any(name == FORWARDED for name, _ in scope["headers"])
        if scope["type"] == "http" and scope["path"] == "/healthz":
            await self._health(scope, receive, send)
        elif app is not None:
            self._answering += 1
            try:
                if is_forwarded and scope["type"] == "http":
                    send = await _acknowledge(send)
                await app(scope, receive, send)
            finally:
                self._answering -= 1
        elif is_forwarded:
            moved = refusal(
                503, "this server does not answer for its log now; try again", self._table.dialect(scope["path"])
            )
            moved.headers[MOVED.decode()] = "1"
            await moved(scope, receive, send)
        else:
            await self._elsewhere(scope, receive, send)


class Forwarder:
    """An application that another server answers: the one that has the place."""

    def __init__(self, place: LogPlace, table: RouteTable, max_body_bytes: int, authority: Path | None) -> None:
        """`authority`: certificates by which servers know each other, in addition to the system's."""
        self._place, self._table = place, table
        self._intake = Intake(max_bytes=max_body_bytes, bound="serve.max_body_mb")
        self._context = ssl.create_default_context()
        if authority is not None:
            self._context.load_verify_locations(authority)
        self._client = httpx2.AsyncClient(
            verify=self._context,
            trust_env=False,
            timeout=httpx2.Timeout(None, connect=CONNECT_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self._holder: str | None = None
        self._at_holder: dict[asyncio.Task[bool], str] = {}
        """Requests, and where they are."""

    async def follow(self, note: Callable[[], None]) -> None:
        """Look where the place is until this is cancelled; `note` is called each time that the broker answered."""
        while True:
            with contextlib.suppress(LogError):
                urls = await asyncio.to_thread(self._place.member_urls)
                if self._holder not in urls:
                    self._holder = next(iter(urls), None)
                note()
            for task, url in tuple(self._at_holder.items()):
                if url != self._holder:
                    task.cancel()
            await asyncio.sleep(LOOK_S)

    async def close(self, within_s: float) -> None:
        """Return once nothing is forwarded any more, at most after `within_s`."""
        if self._at_holder:
            await asyncio.wait(tuple(self._at_holder), timeout=within_s)
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have one request or WebSocket answered."""
        if scope["type"] != "http":
            await self._take_socket(scope, receive, send)
            return
        dialect = self._table.dialect(scope["path"])
        try:
            body = await self._intake.raw(Request(scope, receive))
        except CallError as exc:
            await response(exc, dialect)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        begun = False

        async def sends(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        problem = f"no server answered for this log within {WAIT_S:g} s; try again"
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                if self._holder is not None and await self._ask(self._holder, scope, body, receive, sends):
                    return
            except httpx2.TransportError:
                problem = "the server that answers for this log ended while it had this request; try again"
                break
            await asyncio.sleep(LOOK_S)
        if not begun:  # otherwise the client sees that the end is missing
            await refusal(503, problem, dialect)(scope, receive, send)

    async def _ask(self, url: str, scope: Scope, body: bytes, receive: Receive, send: Send) -> bool:
        """Have a server answer; return whether it did, or the client has left.

        Raises httpx2.TransportError if it took the request and there is no whole answer.
        """
        taken = asyncio.Event()
        answer = asyncio.create_task(self._relay(url, scope, body, taken, send))
        self._at_holder[answer] = url
        left = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
            if answer.done() and answer.cancelled():
                if not taken.is_set():
                    return False
                raise httpx2.ReadError("another server has the place")
            return await answer if answer.done() else True
        finally:
            del self._at_holder[answer]
            answer.cancel()
            left.cancel()
            await asyncio.gather(answer, left, return_exceptions=True)

    async def _relay(self, url: str, scope: Scope, body: bytes, taken: asyncio.Event, send: Send) -> bool:
        """Pass on the answer of a server; return whether it took the request, which is noted as soon as it is known."""
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        headers = [*_end_to_end(scope["headers"]), (FORWARDED, b"1")]
        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # the answer's head is in its body
        try:
            target = httpx2.URL(url).copy_with(raw_path=scope["raw_path"] + query)
            request = httpx2.Request(method, target, headers=headers, content=body)
            answer = await self._client.send(request, stream=True)
        except (httpx2.TransportError, httpx2.InvalidURL):
            return False
        try:
            if TAKEN.decode() not in answer.headers:
                return False
            taken.set()
            parts, head = answer.aiter_raw(), b""
            while b"\n" not in head:
                if (part := await anext(parts, None)) is None:
                    raise httpx2.ReadError("the answer has no head")
                head += part
            first, _, rest = head.partition(b"\n")
            await send(_start_of(first))
            await send({"type": "http.response.body", "body": rest, "more_body": True})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()
        return True

    async def _take_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Connect a WebSocket to the server that answers; the client waits meanwhile."""
        await receive()
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if (url := self._holder) is not None:
                relay = asyncio.create_task(self._relay_socket(url, scope, receive, send))
                self._at_holder[relay] = url
                try:
                    await asyncio.wait((relay,))
                    if relay.cancelled() or await relay:
                        return
                finally:
                    del self._at_holder[relay]
                    relay.cancel()
            await asyncio.sleep(LOOK_S)
        problem = f"no server took this WebSocket within {WAIT_S:g} s; try again"
        await refusal(503, problem, self._table.dialect(scope["path"]))(scope, receive, send)

    async def _relay_socket(self, url: str, scope: Scope, receive: Receive, send: Send) -> bool:
        """Pass on the messages of a WebSocket until it ends; return whether a server took or refused it."""
        query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in _end_to_end(scope["headers"])
            if name != b"host" and not name.startswith(b"sec-websocket-")
        ]
        try:
            upstream = await connect(
                f"ws{url.removeprefix('http')}{scope['raw_path'].decode()}{query}",
                additional_headers=[*headers, (FORWARDED.decode(), "1")],
                ssl=self._context if url.startswith("https") else None,
                open_timeout=WAIT_S,
                max_size=BODY_BYTES,
                compression=None,
                proxy=None,
            )
        except InvalidStatus as exc:
            answer = exc.response
            if MOVED.decode() in answer.headers:
                return False
            kept = {name: text for name, text in answer.headers.raw_items() if name.lower().encode() in DENIAL_HEADERS}
            await Response(bytes(answer.body), answer.status_code, kept)(scope, receive, send)
            return True
        except (OSError, InvalidHandshake):
            return False
        ways = (asyncio.create_task(_upwards(receive, upstream)), asyncio.create_task(_downwards(upstream, send)))
        try:
            await send({"type": "websocket.accept"})
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            code = upstream.close_code
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, upstream.close(), return_exceptions=True)
            with contextlib.suppress(OSError, RuntimeError):  # the client has left
                end = {"code": code, "reason": upstream.close_reason} if code in TOLD_CODES else {"code": 1012}
                await send({"type": "websocket.close", **end})
        return True


async def _acknowledge(send: Send) -> Send:
    """Say that a forwarded request is read; return what sends its answer: a line of status and headers, the body."""

    async def enclose(message: Message) -> None:
        if message["type"] == "http.response.start":
            names = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in message["headers"]]
            line = json.dumps([message["status"], names]).encode() + b"\n"
            message = {"type": "http.response.body", "body": line, "more_body": True}
        await send(message)

    await send({"type": "http.response.start", "status": 200, "headers": [(TAKEN, b"1")]})
    return enclose


def _start_of(line: bytes) -> Message:
    try:
        status, names = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise httpx2.RemoteProtocolError("the answer's head cannot be read") from exc
    head = ((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in names)
    return {"type": "http.response.start", "status": status, "headers": list(_end_to_end(head))}


async def _upwards(receive: Receive, upstream: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            await upstream.send(message["bytes"] if text is None else text)


async def _downwards(upstream: ClientConnection, send: Send) -> None:
    with contextlib.suppress(ConnectionClosed, OSError, RuntimeError):
        async for message in upstream:
            await send({"type": "websocket.send", "text" if isinstance(message, str) else "bytes": message})


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
    return ((name, value) for name, value in headers if name not in HOP_BY_HOP)


async def _left(receive: Receive) -> None:
    """Return once the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
