"""Every room of the server, without a log behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.rooms.routes import PARTS
from gateway.server import agent_rooms, job_rooms, log_rooms, people_rooms
from streams.settings.model import Settings


def every_room(settings: Settings) -> list[Any]:
    """Return them as a server with these settings has them."""
    nothing: Any = SimpleNamespace(runs=None)
    base: Any = SimpleNamespace(
        settings=settings,
        recorder=nothing,
        jobs=SimpleNamespace(month=None),
        log=nothing,
        keys=None,
        logins=None,
        rendering=None,
    )
    return [
        *agent_rooms(settings, nothing),
        *job_rooms(settings, nothing, nothing),
        *log_rooms(settings, nothing),
        *people_rooms(settings, nothing),
        *(room for part in PARTS for room in part(base).rooms()),
    ]
