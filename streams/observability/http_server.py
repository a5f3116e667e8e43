"""The one HTTP server of a process: metrics and probes, or the schemas. Read only, and small.

    GET path        ──► Get: path -> status, body ───────┬──► one answer, and the connection is closed
    POST path, body ──► Post, if the site looks it up ───┘

A connection carries one request, takes at most REQUEST_S from first to last byte, and there are at most
MOST_CONNECTIONS: a client that is slow or silent can neither hold a thread for long nor keep a probe out.

It has no TLS and no access control, and listens on the loopback address by default.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

REQUEST_S = 10.0
"""Time limit from accepting a connection to the last byte of its answer."""
MOST_CONNECTIONS = 32
"""Maximum open connections; more are closed unanswered."""
MOST_BODY_BYTES = 1 << 20
"""A larger body is not read."""
_POLL_S = 0.05

log = logging.getLogger("streamward.http")

Get = Callable[[str], tuple[int, str]]
"""Returns status and body for a path without its query."""
Post = Callable[[str, bytes], tuple[int, str] | None]
"""Returns the same for a path and a body, or None to refuse it."""


class Site(NamedTuple):
    """The answers of a server."""

    get: Get
    content_type: str = "text/plain; charset=utf-8"
    refusal: tuple[int, str] = (405, "only GET is supported\n")
    """The answer to PUT, PATCH and DELETE, and to a POST that is not a query."""
    post: Post = lambda path, body: None


@contextlib.contextmanager
def serve(site: Site, host: str, port: int) -> Iterator[str]:
    """Serve `site` while the block runs, and yield the URL; port 0 takes a free one. Raises OSError if taken."""
    is_ipv6 = ":" in host
    server = _HttpServer(site, host, port, socket.AF_INET6 if is_ipv6 else socket.AF_INET)
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), name="http", daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if is_ipv6 else host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, site: Site, host: str, port: int, family: socket.AddressFamily) -> None:
        self.site, self.address_family = site, family
        self._accepted: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__((host, port), _SiteRequest)

    def server_bind(self) -> None:
        """Bind without resolving our own name, which http.server does and which can take a minute."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread, unless too many are open."""
        with self._lock:
            has_room = len(self._accepted) < MOST_CONNECTIONS
            if has_room:
                self._accepted[request] = time.monotonic()
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, answered or not."""
        with self._lock:
            self._accepted.pop(request, None)
            super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that take too long, every _POLL_S. Their threads see the end of the stream."""
        with self._lock:
            began_before = time.monotonic() - REQUEST_S
            for request in [request for request, began in self._accepted.items() if began < began_before]:
                del self._accepted[request]
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Do not log a client that left."""


class _SiteRequest(BaseHTTPRequestHandler):
    server: _HttpServer
    server_version, sys_version = "streamward", ""

    def do_GET(self) -> None:
        """Answer from the site."""
        self._answer(self.server.site.get)

    def do_POST(self) -> None:
        """Answer a query with a body; refuse anything else."""
        if (body := self._body()) is not None:
            site = self.server.site
            self._answer(lambda path: site.post(path, body) or site.refusal)

    def _refuse(self) -> None:
        if self._body() is not None:
            self._send(*self.server.site.refusal)

    do_PUT = do_DELETE = do_PATCH = _refuse

    def _body(self) -> bytes | None:
        """Return the body, or None if it is refused as too large."""
        length = self.headers.get("Content-Length") or "0"
        if length.isdecimal() and int(length) <= MOST_BODY_BYTES:
            return self.rfile.read(int(length))
        self._send(413, f"at most {MOST_BODY_BYTES} bytes\n")
        return None

    def _answer(self, get: Get) -> None:
        try:
            status, body = get(self.path.partition("?")[0])
        except Exception:  # our own error: the client must not think that the process is gone
            log.exception("%s %s failed", self.command, self.path)
            status, body = 500, "internal error; see the log of this process\n"
        self._send(status, body)

    def _send(self, status: int, body: str) -> None:
        payload = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", self.server.site.content_type)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""
