"""Serve the page on this machine until it is asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading

from gateway.http.uvicorn_server import bound, quiet_server
from plugins.page.app import create_app
from plugins.page.settings import Page
from plugins.page.token_texts import texts_of
from streams.settings.model import Settings
from streams.tools.archive.history import Source
from streams.tools.views.log_view import LogView

LOOK_S = 0.1
"""Interval at which a request to stop is noticed."""
GRACE_S = 1
"""Seconds that answers in progress may take after a request to stop."""
NICENESS = 10
"""Nice value of the process: training on this machine has priority."""

log = logging.getLogger("streamward.page")


def run(settings: Settings, *, source: Source, stop: threading.Event) -> None:
    """Serve until `stop` is set. Raises SettingsError if the address cannot be used."""
    address = settings.of_plugin(Page)
    with (
        contextlib.closing(bound("page", address.host, address.port)) as listening,
        contextlib.closing(LogView(settings, source)) as view,
    ):
        with contextlib.suppress(OSError):
            os.nice(NICENESS)
        host, port = listening.getsockname()[:2]
        log.info("the page is at http://%s:%d/", f"[{host}]" if ":" in host else host, port)
        asyncio.run(_serve(view, listening, stop))


async def _serve(view: LogView, listening: socket.socket, stop: threading.Event) -> None:
    server = quiet_server(create_app(view, texts=texts_of(view.settings)), grace_s=GRACE_S)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not stop.is_set() and not serving.done():
        await asyncio.sleep(LOOK_S)
    server.should_exit = True
    await serving
