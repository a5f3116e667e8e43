"""Threads visible to a request: their own events, and the tasks that name them.

    threads, and tasks with their answers ──► TaskFold ──► ThreadState: it is read
    it is changed ──► what its events do not have yet ──► threads ──► ThreadState, as it was read: it is changed

What a request may not see is not folded: another tenant's tasks are in that tenant's threads, and an agent's key, or a
thread for one agent, gets only that agent's tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from starlette.requests import Request

from gateway.http import errors
from gateway.http.principal import actor_of, tenant_of
from plugins.threads.acp.run_execution import ThreadRuns
from plugins.threads.acp.thread_access import own_agent, sees_thread, thread_name
from plugins.threads.log.task_thread_log import TaskThreadLog
from plugins.threads.log.task_threads import TaskFold, TaskThread, forgetting_events, says_more
from plugins.threads.log.thread_log import ThreadLog
from plugins.threads.log.thread_state import ThreadState
from schemas.events import ThreadEvent
from schemas.key_source import note_read
from streams.access.tenants.tenant_names import is_of
from streams.errors import CallError

T = TypeVar("T")
KEPT_FOLDS = 256
"""How many threads with tasks stay folded."""


class ThreadSources(NamedTuple):
    """The visible sources of a thread."""

    state: ThreadState | None
    """The fold of its events, also after deletion."""
    tasks: TaskThread | None
    """Its tasks."""

    @property
    def outline(self) -> ThreadState | None:
        """The thread from its own events only; None if it does not exist."""
        if self.state is not None and not self.state.deleted:
            return self.state
        if self.tasks is None or not says_more(self.state, self.tasks):
            return None
        return self.tasks.beginning

    @property
    def newest_at(self) -> int:
        """Time of its newest part."""
        times = [] if self.tasks is None else [task.newest_at for task in self.tasks.tasks]
        return max(times if self.state is None else [self.state.updated_at, *times], default=0)


class ThreadViews:
    """The threads of a server. Of one event loop."""

    def __init__(self, runs: ThreadRuns, tasks: Callable[[], TaskThreadLog]) -> None:
        """`tasks` opens the threads that tasks name."""
        self._runs, self._open_tasks = runs, tasks
        self._task_log: TaskThreadLog | None = None
        self._folds: dict[tuple[str, str | None], TaskFold] = {}

    async def get(self, request: Request, thread_id: str) -> ThreadState:
        """Return a thread that a request may see, by its id. Raises CallError."""
        state = await self.find(request, thread_name(request, thread_id))
        if state is None:
            raise CallError("not_found", f"there is no thread {thread_id[:80]}", "thread_id")
        return state

    async def find(self, request: Request, name: str) -> ThreadState | None:
        """Return a thread that a request may see, by its name in the log; None if not found. Raises CallError.

        All tasks that the log has by now are read before it returns None.
        """
        return await self._look(lambda *logs: self._view(request, _sources(request, name, *logs)))

    async def _look(self, look: Callable[[ThreadLog, TaskThreadLog], T]) -> T:
        """Return a view of both logs; an empty one only after all tasks of the log have been read."""
        threads, tasks = await self._open()
        if not (seen := look(threads, tasks)):
            await errors.apart(tasks.catch_up)
            seen = look(threads, tasks)
        return seen

    async def search(
        self, request: Request, fits: Callable[[ThreadState], bool], offset: int, limit: int
    ) -> list[ThreadState]:
        """Return matching threads that a request may see, the newest first. Raises CallError.

        All tasks that the log has by now are read before it returns nothing.
        """
        fitting = await self._look(lambda *logs: self._fitting(request, fits, *logs))
        views = (self._view(request, sources) for sources in fitting[offset : offset + limit])
        return [state for state in views if state is not None]

    def _fitting(
        self, request: Request, fits: Callable[[ThreadState], bool], threads: ThreadLog, tasks: TaskThreadLog
    ) -> list[ThreadSources]:
        names = {name for name in tasks.threads() if is_of(tenant_of(request), name)}
        names |= {state.thread_id for state in threads.threads()}
        by_name = {name: _sources(request, name, threads, tasks) for name in names}
        chosen = [
            name for name, sources in by_name.items() if (outline := sources.outline) is not None and fits(outline)
        ]
        return [by_name[name] for name in sorted(chosen, key=lambda name: (-by_name[name].newest_at, name))]

    async def keep(self, request: Request, name: str) -> ThreadState | None:
        """Return what `find` does, after writing all of its parts as the thread's own events. Raises CallError."""
        threads, tasks = await self._open()
        sources = _sources(request, name, threads, tasks)
        fold = self._fold(request, sources)
        if fold is not None and fold.events:
            await self._append(request, fold.events)
            sources = _sources(request, name, threads, tasks)
        return self._view(request, sources)

    async def forget(self, request: Request, name: str) -> None:
        """Stop adding what tasks said to a thread. Raises CallError."""
        state, tasks = _sources(request, name, *await self._open())
        if tasks is not None:
            await self._append(request, list(forgetting_events(state, tasks)))

    async def _open(self) -> tuple[ThreadLog, TaskThreadLog]:
        threads = await self._runs.open()
        if self._task_log is None or self._task_log.is_broken:
            self._task_log = await errors.apart(self._open_tasks)
        return threads, self._task_log

    async def _append(self, request: Request, events: Sequence[ThreadEvent]) -> None:
        own, actor = own_agent(request), actor_of(request)
        await self._runs.append_all(
            [
                replace(event, actor=actor, agent_id=own if event.kind == "created" else event.agent_id)
                for event in events
            ]
        )

    def _view(self, request: Request, sources: ThreadSources) -> ThreadState | None:
        fold = self._fold(request, sources)
        state = sources.state if fold is None else fold.state
        if state is None or state.deleted:
            return None
        note_read(state.subject)
        return state

    def _fold(self, request: Request, sources: ThreadSources) -> TaskFold | None:
        state, tasks = sources
        if tasks is None:
            return None
        key = (tasks.name.thread_id, own_agent(request))
        fold = self._folds.pop(key, None)
        if fold is None or fold.base is not state:
            fold = TaskFold(state)
        fold.take(tasks)
        self._folds[key] = fold
        while len(self._folds) > KEPT_FOLDS:
            self._folds.pop(next(iter(self._folds)))
        return fold


def _sources(request: Request, name: str, threads: ThreadLog, task_log: TaskThreadLog) -> ThreadSources:
    state, tasks = threads.last(name), task_log.find(name)
    agent = own_agent(request)
    if state is not None and not state.deleted:
        if state.stateless or not sees_thread(request, state):
            return ThreadSources(None, None)
        agent = agent or state.agent_id
    if tasks is not None:
        tasks = tasks.of_agent(agent)
    return ThreadSources(state, tasks if tasks is not None and tasks.tasks else None)
