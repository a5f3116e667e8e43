"""The fold of a topic as it is now: read on whenever it is asked for, without a thread of its own.

topic ──► records that are new since the last time ──► State.take ──► its user, alone with it
event ──► topic ──► where it is
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from schemas.events import Coordinates, Event
from streams.errors import NotFoundError
from streams.kafka.history import History
from streams.kafka.producer import Producer
from streams.kafka.record import Record, TopicPartition
from streams.settings.model import Settings

if TYPE_CHECKING:
    from streams.tools.archive.history import Source


class Fold(Protocol):
    """A state that takes records."""

    def take(self, record: Record) -> object:
        """Add a record; those of a partition come in its order."""


S = TypeVar("S", bound=Fold)


class FoldedTopic(Generic[S]):
    """A fold, shared by threads. Its methods raise NotFoundError without the topic, LogError."""

    def __init__(self, settings: Settings, label: str, state: S, source: Source) -> None:
        self._settings, self._label, self._state, self._source = settings, label, state, source
        self._history: History | None = None
        self._next: dict[TopicPartition, int] = {}
        self._reading = threading.Lock()

    @contextmanager
    def now(self) -> Iterator[S]:
        """Yield the fold of what is in the log now."""
        with self._reading:
            if self._history is None:
                from streams.tools.archive import history  # needs deltalake, which a server without an archive has not

                self._history = history.of(self._settings, self._source)
            bounds = self._bounds(self._history)
            starts = {tp: self._next.get(tp, low) for tp, (low, _) in bounds.items()}
            ends = {tp: end for tp, (_, end) in bounds.items()}
            for record in self._history.read(starts, ends) if starts != ends else ():
                self._state.take(record)
            self._next = ends
            yield self._state

    def _bounds(self, records: History) -> dict[TopicPartition, tuple[int, int]]:
        try:
            return records.bounds([self._label])
        except NotFoundError:
            if self._source != "archive":
                raise
            return {}  # it was archived before there was this topic

    def write(self, *events: Event) -> list[Coordinates]:
        """Write events, and return where they are, in the order of their acknowledgement."""
        places: list[Coordinates] = []
        with Producer(self._settings, linger_ms=0) as producer:
            for event in events:
                producer.send(event, on_ack=places.append)
            producer.flush()
        return places
