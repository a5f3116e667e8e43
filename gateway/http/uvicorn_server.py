"""uvicorn inside a command with its own signal handlers: a listening socket, and a server on it.

host, port ──► bound ──► socket        application ──► quiet_server ──► answers on sockets until `should_exit`
certificate and key, if any ──► TlsFiles ──► quiet_server, which then speaks https
each connection ──► BoundedConnection (connection.py)
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp

from gateway.http import connection
from gateway.http.connection import BoundedConnection, OpenConnections
from gateway.http.route import BODY_BYTES
from streams.errors import SettingsError

OTHER_FILES = 512
"""Open files of a server that are not client connections: the broker's, the model's, its threads'."""


class QuietServer(uvicorn.Server):
    """uvicorn without signal handlers: the command has set its own. Connections are bounded."""

    def __init__(
        self, config: uvicorn.Config, open_connections: OpenConnections, socket_paths: Sequence[str] = ()
    ) -> None:
        super().__init__(config)
        self._open_connections, self._socket_paths = open_connections, socket_paths

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on sockets. uvicorn's own would give a TLS handshake a minute."""
        config, loop = self.config, asyncio.get_running_loop()
        bounds = self._open_connections, self._socket_paths
        make = partial(BoundedConnection, *bounds, config=config, server_state=self.server_state, app_state={})
        handshake_s = None if config.ssl is None else connection.HEAD_S
        self.servers = [
            await loop.create_server(
                make, sock=listening, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=handshake_s
            )
            for listening in sockets or []
        ]
        self.started = True

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


def quiet_server(
    app: ASGIApp,
    *,
    grace_s: int,
    tls: TlsFiles | None = None,
    open_connections: OpenConnections | None = None,
    socket_paths: Sequence[str] = (),
) -> QuietServer:
    """Return a server; after a request to stop, answers in progress have `grace_s` seconds.

    `open_connections`: maximum; None: no limit. `socket_paths`: paths of WebSockets.
    """
    config = uvicorn.Config(
        app,
        ws="none",  # connection.py makes them
        ws_max_size=BODY_BYTES,
        ws_per_message_deflate=False,  # a short message could unpack to a long one
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=grace_s,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=tls and tls.certificate,
        ssl_keyfile=tls and tls.key,
    )
    return QuietServer(config, open_connections or OpenConnections(0, 0), socket_paths)


def allow_open_files(connections: int) -> None:
    """Raise this process's limit of open files for so many connections, up to the system's maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need if hard == resource.RLIM_INFINITY else min(need, hard), hard))


def bound(section: str, host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises SettingsError, naming the settings of `section`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        raise SettingsError(
            f"{section}.host {host}, {section}.port {port}: {exc}. Name another port, or 0 for any free one"
        ) from exc
