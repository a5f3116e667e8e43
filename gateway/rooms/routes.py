"""Every route of the server, by the rooms that answer them.

    ROOMS, rooms of PARTS and plugins ──► ROUTES ──► TABLE: what the door lets in ──► gateway/openapi.json (document.py)

A room is a class whose methods declare routes (http/route.py); a part has rooms and more (log/server_part.py).
server.py makes those that a deployment serves.
"""

from __future__ import annotations

from typing import Literal

from starlette.requests import Request

from gateway.agents.feedback import FeedbackBox
from gateway.agents.protocols import AgentProtocols
from gateway.http.application import DESCRIPTION
from gateway.http.authentication import NOT_STORED
from gateway.http.body import Answer
from gateway.http.mcp_paths import MCP_ROUTES
from gateway.http.principal import decide_at_door, principal_of
from gateway.http.route import PLAIN, Reply, Route, RouteTable, routes_of
from gateway.log.adapters import PublishedAdapters
from gateway.log.groups import TaskGroups
from gateway.log.loop_motion import LoopState
from gateway.log.recorded_runs import RecordedRuns
from gateway.log.rewards import OutsideRewards
from gateway.log.scores import ScorerTrials
from gateway.log.server_part import ServerPart
from gateway.log.statements import Statements
from gateway.log.tasks import SentTasks
from gateway.log.uploaded_files import UploadedFiles
from schemas.events import AccessRole
from streams.access.roles import every_action
from streams.errors import SettingsError
from streams.plugins.installed import load_plugins
from streams.settings.model import Settings


class HealthAnswer(Answer):
    """The server answers."""

    status: Literal["ok"]


class Health:
    """The route for probes."""

    @PLAIN.get("/healthz", may=None, refuses=(), example=HealthAnswer(status="ok"))
    async def get_health(self) -> HealthAnswer:
        """Say that the server answers."""
        return HealthAnswer(status="ok")


class PermissionsAnswer(Answer):
    """Who asks, and what they may do."""

    who: str
    roles: list[AccessRole]
    tenant: str | None
    agent_id: str | None
    actions: list[str]


class OwnPermissions:
    """The route that lists the permissions of a principal."""

    @PLAIN.get(
        "/auth/permissions",
        may="models.read",  # every role may
        refuses=(),
        example=PermissionsAnswer(
            who="user ann",
            roles=["viewer"],
            tenant=None,
            agent_id=None,
            actions=["models.read", "files.read", "agents.read"],
        ),
    )
    async def get_permissions(self, request: Request) -> Reply[PermissionsAnswer]:
        """Return who asks, and what they may do."""
        principal = principal_of(request)
        assert principal is not None, "the door is in front of this route"  # noqa: S101
        actions = [action for action in every_action() if decide_at_door(principal, action, principal.agent_id).allowed]
        answer = PermissionsAnswer(
            who=principal.who,
            roles=list(principal.roles),
            tenant=principal.tenant,
            agent_id=principal.agent_id,
            actions=actions,
        )
        return Reply(answer, NOT_STORED)


ROOMS: tuple[type, ...] = (
    *(AgentProtocols, FeedbackBox, Health),
    *(SentTasks, OutsideRewards, ScorerTrials, TaskGroups, RecordedRuns, Statements, PublishedAdapters),
    UploadedFiles,
    LoopState,
    OwnPermissions,
)
_PLUGINS = tuple(plugin for plugin, _, _ in load_plugins())
PLUGIN_ROOMS: tuple[type, ...] = tuple(room for plugin in _PLUGINS for room in plugin.load_all(plugin.rooms))
_PARTS: dict[str, type[ServerPart]] = {plugin.name: plugin.load(plugin.serves) for plugin in _PLUGINS if plugin.serves}
PARTS = tuple(_PARTS.values())
"""Each after those of the plugins that its own requires."""


def check_authentication(settings: Settings) -> None:
    """Raise SettingsError if no plugin knows the keys that the settings ask for, or several do."""
    names = [name for name, part in _PARTS.items() if part.authentication is not ServerPart.authentication]
    if settings.serve.auth == "keys" and not names:
        raise SettingsError(
            "serve.auth=keys, and no plugin that knows keys is loaded: add people to plugins.load, or set "
            "serve.auth=none, for this machine alone"
        )
    if len(names) > 1:
        raise SettingsError(f"plugins {' and '.join(names)} know a server's callers; load one of them (plugins.load)")


def _routes() -> tuple[Route, ...]:
    """Return all routes, in the order of the description. Raises SettingsError if a plugin has one of another's."""
    routes = [route for room in ROOMS for route in routes_of(room)]
    taken = {name for route in routes for name in _names(route)}
    parts = (room for part in PARTS for room in part.ROOMS)
    for route in (route for room in (*parts, *PLUGIN_ROOMS) for route in routes_of(room)):
        if taken & (names := _names(route)):
            raise SettingsError(f"the route {route.name} ({route.method} {route.path}) of a plugin is another's")
        taken |= names
        routes.append(route)
    return tuple(routes)


def _names(route: Route) -> set[str]:
    tools = (f"the tool {name}" for name in route.tools)
    return {route.name, *tools, *(f"{route.method} {path}" for path in route.paths)}


ROUTES = _routes()
SOCKETS = tuple(path for part in PARTS for path in part.SOCKETS)
TABLE = RouteTable([*ROUTES, DESCRIPTION, *(route for part in PARTS for route in part.ROUTES), *MCP_ROUTES])
