"""A door before an HTTP server, for tests: TLS, and a password for each user.

    client ──► https, `Authorization: Basic` of a user it knows ──► the server behind it ──► its answer, as it is
                └── anybody else: 401

Not covered: answers without a length, and connections that are kept.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.log.secured_node import self_signed


@dataclass
class Door:
    """Where it stands, and who came through."""

    address: str
    """host:port."""
    authority: str
    """Who vouches for its certificate, as PEM."""
    came: list[tuple[str, str]] = field(default_factory=list)
    """(user, method) of each request that was let in."""


@contextmanager
def guarding(url: str, users: Mapping[str, str], folder: Path) -> Iterator[Door]:
    """Stand before the server at `url` while the block runs, for these users (password by name)."""
    behind = urllib.parse.urlsplit(url).netloc
    certificate, private = self_signed()
    (folder / "door.pem").write_text(certificate + private)
    keys = {"Basic " + base64.b64encode(f"{user}:{users[user]}".encode()).decode(): user for user in users}

    class Request(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            user = keys.get(self.headers.get("Authorization", ""))
            if user is None:
                self.answer(401, "application/json", b'{"error_code": 401, "message": "who are you?"}')
                return
            door.came.append((user, self.command))
            connection = http.client.HTTPConnection(behind, timeout=300)
            headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
            connection.request(self.command, self.path, body or None, headers)
            reply = connection.getresponse()
            self.answer(reply.status, reply.headers.get("Content-Type", ""), reply.read())
            connection.close()

        do_GET = do_POST = do_PUT = do_DELETE = pass_on

        def answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Request) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "door.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        door = Door(f"127.0.0.1:{server.server_address[1]}", certificate)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield door
        finally:
            server.shutdown()
            thread.join()
