"""Every room of the server, without a log behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.server import agent_rooms, job_rooms, log_rooms, people_rooms, thread_rooms, tinker_rooms
from streams.settings.model import Settings


def every_room(settings: Settings) -> list[Any]:
    """Return them as a server with these settings has them."""
    nothing: Any = SimpleNamespace(runs=None)
    return [
        *agent_rooms(settings, nothing),
        *job_rooms(settings, nothing, nothing),
        *log_rooms(settings, nothing),
        *tinker_rooms(settings, nothing),
        *thread_rooms(settings, nothing, nothing),
        *people_rooms(settings, nothing),
    ]
