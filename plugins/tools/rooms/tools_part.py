"""The registry of tools as a part of the server: its rooms, its WebSocket, and the record of the server's own tools."""

from __future__ import annotations

import contextlib
import logging
from typing import Self

from starlette.applications import Starlette
from starlette.types import ASGIApp

from gateway.http.route import MCP, Route
from gateway.log.server_part import ServerBase, ServerPart
from plugins.tools.registry.tool_caller import ToolCaller
from plugins.tools.registry.tool_log import ToolLog
from plugins.tools.rooms.environment_trials import EnvironmentTrials
from plugins.tools.rooms.own_tools import record_own_tools, report_changes
from plugins.tools.rooms.registered_tools import RegisteredTools
from plugins.tools.rooms.tool_socket import SOCKET_PATH, ToolSocket
from streams.errors import LogError, NotFoundError, RefusedError

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
        return [RegisteredTools(settings, log, self._caller), EnvironmentTrials(settings, log)]

    def add_to(self, app: Starlette) -> None:
        self._socket.add_to(app)

    def reach(self, server: ASGIApp) -> None:
        self._socket.server = server

    def _report(self) -> None:
        with contextlib.suppress(LogError):  # the broker does not answer, which other metrics say
            report_changes(self._base.log.registry(ToolLog), self._base.log.meter)
