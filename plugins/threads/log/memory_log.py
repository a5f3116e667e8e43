"""Follow the agents' store, and change its items.

    memory ──► a thread that follows ──► MemoryState
    put, delete ──► event ──► memory ──► own fold has passed it ──► answer

An item is in the log before its writer gets an answer, so every later read finds it, here and, once they have read it,
in other processes.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from plugins.threads.log.memory_state import Labels, MemoryItem, MemoryState
from schemas.events import MemoryEvent, derive_id, problems
from streams.errors import EventError, NotFoundError
from streams.kafka import times
from streams.kafka.followed import FollowedTopic
from streams.kafka.record import Record
from streams.settings.model import Settings

T = TypeVar("T")


class MemoryLog(FollowedTopic):
    """The store, followed in a thread. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings, "memory")
        self._state = MemoryState()
        self._writer, self._numbers = uuid.uuid4().hex, itertools.count()

    def read(self, look: Callable[[MemoryState], T]) -> T:
        """Return what `look` reads of the store. Raises LogError once the log cannot be read."""
        with self._changed:
            self._raise_error()
            return look(self._state)

    def get(self, namespace: Labels, key: str) -> MemoryItem:
        """Return an item. Raises NotFoundError, LogError."""
        item = self.read(lambda state: state.get(namespace, key))
        if item is None:
            raise NotFoundError(f"there is no item {key[:80]!r} in namespace {'.'.join(namespace)[:200]!r}")
        return item

    def put(self, namespace: Labels, key: str, value: str, *, actor: str, subject: str | None = None) -> MemoryItem:
        """Write an item, and return it. Raises EventError for one that cannot be one, LogError."""
        event = replace(self._event(namespace, key, value, actor), subject=subject)
        self._write(event)
        created_at = event.created_at
        item = self.read(lambda state: state.get(namespace, key))
        return item or MemoryItem(namespace, key, value, created_at, created_at)  # None: deleted since

    def delete(self, namespace: Labels, key: str, *, actor: str) -> None:
        """Delete an item. Raises NotFoundError, EventError, LogError."""
        event = self._event(namespace, key, None, actor)
        self.get(namespace, key)
        self._write(event)

    def has_done(self, event_id: str) -> bool:
        """Return whether a rule has written this event. Raises LogError."""
        return self.read(lambda state: state.has_done(event_id))

    def write(self, event: MemoryEvent) -> None:
        """Write the event of a rule. Raises EventError for one that cannot be one, LogError."""
        if problem := next(problems(event), None):
            raise EventError(problem)
        self._write(event)

    def _event(self, namespace: Labels, key: str, value: str | None, actor: str) -> MemoryEvent:
        name = ".".join(namespace)
        event = MemoryEvent(
            event_id=derive_id(name, key, self._writer, next(self._numbers)),
            namespace=name,
            created_at=times.now_ms(),
            kind="deleted" if value is None else "put",
            key=key,
            actor=actor,
            value=value,
        )
        if problem := next(problems(event), None):
            raise EventError(problem)
        return event

    def _forget(self, subject: str) -> None:
        self._state.forget(subject)

    def _take(self, record: Record) -> None:
        if (event := self._decoded(record, MemoryEvent)) is None:
            return
        self._state.take(event)
