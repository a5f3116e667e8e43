"""A connection to the server: limits on the size and time of request heads, and on the number of connections.

    connected ──► OpenConnections ──► one too many in all, or of its address: 503
    bytes ──► head: HEAD_BYTES, MOST_HEADERS, HEAD_S, HTTP/1.1 or 1.0, one Host ──► the application
          │    └──► 431, 408 or 400, and the connection is closed
          ├─► body: the application's (limits.py, body.py); chunk extensions and trailers as a head
          └─► Upgrade: websocket, where there is one ──► a CountedSocket (websocket.py)
    reset by its client ──► WHEN_UNREAD of the scope of the last request is called

uvicorn bounds none of these. The time HEAD_S starts at the connection, at the end of the answer before, or, on an idle
connection, at the first byte. While an answer is in progress, a refusal only closes the connection, since it would be
read as part of that answer. Trailers are dropped.

Not covered: connections in a TLS handshake are limited in time only. Requests that are refused here leave no event. An
unread answer is not noticed if a proxy reads it, or after uvicorn has closed the unused connection; and a client may
reset a connection after reading its answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.http import errors
from streams.errors import CallError

HEAD_BYTES = 64 * 1024
"""Longest request line with its headers; also the longest run of bytes outside a body."""
MOST_HEADERS = 100
HEAD_S = 10.0
"""Time for a head; also for the rest of a body whose answer has ended, and for a TLS handshake."""
LINGER_S = 1.0
"""Time for which a connection is read after a refusal: closing it while bytes arrive would discard the refusal."""
MOST_PIPELINED = 8
"""Requests that wait for the answer to the one before them."""
VERSIONS = ("1.0", "1.1")
HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
"""A name or an address, and a port (RFC 9110, section 7.2)."""
HEAD_TOO_LARGE = 431
WHEN_UNREAD = "streamward.when_unread"
"""Where a scope of ASGI has the function to call if the client leaves without reading the answer."""


class OpenConnections:
    """Counts the connections of a server, in all and by address; 0: any number."""

    def __init__(self, limit: int, address_limit: int) -> None:
        self._limit, self._address_limit = limit, address_limit
        self._count, self._by_network = 0, Counter[str]()

    def add(self, address: str) -> str | None:
        """Count a connection. Return why it is one too many; it is counted until `remove` even then."""
        network = network_of(address)
        self._count += 1
        self._by_network[network] += 1
        if self._limit and self._count > self._limit:
            return f"the server has {self._limit} connections (serve.max_connections)"
        if self._address_limit and self._by_network[network] > self._address_limit:
            return f"{network} has {self._address_limit} connections (serve.address_connections)"
        return None

    def remove(self, address: str) -> None:
        """Count a connection no longer."""
        network = network_of(address)
        self._count -= 1
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]


def network_of(address: str) -> str:
    """Return an address; for IPv6 its first 64 bits, since one client owns all addresses under them."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.version == 4 or ip.ipv4_mapped is not None:
        return address
    return str(ipaddress.ip_network((ip, 64), strict=False))


class WatchedConnection(HttpToolsProtocol):
    """A connection that notices when its client leaves without reading the last answer.

    The system of a client acknowledges what it receives, whether or not the program reads it. If the program closes a
    connection with unread bytes, its system resets the connection (RFC 9293, section 3.6.1); otherwise it just ends.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection; `exc` if it was reset."""
        super().connection_lost(exc)
        scope = cast("dict[str, Any]", self.scope or {})  # of the last request; earlier answers were read
        if exc is not None and WHEN_UNREAD in scope:
            scope[WHEN_UNREAD]()


class BoundedConnection(WatchedConnection):
    """A connection with bounds."""

    def __init__(self, open_connections: OpenConnections, socket_paths: Sequence[str], **of_uvicorn: Any) -> None:
        """`socket_paths`: those that may become a WebSocket."""
        super().__init__(**of_uvicorn)
        self._open_connections, self._address = open_connections, "unknown"
        self._socket_paths = frozenset(path.encode() for path in socket_paths)
        self._becomes_socket = False
        self._in_head = True
        self._unread_bytes = 0
        """Bytes since the last that were a part of a body, or ended a head or a request."""
        self._timer: asyncio.TimerHandle | None = None
        self._answer: RequestResponseCycle | None = None
        """The last answer that has begun."""
        self._fault: tuple[CallError, int | None] | None = None
        """What the parser's callback found, and its status if it is not that of the error."""
        self._is_refused = False

    # --- the transport ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless there is no room."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else "unknown"
        if (reason := self._open_connections.add(self._address)) is not None:
            self._is_refused = True
            self._write(CallError("busy", f"{reason}; close some, or try again"))
            transport.close()
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, whichever side closed it."""
        self._stop_timer()
        self._open_connections.remove(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what a client sent, up to the limit of a head."""
        rest = memoryview(data)
        while rest and not self._is_refused and not self.transport.is_closing():
            room = HEAD_BYTES - self._unread_bytes
            if not room:
                part = "the head of the request" if self._in_head else "a chunk's extension, or the trailers,"
                problem = f"{part} has more than {HEAD_BYTES} bytes; send less in URL and headers"
                self._refuse(CallError("too_large", problem), HEAD_TOO_LARGE)
                return
            self._unread_bytes += len(rest[:room])
            self._parse(rest[:room])
            rest = rest[room:]
        if self._in_head and not self._is_refused and not self._is_answering:
            self._start_timer()

    def _parse(self, part: memoryview) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            if self._becomes_socket:
                self.handle_websocket_upgrade()
            # otherwise answered as an ordinary HTTP request
        except httptools.HttpParserError as exc:
            self._refuse(*self._fault or (CallError("invalid", f"this is no request of HTTP/1.1: {exc}"), None))

    def _should_upgrade(self) -> bool:
        return self._becomes_socket

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to a WebSocket; it remains one of those that are counted."""
        from gateway.http.websocket import CountedSocket

        self._in_head = False  # so no other head is waited for
        ended = partial(self._open_connections.remove, self._address)
        self.ws_protocol_class = partial(CountedSocket, ended)  # type: ignore[assignment]
        super().handle_websocket_upgrade()

    # --- the parser ---------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Raises CallError, which ends the parsing."""
        if not self._in_head:
            return  # a trailer
        if len(self.headers) == MOST_HEADERS:
            problem = f"the request has more than {MOST_HEADERS} headers; send fewer"
            self._stop_parsing(CallError("too_large", problem), HEAD_TOO_LARGE)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer a request. Raises CallError, which ends the parsing."""
        if (version := self.parser.get_http_version()) not in VERSIONS:
            self._stop_parsing(CallError("invalid", f"HTTP/{version}: expected HTTP/1.1 or HTTP/1.0"))
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            self._stop_parsing(CallError("invalid", f"expected one header Host, got {len(hosts) or 'none'}"))
        if hosts and HOST.fullmatch(hosts[0]) is None:
            self._stop_parsing(CallError("invalid", "the header Host is neither a name nor an address, with a port"))
        if len(self.pipeline) == MOST_PIPELINED:
            problem = f"more than {MOST_PIPELINED} requests wait for the answer before theirs; wait for answers"
            self._stop_parsing(CallError("too_large", problem), HEAD_TOO_LARGE)
        self._in_head, self._unread_bytes = False, 0
        self._stop_timer()
        self._becomes_socket = (
            self.url.partition(b"?")[0] in self._socket_paths
            and self.parser.get_method() == b"GET"
            and self._get_upgrade() == b"websocket"
            and not self._is_answering
        )
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; the next one may follow."""
        self._in_head, self._unread_bytes = True, 0
        super().on_message_complete()

    def _stop_parsing(self, error: CallError, status: int | None = None) -> None:
        self._fault = (error, status)
        raise error

    # --- answers ------------------------------------------------------------------------------------------------------

    @property
    def _is_answering(self) -> bool:
        return self._answer is not None and not self._answer.response_complete

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answer = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Wait for the rest of the request, or the next one."""
        super().on_response_complete()
        is_idle = self._in_head and not self._unread_bytes  # then uvicorn closes it after some seconds
        if not is_idle and not self._is_answering and not self.transport.is_closing():
            self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self._end_of_patience)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_of_patience(self) -> None:
        """Refuse a late head. A client that sent nothing, or has its answer, gets no refusal."""
        self._timer = None
        if self._in_head and self._unread_bytes:
            problem = f"the head of the request did not arrive within {HEAD_S:g} s; send it faster"
            self._refuse(CallError("request_timeout", problem))
        else:
            self.transport.close()

    def _refuse(self, error: CallError, status: int | None = None) -> None:
        """Answer an invalid or too large request, and close the connection."""
        self._is_refused = True
        self._stop_timer()
        self.pipeline.clear()
        answer = self._answer
        if answer is not None and self._is_answering:
            self.cycle = answer  # which uvicorn ends, should the client leave
            if not answer.more_body:  # it is about a later request
                answer.keep_alive = False
                return
            answer.disconnected = True
            answer.message_event.set()
        if answer is None or answer.response_complete or not answer.response_started:
            self._write(error, status)
        self._close()

    def _write(self, error: CallError, status: int | None = None) -> None:
        response = errors.response(error, errors.OPENAI)
        response.headers["Connection"] = "close"
        headers = [*self.server_state.default_headers, *response.raw_headers]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(b"".join([STATUS_LINE[status or response.status_code], lines, b"\r\n", response.body]))

    def _close(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)
