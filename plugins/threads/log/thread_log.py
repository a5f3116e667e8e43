"""Follow the threads in the log, and append events to them.

    threads ──► a thread that follows ──► ThreadState of each ──► readers that wait for a change
    append ──► event ──► threads ──► own fold has passed it ──► it took effect, or why not

Which run of a thread is in progress is part of its fold; the server that has the engine answers that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from plugins.threads.log.thread_state import RunState, ThreadState, fold, refusal
from schemas.events import ThreadEvent, derive_id, problems
from streams.errors import EventError, NotFoundError
from streams.kafka import times
from streams.kafka.followed import FollowedTopic
from streams.kafka.record import Record
from streams.settings.model import Settings


class Appended(NamedTuple):
    """The outcome of an event."""

    state: ThreadState | None
    """The thread, with the event taken in."""
    refusal: str | None
    """Why it changed nothing."""


class ThreadLog(FollowedTopic):
    """Every thread, followed. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings, on_change: Callable[[ThreadState], None] = lambda _: None) -> None:
        """`on_change` gets each thread that an event changed, in the thread that follows.

        Raises NotFoundError without the topic, LogError if the broker does not answer.
        """
        super().__init__(settings, "threads")
        self._on_change = on_change
        self._states: dict[str, ThreadState] = {}
        self._thread_of: dict[str, str] = {}
        """The thread of each run."""
        self._awaited: dict[str, str | None] = {}
        """Why events that are being written took no effect, by their ids."""

    def last(self, thread_id: str) -> ThreadState | None:
        """Return a thread, also if it was deleted; None if there never was one.

        Raises LogError once the log cannot be read.
        """
        with self._changed:
            self._raise_error()
            return self._states.get(thread_id)

    def find(self, run_id: str) -> RunState | None:
        """Return a run; None if there is none. Raises LogError once the log cannot be read."""
        with self._changed:
            self._raise_error()
            state = self._states.get(self._thread_of.get(run_id, ""))
        return None if state is None else state.runs.get(run_id)

    def run(self, run_id: str) -> RunState:
        """Return a run. Raises NotFoundError, LogError."""
        if (run := self.find(run_id)) is None:
            raise NotFoundError(f"there is no run {run_id[:80]}")
        return run

    def threads(self) -> list[ThreadState]:
        """Return every thread, single runs included, the newest first. Raises LogError once the log cannot be read."""
        with self._changed:
            self._raise_error()
            states = [state for state in self._states.values() if not state.deleted]
        return sorted(states, key=lambda state: (-state.updated_at, state.thread_id))

    def append(self, event: ThreadEvent) -> Appended:
        """Write an event, and return its outcome. Raises EventError with its fault, LogError."""
        if problem := next(problems(event), None):
            raise EventError(problem)
        with self._changed:
            self._awaited[event.event_id] = None
        try:
            self._write(event)
            with self._changed:
                return Appended(self._states.get(event.thread_id), self._awaited.get(event.event_id))
        finally:
            with self._changed:
                self._awaited.pop(event.event_id, None)

    def append_all(self, events: Sequence[ThreadEvent]) -> None:
        """Write events, and return once they were folded; some may be refused. Raises as `append`."""
        for event in events:
            if problem := next(problems(event), None):
                raise EventError(problem)
        self._write_all(events)

    def _forget(self, subject: str) -> None:
        for name, state in list(self._states.items()):
            if subject in (state.subject, *(run.request.subject for run in state.runs.values())):
                del self._states[name]

    def _take(self, record: Record) -> None:
        if (event := self._decoded(record, ThreadEvent)) is None:
            return
        before = self._states.get(event.thread_id)
        if (reason := refusal(before, event)) is not None:
            if event.event_id in self._awaited:
                self._awaited[event.event_id] = reason
            return
        after = fold(before, event)
        if after is None:
            return
        self._states[event.thread_id] = after
        if event.kind == "run_requested" and event.run_id is not None:
            self._thread_of[event.run_id] = event.thread_id
        self._on_change(after)


def run_event(run: RunState, kind: Any, actor: str, *about: object, **fields: Any) -> ThreadEvent:
    """Return an event about a run; unless it is among the fields, its id is derived from the run and what it is
    `about`."""
    event_id = fields.pop("event_id", None) or derive_id(run.thread_id, run.run_id, kind, *about)
    about_run: dict[str, Any] = {"thread_id": run.thread_id, "run_id": run.run_id, "kind": kind, "actor": actor}
    about_run["subject"] = run.request.subject
    return ThreadEvent(event_id=event_id, created_at=times.now_ms(), **about_run, **fields)
