"""Agents as a part of the server: their registration, and the begin and end of their runs on tasks."""

from __future__ import annotations

from gateway.log.server_part import ServerBase, ServerPart
from plugins.agents.rooms.agent_registration import AgentRegistration
from plugins.agents.rooms.agent_runs import AgentRuns


class AgentPart(ServerPart):
    """The rooms of agents; the recorder that they act on is the server's."""

    ROOMS = (AgentRuns, AgentRegistration)

    def __init__(self, base: ServerBase) -> None:
        self._base = base

    def rooms(self) -> list[object]:
        recorder = self._base.recorder
        return [AgentRuns(recorder.runs), AgentRegistration(self._base.settings, recorder.agents)]
