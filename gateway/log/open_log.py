"""What the routes read of the log, opened when a request first needs it.

rows ──► LogOverHttp, which needs DuckDB        ids of tasks ──► TaskIndex
registries ──► Registry, followed
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self, TypeVar

from starlette.requests import Request

from gateway.http.principal import no_task, principal_of, sees_task, task_names
from streams.errors import CallError, NotFoundError
from streams.kafka.followed import FollowedOnDemand
from streams.kafka.named_states import Registry
from streams.observability.metrics import OFF, Meter
from streams.settings.model import Settings
from streams.stages.tasks.task_index import SubmittedTask, TaskIndex

if TYPE_CHECKING:
    from gateway.log.sql_rows import LogOverHttp
    from streams.tools.archive.history import Source

R = TypeVar("R", bound=Registry[Any, Any])
READ_S = 5.0
"""How long a request waits for the ids of all tasks to be read."""
AT_ONCE = 4
"""Requests of each kind that wait for the broker in a thread; calls of agents need threads, too."""


class OpenLog:
    """The log of a server, for every request. Use as a context manager."""

    def __init__(
        self,
        settings: Settings,
        source: Source = "auto",
        meter: Meter = OFF,
    ) -> None:
        """`source`: of rows; `meter`: for rooms that count."""
        self._settings, self._source, self.meter = settings, source, meter
        self._stack, self._lock = ExitStack(), threading.Lock()
        self._view: LogOverHttp | None = None
        self._tasks = self._stack.enter_context(FollowedOnDemand(TaskIndex, settings))
        self._registries: dict[type[Registry[Any, Any]], FollowedOnDemand[Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def view(self) -> LogOverHttp:
        """Rows of the log. Raises CallError where DuckDB is not installed."""
        with self._lock:
            if self._view is None:
                try:
                    from gateway.log.sql_rows import LogOverHttp
                except ImportError as exc:
                    raise CallError("unsupported", f"this server reads no rows of the log: {exc}") from exc
                self._view = self._stack.enter_context(contextlib.closing(LogOverHttp(self._settings, self._source)))
            return self._view

    @property
    def tasks(self) -> TaskIndex:
        """Every task by its id. Raises as `TaskIndex`, and CallError while the topic is read for the first time."""
        tasks = self._tasks.open()
        if not tasks.is_read(READ_S):
            raise CallError("busy", "the ids of the tasks in the log are being read; try again")
        return tasks

    def registry(self, kind: type[R]) -> R:
        """Return a registry of the log, followed from when a request first needs it. Raises as `kind`."""
        with self._lock:
            if kind not in self._registries:
                self._registries[kind] = self._stack.enter_context(FollowedOnDemand(kind, self._settings))
            followed: FollowedOnDemand[R] = self._registries[kind]
        return followed.open()

    def states(self, kind: type[Registry[Any, Any]]) -> Mapping[str, Any]:
        """Return the states of a registry, by name. Raises as `kind`."""
        return self.registry(kind).states

    def find_task(self, request: Request, task_id: str) -> SubmittedTask:
        """Return a task that a request may see. Raises NotFoundError, and as `tasks`."""
        principal = principal_of(request)
        for name in task_names(principal, task_id):
            task = self.tasks.find(name)
            if task is not None and sees_task(principal, task.task.tenant, task.task.agent):
                return task
        raise NotFoundError(no_task(task_id))
