"""uvicorn within a command that has its own signal handlers: a socket that listens, and a server on it.

host, port ──► bound ──► socket        application ──► quiet_server ──► answers on sockets until `should_exit`
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from streams.errors import SettingsError


class QuietServer(uvicorn.Server):
    """uvicorn without signal handlers of its own: the command's have been set."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def quiet_server(app: ASGIApp, *, grace_s: int) -> QuietServer:
    """Return a server; once it should stop, answers in progress may take `grace_s` seconds."""
    return QuietServer(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=grace_s,
            server_header=False,
            proxy_headers=False,
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
