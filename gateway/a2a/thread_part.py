"""The Agent Protocol and A2A as a part of the server: the threads of its log, and the runs that it answers."""

from __future__ import annotations

from gateway.a2a.agent_cards import A2aCards
from gateway.a2a.agent_tasks import A2aTasks
from gateway.acp.acp_agents import AcpAgents
from gateway.acp.acp_runs import AcpRuns
from gateway.acp.acp_store import AcpStore
from gateway.acp.acp_threads import AcpThreads
from gateway.acp.known_agents import KnownAgents
from gateway.acp.requested_runs import RequestedRuns
from gateway.acp.run_execution import ThreadRuns
from gateway.acp.thread_views import ThreadViews
from gateway.log.server_part import ServerBase, ServerPart


class ThreadPart(ServerPart):
    """Threads and their runs, of which the next server continues those that this one leaves."""

    ROOMS = (AcpAgents, AcpThreads, AcpRuns, AcpStore, A2aCards, A2aTasks)

    def __init__(self, base: ServerBase) -> None:
        self._settings, self._log = base.settings, base.log
        self._runs = ThreadRuns(base.settings, base.recorder, lambda: base.log.memory, lambda: base.log.prompts)

    def __exit__(self, *exc: object) -> None:
        self._runs.__exit__(*exc)

    def rooms(self) -> list[object]:
        log, runs = self._log, self._runs
        agents = KnownAgents(lambda: log.agents, self._settings.policy.name)
        views = ThreadViews(runs, lambda: log.task_threads)
        requested = RequestedRuns(runs, views, agents)
        return [
            AcpAgents(agents),
            AcpThreads(runs, views),
            AcpRuns(runs, requested),
            AcpStore(lambda: log.memory),
            A2aCards(agents, self._settings.login.public_url),
            A2aTasks(runs, requested, agents),
        ]

    async def resume(self) -> None:
        await self._runs.resume()

    def stop(self) -> None:
        self._runs.stop()

    async def close(self) -> None:
        await self._runs.close()
