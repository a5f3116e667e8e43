"""The Agent Protocol and A2A as a part of the server: the threads of its log, and the runs that it answers."""

from __future__ import annotations

from contextlib import ExitStack

from gateway.log.open_log import READ_S
from gateway.log.server_part import ServerBase, ServerPart
from plugins.threads.a2a.agent_cards import A2aCards
from plugins.threads.a2a.agent_tasks import A2aTasks
from plugins.threads.acp.acp_agents import AcpAgents
from plugins.threads.acp.acp_runs import AcpRuns
from plugins.threads.acp.acp_store import AcpStore
from plugins.threads.acp.acp_threads import AcpThreads
from plugins.threads.acp.known_agents import KnownAgents
from plugins.threads.acp.program_runs import ProgramRuns
from plugins.threads.acp.requested_runs import RequestedRuns
from plugins.threads.acp.run_actions import CallPlaces
from plugins.threads.acp.run_execution import ThreadRuns
from plugins.threads.acp.runs_of_tasks import RunsOfTasks
from plugins.threads.acp.thread_views import ThreadViews
from plugins.threads.log.memory_log import MemoryLog
from plugins.threads.log.task_thread_log import TaskThreadLog
from plugins.threads.log.thread_settings import Threads
from plugins.threads.memory.memory_calls import MemoryCalls
from plugins.threads.memory.remembering import RunFunctions
from plugins.threads.memory.run_memory import RunMemory
from streams.errors import CallError
from streams.kafka.followed import FollowedOnDemand
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.tasks.line_steps import LineSteps


class ThreadPart(ServerPart):
    """Threads and their runs, of which the next server continues those that this one leaves."""

    ROOMS = (AcpAgents, AcpThreads, AcpRuns, AcpStore, A2aCards, A2aTasks, RunsOfTasks)

    def __init__(self, base: ServerBase) -> None:
        settings = base.settings
        self._base, self._stack = base, ExitStack()
        self._memory = self._stack.enter_context(FollowedOnDemand(MemoryLog, settings))
        self._task_threads = self._stack.enter_context(FollowedOnDemand(TaskThreadLog, settings))
        self._programs = ProgramRuns(settings, lambda: base.log.tasks, base.recorder.runs)
        steps, by_program = LineSteps(base.log.states), self._programs.outcome
        runs = ThreadRuns(settings, base.recorder, self._memory.open, steps, by_program, self._call_places)
        self._runs = self._stack.enter_context(runs)
        calls = MemoryCalls(settings, base.recorder, steps)
        functions = RunFunctions(settings.of_plugin(Threads).references)
        self._run_memory = self._stack.enter_context(RunMemory(settings, runs, calls, functions, self._memory.open))
        self._agents = KnownAgents(lambda: base.recorder.agents.open(), settings.policy.name, self._run_memory.fault)

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def rooms(self) -> list[object]:
        runs, agents, auth = self._runs, self._agents, self._base.authentication
        views = ThreadViews(runs, self._read_task_threads)
        requested = RequestedRuns(runs, views, agents)
        return [
            AcpAgents(agents),
            AcpThreads(runs, views),
            AcpRuns(runs, requested),
            AcpStore(self._memory.open),
            A2aCards(agents, "" if auth is None else auth.public_url),
            A2aTasks(runs, requested, agents),
            RunsOfTasks(runs, self._base.recorder.runs, lambda: self._base.log.tasks, agents),
        ]

    def _call_places(self) -> CallPlaces:
        return CallPlaces(self._base.run_tools, self._base.authentication, self._agents, self._base.tool_guard)

    def _read_task_threads(self) -> TaskThreadLog:
        """Return every thread that a task names. Raises as `TaskThreadLog`, and CallError while tasks are read."""
        threads = self._task_threads.open()
        if not threads.is_read(READ_S):
            raise CallError("busy", "the tasks in the log are being read for their threads; try again")
        return threads

    def keeps_open(self, trajectory_id: str) -> bool:
        return self._runs.is_open(trajectory_id)

    def end_of(self, trajectory_id: str) -> TrajectoryEnd | None:
        return self._runs.end_of(trajectory_id)

    async def resume(self) -> None:
        await self._runs.resume()

    def stop(self) -> None:
        self._run_memory.stop()
        self._programs.stop()
        self._runs.stop()

    async def close(self) -> None:
        await self._run_memory.close()
        await self._runs.close()
