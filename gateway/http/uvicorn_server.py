"""uvicorn within a command that has its own signal handlers: a socket that listens, and a server on it.

host, port ──► bound ──► socket        application ──► quiet_server ──► answers on sockets until `should_exit`
certificate and key, if any ──► TlsFiles ──► quiet_server, which then speaks https
a client resets its connection ──► WHEN_UNREAD of the scope of the last request is called

Not covered: an answer that is left unread behind a proxy, which reads it itself, or for longer than the seconds after
which uvicorn closes an unused connection. A client may also reset a connection whose answer it has read.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from streams.errors import SettingsError

WHEN_UNREAD = "streamward.when_unread"
"""Where a scope of ASGI has the function to call if the client leaves without reading the answer."""


class WatchedConnection(HttpToolsProtocol):
    """A connection that notices when its client leaves without reading the last answer.

    The system of a client acknowledges what it receives, whether or not the program reads it. If the program closes a
    connection with unread bytes, its system resets the connection (RFC 9293, section 3.6.1); otherwise it just ends.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection; `exc` if it was reset."""
        super().connection_lost(exc)
        scope = cast("dict[str, Any]", self.scope or {})  # of the last request; what was answered before it was read
        if exc is not None and WHEN_UNREAD in scope:
            scope[WHEN_UNREAD]()


class QuietServer(uvicorn.Server):
    """uvicorn without signal handlers of its own: the command's have been set."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


class TlsFiles(NamedTuple):
    """PEM files of a server."""

    certificate: Path
    """Its own first, then those up to its authority."""
    key: Path

    def check(self) -> None:
        """Raise SettingsError if a server could not use them."""
        for path in self:
            if not path.is_file():
                raise SettingsError(f"{path}: no such file; serve.tls_certificate and serve.tls_key name PEM files")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self, password=_no_password)
        except (OSError, ValueError) as exc:
            raise SettingsError(
                f"serve.tls_certificate {self.certificate}, serve.tls_key {self.key}: {exc}. Expected a certificate "
                "and the private key that belongs to it, both PEM, and the key without a password"
            ) from exc


def _no_password() -> bytes:
    raise ValueError("the key has a password")


def quiet_server(app: ASGIApp, *, grace_s: int, tls: TlsFiles | None = None) -> QuietServer:
    """Return a server; once it should stop, answers in progress may take `grace_s` seconds."""
    return QuietServer(
        uvicorn.Config(
            app,
            http=WatchedConnection,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=grace_s,
            server_header=False,
            proxy_headers=False,
            ssl_certfile=tls and tls.certificate,
            ssl_keyfile=tls and tls.key,
        )
    )


def bound(section: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises SettingsError that names the settings of `section`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        raise SettingsError(
            f"{section}.host {host}, {section}.port {port}: {exc}. Name another port, or 0 for any free one"
        ) from exc
