"""The registry of tools as a part of the server: its rooms, its WebSocket, and the record of the server's own tools.

    tools of each of our MCP servers ──► Offer ──► added, once ──► changed, when a server starts that offers other tools
    entries that are described otherwise than accepted ──► gauge streamward_tools_changed ──► alert ToolsChanged

`streamward agents tools accept mcp:log` ends the alarm, with the name of the user. Nothing is refused meanwhile: a
client pins descriptions itself.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from importlib.metadata import version
from typing import Self

from starlette.applications import Starlette
from starlette.types import ASGIApp

from gateway.http.mcp_paths import MCP_PATHS
from gateway.http.route import MCP, Route
from gateway.log.server_part import ServerBase, ServerPart
from plugins.tools.registry.tool_caller import ToolCaller
from plugins.tools.registry.tool_log import EntryOrder, RegistryDecision, ToolLog
from plugins.tools.registry.tool_state import Offer
from plugins.tools.rooms.environment_trials import EnvironmentTrials
from plugins.tools.rooms.registered_tools import RegisteredTools
from plugins.tools.rooms.tool_socket import SOCKET_PATH, ToolSocket
from plugins.tools.rooms.tools_of_runs import ToolsOfRuns
from plugins.tools.tool_metrics import TOOLS_CHANGED
from schemas.events import Tool
from schemas.tool_text import offer_digest
from streams.errors import LogError, NotFoundError, RefusedError
from streams.observability.metrics import Meter

ACTOR = "serve"
log = logging.getLogger("streamward.agents")


class ToolsPart(ServerPart):
    """The tools of the log, and processes that call them."""

    ROOMS = (RegisteredTools, EnvironmentTrials)
    ROUTES = (Route("GET", SOCKET_PATH, MCP, may="chat.call"),)  # the handshake of a WebSocket
    SOCKETS = (SOCKET_PATH,)

    def __init__(self, base: ServerBase) -> None:
        self._base, self._socket = base, ToolSocket()
        self._caller = ToolCaller(base.settings)

    def __enter__(self) -> Self:
        """Record the tools that this server offers, and report entries that changed; not without the topic."""
        try:
            record_own_tools(self._base.log.registry(ToolLog), self._base.toolsets)
        except (NotFoundError, RefusedError, LogError) as exc:
            log.warning("the tools of this server are not recorded: %s", exc)
        else:
            self._base.log.meter.collect(self._report)
        return self

    def __exit__(self, *exc: object) -> None:
        self._caller.__exit__(*exc)

    def rooms(self) -> list[object]:
        settings, log = self._base.settings, self._base.log
        base = self._base
        registered = RegisteredTools(settings, log, self._caller, base.recorder, lambda: base.tool_guard)
        return [registered, EnvironmentTrials(settings, log)]

    def run_tools(self) -> ToolsOfRuns:
        return ToolsOfRuns(lambda: self._base.log.registry(ToolLog), self._caller)

    def add_to(self, app: Starlette) -> None:
        self._socket.add_to(app)

    def reach(self, server: ASGIApp) -> None:
        self._socket.server = server

    def _report(self) -> None:
        with contextlib.suppress(LogError):  # the broker does not answer, which other metrics say
            report_changes(self._base.log.registry(ToolLog), self._base.log.meter)


def record_own_tools(log: ToolLog, toolsets: Mapping[str, tuple[Tool, ...]]) -> None:
    """Write the lists that the log does not have yet. Raises LogError."""
    paths = {toolset: path for path, toolset in MCP_PATHS.items()}
    for toolset, tools in toolsets.items():
        name = f"mcp:{toolset}"
        offer = Offer(tools=tools, digest=offer_digest(tools), version=version("streamward"))
        if log.state(name).added is None:
            decision = RegistryDecision(ACTOR, "the tools of the first server of this log")
            log.add(EntryOrder(name, paths[toolset]), offer, decision)
        else:
            log.note(name, offer, RegistryDecision(ACTOR, f"streamward {offer.version} offers other tools"))


def report_changes(log: ToolLog, meter: Meter) -> None:
    """Set the gauge of each entry: 1 if its newest description is not the accepted one."""
    for name, entry in log.states.items():
        meter.set(TOOLS_CHANGED, 0.0 if entry.is_trusted else 1.0, name)
