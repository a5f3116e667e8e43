"""The interface of a stream worker to its stages, the same for every driver.

    stage.register(driver) ──► tables for its state, an outlet for its events, an agent for each topic that it reads

`streams/worker/faust/faust_driver.py` runs stages in Faust, `streams/worker/batched/` in our own loop. A handler is
written once, for both: it gets one record at a time, and awaits its emitted events.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from schemas.events import Event
from streams.kafka.record import Record
from streams.kafka.topics import Topic
from streams.observability.metrics import Meter
from streams.observability.tracing.tracer import Trace, Traced, Tracer
from streams.settings.model import Settings

HandleRecord = Callable[[Record], Awaitable[None]]
"""Handles one record. It raises EventError for an unusable record; any other error ends the worker."""


class TableRows(Protocol):
    """Rows of one table, kept in its changelog."""

    def get(self, key: bytes) -> bytes | None:
        """Return the row under `key`, or None."""

    def __setitem__(self, key: bytes, row: bytes) -> None:
        """Write a row. Only while a record is handled, and after its events were emitted."""


class EventOutlet(Protocol):
    """Writes the events of one stage."""

    async def emit(self, event: Event) -> None:
        """Write one event to its topic. Raises EventError if it is too large for the topic."""

    async def emit_traced(self, event: Traced, trace: Trace | None, *, began_ms: float | None = None) -> None:
        """Write one event under its trace, with a span that began at `began_ms`. Raises as `emit`."""


class Driver(Protocol):
    """A stream worker, as a stage sees it."""

    settings: Settings
    meter: Meter
    traces: Tracer

    def table(self, name: str, partitions: int) -> TableRows:
        """Return a table; `partitions` are those of the topics whose agents write it."""

    def outlet(self, stage: str) -> EventOutlet:
        """Return what writes the events of a stage, by its name for the meter."""

    def agent(
        self, topic: Topic, handle: HandleRecord, stage: str, *, name: str = "", after: Iterable[Topic] = ()
    ) -> None:
        """Have `handle` called for each record of `topic`; unusable ones become dead letters of the stage.

        `name` is the agent's, if the stage has several. A record waits until the partitions of its number in the
        topics `after` are read up to its timestamp, or to their ends.
        """
