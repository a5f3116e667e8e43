"""Stand between a client that others wrote and the server, and record what they say to each other.

    client ──► proxy ──► server
                 └──► exchanges

Suites written for a mock name models, files and jobs that are not here, and leave out what a mock does not need. `mend`
puts in the served model, a prompt, and files and jobs that it makes (stand_ins.py); everything else goes through as it
is. An answer is passed on when it is complete, so a
suite that measures the time to the first token would measure nothing here.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PASSED_ON = (
    "content-type",
    "anthropic-version",
    "x-stainless-retry-count",
    "accept",
    "content-encoding",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "a2a-version",
    "host",  # the card of an agent has the address that it was asked for
)
"""Headers of a request that the server reads."""


class Exchange(NamedTuple):
    """A request and its answer; bytes that are no text are surrogates of them."""

    method: str
    path: str
    headers: dict[str, str]
    body: str
    status: int
    kind: str
    answer: str


Mend = Callable[[str, str, bytes], tuple[str, bytes]]
"""Takes method, path and body of a request, and returns what path and body should be."""


@contextmanager
def between(server: str, mend: Mend | None = None) -> Iterator[tuple[str, list[Exchange]]]:
    """Yield the address of a proxy before `server`, and the exchanges, which grow."""
    exchanges: list[Exchange] = []
    target = urlsplit(server)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            path, raw = mend(self.command, self.path, raw) if mend is not None else (self.path, raw)
            headers = {name: value for name in PASSED_ON if (value := self.headers.get(name)) is not None}
            connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
            connection.request(self.command, path, raw, headers)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            kind = answer.getheader("content-type", "")
            exchanges.append(
                Exchange(
                    self.command,
                    path,
                    headers,
                    raw.decode(errors="surrogateescape"),
                    answer.status,
                    kind,
                    content.decode(errors="surrogateescape"),
                )
            )
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = do_HEAD = do_OPTIONS = do_TRACE = _pass_on

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}", exchanges
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
