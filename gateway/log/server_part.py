"""A part of the server with more than rooms: logs of its own, background work, a mount on the application.

    ServerBase: what every part is made of ──► ServerPart, entered ──► rooms and add_to(app) ──► Application
        the server listens ──► resume          it is asked to stop ──► stop ──► calls end ──► close ──► left

A plugin names its part as `serves`; one with rooms alone, which need only settings and log, names them as `rooms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self, TypeVar

from starlette.applications import Starlette
from starlette.types import ASGIApp

from gateway.http.authentication import Authentication, LoginLanding
from gateway.http.route import Route
from gateway.log.open_log import OpenLog
from gateway.log.run_tools import RunTools
from schemas.events import Tool
from streams.engines.rendering.rendering import Rendering
from streams.errors import SettingsError
from streams.settings.model import Settings
from streams.stages.agents.recording.recorder import Recorder
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.agents.tool_guard import ToolGuard

P = TypeVar("P", bound="ServerPart")


@dataclass(frozen=True, kw_only=True)
class ServerBase:
    """What a server has open for every part."""

    settings: Settings
    recorder: Recorder
    log: OpenLog
    rendering: Rendering
    """The engine's texts and tokens."""
    toolsets: Mapping[str, tuple[Tool, ...]]
    """The tools of each of the server's own sets, which MCP offers."""
    parts: list[ServerPart] = field(default_factory=list)
    """Those entered so far: each after the parts of the plugins that its plugin requires."""

    @property
    def authentication(self) -> Authentication | None:
        """How callers are known, once every part is entered; None: without keys. Raises SettingsError if keys are asked
        for, and no part knows them."""
        auth = next(filter(None, (part.authentication() for part in self.parts)), None)
        if auth is None and self.settings.serve.auth == "keys":
            raise SettingsError("serve.auth=keys, and no part of this server knows keys")
        return auth

    @property
    def run_tools(self) -> RunTools | None:
        """The registered tools that runs call, once every part is entered; None: no part has any."""
        return next(filter(None, (part.run_tools() for part in self.parts)), None)

    @property
    def tool_guard(self) -> ToolGuard | None:
        """The guard of calls of tools, once every part is entered; None: all may be made."""
        return next(filter(None, (part.tool_guard() for part in self.parts)), None)

    def part(self, kind: type[P]) -> P:
        """Return the part of another plugin, which the caller's plugin requires."""
        return next(part for part in self.parts if isinstance(part, kind))


class ServerPart:
    """One part of a server. Use as a context manager, around its event loop."""

    ROOMS: ClassVar[tuple[type, ...]] = ()
    """Classes of `rooms`, by which the routes are known without a server."""
    ROUTES: ClassVar[tuple[Route, ...]] = ()
    """For the door: routes of what `add_to` mounts."""
    SOCKETS: ClassVar[tuple[str, ...]] = ()
    """Paths of its WebSockets, which `add_to` mounts."""

    def __init__(self, base: ServerBase) -> None:
        """Open nothing yet: the log may be without its topics."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Close what was opened."""

    def rooms(self) -> list[object]:
        """Return the rooms that answer its routes."""
        return []

    def add_to(self, app: Starlette) -> None:
        """Mount what is no room."""

    def authentication(self) -> Authentication | None:
        """Return how the door knows callers, where the settings ask for keys. One plugin's part at most has this."""
        return None

    def run_tools(self) -> RunTools | None:
        """Return the registered tools that runs of agents call. One plugin's part at most has this."""
        return None

    def tool_guard(self) -> ToolGuard | None:
        """Return what decides about calls of tools. One plugin's part at most has this."""
        return None

    def in_front(self, app: ASGIApp) -> ASGIApp:
        """Return what requests pass before the server's door."""
        return app

    def reach(self, server: ASGIApp) -> None:
        """Take the whole server, with its door and limits, for requests of its own."""

    def landings(self, auth: Authentication) -> Mapping[str, LoginLanding]:
        """Return where logins of browsers through an issuer may end, by name. `auth`: what logs them in."""
        return {}

    def keeps_open(self, trajectory_id: str) -> bool:
        """Return whether a trajectory is still open though no call is made: its run waits for a tool or a person."""
        return False

    def end_of(self, trajectory_id: str) -> TrajectoryEnd | None:
        """Return how the run of a trajectory ended, apart from the reason; None: its last answer is its end."""
        return None

    async def resume(self) -> None:
        """Continue what an earlier server left; it is called once, when the server listens."""

    def stop(self) -> None:
        """Begin nothing new; calls in progress are finished."""

    async def close(self) -> None:
        """Wait until its background work has ended."""
