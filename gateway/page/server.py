"""Serve the page on this machine until it is asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterator

import uvicorn

from gateway.page.app import create_app
from gateway.page.log_view import LogView
from streams.errors import SettingsError
from streams.settings.model import Page, Settings
from streams.tools.archive.history import Source

LOOK_S = 0.1
"""How soon a request to stop is noticed."""
GRACE_S = 1
"""How long answers in progress may take once the page should stop, seconds."""
NICENESS = 10
"""Of the process: whoever trains on this machine goes first."""

log = logging.getLogger("streamward.page")


class _PageServer(uvicorn.Server):
    """uvicorn without signal handlers of its own: the command's have been set."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def run(settings: Settings, *, source: Source, stop: threading.Event) -> None:
    """Serve until `stop` is set. Raises SettingsError if the address cannot be used."""
    with contextlib.closing(_bound(settings.page)) as listening, contextlib.closing(LogView(settings, source)) as view:
        with contextlib.suppress(OSError):
            os.nice(NICENESS)
        host, port = listening.getsockname()[:2]
        log.info("the page is at http://%s:%d/", f"[{host}]" if ":" in host else host, port)
        asyncio.run(_serve(view, listening, stop))


async def _serve(view: LogView, listening: socket.socket, stop: threading.Event) -> None:
    config = uvicorn.Config(
        create_app(view),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        proxy_headers=False,
    )
    server = _PageServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not stop.is_set() and not serving.done():
        await asyncio.sleep(LOOK_S)
    server.should_exit = True
    await serving


def _bound(rule: Page) -> socket.socket:
    """Return a socket that listens. Raises SettingsError."""
    family = socket.AF_INET6 if ":" in rule.host else socket.AF_INET
    try:
        return socket.create_server((rule.host, rule.port), family=family)
    except OSError as exc:
        raise SettingsError(
            f"page.host {rule.host}, page.port {rule.port}: {exc}. Name another port, or 0 for any free one"
        ) from exc
