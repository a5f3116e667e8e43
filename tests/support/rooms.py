"""Every room of the server, without a log behind it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.http.mcp_paths import MCP_PATHS
from gateway.log.server_part import ServerBase, ServerPart
from gateway.rooms.routes import PARTS, PLUGIN_ROOMS, ROUTES, OwnPermissions
from gateway.server import agent_rooms, log_rooms
from streams.settings.model import Settings


def base_without_log(settings: Settings) -> ServerBase:
    """Return what parts of a server are made of, with nothing open."""
    nothing: Any = SimpleNamespace(runs=None, agents=None, is_fleet=False, states=None)
    return ServerBase(
        settings=settings,
        recorder=nothing,
        log=nothing,
        rendering=nothing,
        toolsets={},
    )


def every_room(settings: Settings) -> list[Any]:
    """Return them as a server with these settings has them."""
    base = base_without_log(settings)
    nothing: Any = base.log
    for part in PARTS:
        base.parts.append(part(base))
    return [
        *agent_rooms(settings, nothing),
        *log_rooms(settings, nothing),
        OwnPermissions(),
        *(room for part in base.parts for room in rooms_of(part)),
        *(room(settings, nothing) for room in PLUGIN_ROOMS),
    ]


def rooms_of(part: ServerPart) -> list[Any]:
    """Return the rooms of a part. One that knows callers has them with a log alone: its are there, and hold nothing."""
    if type(part).authentication is ServerPart.authentication:
        return part.rooms()
    return [object.__new__(room) for room in part.ROOMS]


def entrances() -> list[str]:
    """Return a path of each interface, those of plugins too, and of MCP, to which a key is sent with a body."""
    posts = [route for route in ROUTES if route.method == "POST" and not route.is_open]
    return [*{route.interface: route.paths[0] for route in reversed(posts)}.values(), *MCP_PATHS]
