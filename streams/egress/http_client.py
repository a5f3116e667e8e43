"""HTTP requests to servers outside of the loop: the only way out, with a limit on time and bytes.

    fetch(client, method, url) ──► egress.hosts ──► checked address ──► RequestDeadline ──► status, body
                                        └─ time is up: the connection is closed, wherever in the answer it is

httpx2 limits each read on its own, so a server that sends a byte of a header, a `100 Continue`, a chunk extension or a
trailer now and then is never late. Here a timer closes the connection under the request. No client follows a redirect:
its status is the answer. A request of a traced operation has its `traceparent`.

Not covered: looking up the server's name, which the system's resolver limits; the time of an answer that a coroutine
waits for (MCP), which its caller limits.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Self

import httpx2

from streams.egress import trace_headers
from streams.egress.address_guard import CheckedAsyncTransport, CheckedTransport, UrlOrigin, check_host
from streams.errors import SettingsError

_CONNECTED = ("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")


class AnswerTooLarge(httpx2.StreamError):
    """An answer has more bytes than its caller takes."""


def new_client(reach: UrlOrigin = UrlOrigin.SETTINGS, **options: Any) -> httpx2.Client:
    """Return a client that keeps no connection, as RequestDeadline needs it; `options` are those of httpx2.Client."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    if reach is not UrlOrigin.SETTINGS and options.get("transport") is None:
        options["transport"] = CheckedTransport(reach, limits=limits, verify=_tls())
    hooks = {"request": [_check_request]}
    return httpx2.Client(limits=limits, verify=_tls(), event_hooks=hooks, follow_redirects=False, **options)


def new_async_client(reach: UrlOrigin, most_bytes: int, **options: Any) -> httpx2.AsyncClient:
    """Return a client for coroutines; `options` are those of httpx2.AsyncClient.

    Reading an answer of more than `most_bytes` raises AnswerTooLarge, unless it is a stream of events.
    """

    async def check(request: httpx2.Request) -> None:
        _check_request(request)

    async def limit(response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - of an AsyncClient
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _LimitedStream(response.stream, most_bytes)

    hooks: dict[str, list[Callable[..., Any]]] = {"request": [check], "response": [limit]}
    transport = CheckedAsyncTransport(reach, verify=_tls())
    return httpx2.AsyncClient(transport=transport, event_hooks=hooks, follow_redirects=False, **options)


class _LimitedStream(httpx2.AsyncByteStream):
    """The bytes of an answer, up to a number. Reading on raises AnswerTooLarge."""

    def __init__(self, stream: httpx2.AsyncByteStream, most_bytes: int) -> None:
        self._stream, self._most_bytes = stream, most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        async for chunk in self._stream:
            total += len(chunk)
            if total > self._most_bytes:
                raise _too_large(self._most_bytes)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _check_request(request: httpx2.Request) -> None:
    check_host(request.url.host)
    for name, value in trace_headers().items():
        request.headers.setdefault(name, value)


def _tls() -> ssl.SSLContext:
    """Return the certificates of the operating system, or those that SSL_CERT_FILE or SSL_CERT_DIR name."""
    return _tls_of(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.cache
def _tls_of(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    return httpx2.create_ssl_context()


def fetch(
    client: httpx2.Client, method: str, url: str, *, limit_s: float, most_bytes: int, **request: Any
) -> tuple[int, bytes]:
    """Return status and body of an answer. `request` is what httpx2.Client.stream takes.

    Raises AnswerTooLarge, httpx2.TimeoutException, other httpx2.HTTPError, httpx2.InvalidURL.
    """
    deadline = RequestDeadline(limit_s)
    with deadline, client.stream(method, url, timeout=limit_s, extensions=deadline.extensions, **request) as response:
        return response.status_code, body_of(response, most_bytes)


def body_of(response: httpx2.Response, most_bytes: int) -> bytes:
    """Return the body of a streamed answer. Raises AnswerTooLarge, httpx2.HTTPError."""
    return b"".join(_chunks(response, most_bytes))


def _chunks(response: httpx2.Response, most_bytes: float) -> Iterator[bytes]:
    total = 0
    for chunk in response.iter_bytes():
        total += len(chunk)
        if total > most_bytes:
            raise _too_large(most_bytes)
        yield chunk


def _too_large(most_bytes: float) -> AnswerTooLarge:
    return AnswerTooLarge(f"more than {most_bytes} bytes")


def bearer(key: str | None, origin: str) -> dict[str, str]:
    """Return the header that sends a key; none without a key. Raises SettingsError as `clean_key`."""
    key = clean_key(key or "", origin)
    return {"Authorization": f"Bearer {key}"} if key else {}


def clean_key(key: str, origin: str) -> str:
    """Return a key without the blanks and line ends around it. `origin`: where it is set.

    Raises SettingsError for one that no header can have. It does not show the key; httpx2 would print the whole header.
    """
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise SettingsError(f"{origin}: the key has a character that no HTTP header has; copy it again")
    return key


def lines_of(response: httpx2.Response, most_bytes: float = math.inf) -> Iterator[bytes]:
    """Yield the lines of a streamed answer as they come. httpx2's own lines end at U+2028 within a text, too.

    Raises as `body_of`.
    """
    rest = b""
    for chunk in _chunks(response, most_bytes):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


class RequestDeadline:
    """One request's time. Enter it around the request, and pass `extensions` on to httpx2.

    Leaving it raises httpx2.ReadTimeout if the time was up: the answer is not whole then. Only new connections are
    noticed, so use a client of `new_client`.
    """

    def __init__(self, limit_s: float) -> None:
        self.extensions = {"trace": self._trace}
        self._limit_s = limit_s
        self._timer = threading.Timer(limit_s, self.end)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._is_over = False
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        with self._lock:
            self._socket = None
            if self._is_over:
                raise httpx2.ReadTimeout(f"no whole answer within {self._limit_s:g} s") from exc

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        """Take the socket of a new connection; httpcore calls this at each step of the request."""
        if event.endswith(_CONNECTED):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                if self._is_over:
                    _shut(self._socket)

    def end(self) -> None:
        """End the request now; any thread may call it."""
        with self._lock:
            self._is_over = True
            _shut(self._socket)


def _shut(connection: socket.socket | None) -> None:
    """Wake the thread that reads from or writes to it; `close` would not."""
    if connection is not None:
        with contextlib.suppress(OSError):  # it is closed already
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
