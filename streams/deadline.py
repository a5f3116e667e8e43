"""End an HTTP request when its time is up, wherever in the answer it is.

httpx limits each read on its own, so a server that sends now and then a byte of a header, a `100 Continue`, a chunk
extension or a trailer is never late. Here a timer closes the connection under the request.

Not covered: looking up the server's name, which the system's resolver limits.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Any, Self

_CONNECTED = ("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")


class RequestDeadline:
    """One request's time. Enter it around the request, and pass `extensions` on to httpx.

    Leaving it raises httpx.ReadTimeout if the time was up: what came until then is not the whole answer. Only new
    connections are noticed, so the client must keep none (`httpx.Limits(max_keepalive_connections=0)`).
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
        import httpx

        self._timer.cancel()
        with self._lock:
            self._socket = None
            if self._is_over:
                raise httpx.ReadTimeout(f"no whole answer within {self._limit_s:g} s") from exc

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
    """Wake whoever reads from or writes to it; `close` would not."""
    if connection is not None:
        with contextlib.suppress(OSError):  # it is closed already
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
