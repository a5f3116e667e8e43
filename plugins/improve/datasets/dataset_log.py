"""The data sets in the log: builds by name, and submissions to providers with their outcomes.

    datasets ──► each event once ──► DatasetLog ──► NAME[@digest] ──► the event of that build
    event ──► is it there? ──► datasets                              announce: one fact, one record

The id of an event is derived from its content, so a process that was killed checks the log before it writes. Concurrent
writers write the same id, and the first record counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from schemas.events import Coordinates, DatasetEvent
from schemas.faults import nearest
from schemas.serde import Poison
from streams.errors import NotFoundError, RefusedError
from streams.kafka.admin import read_topic
from streams.kafka.history import History
from streams.kafka.producer import Producer
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings


class PlacedDataset(NamedTuple):
    """An event and where it is."""

    at: Coordinates
    event: DatasetEvent


class DatasetLog:
    """Every event that counts, in the order of its partition."""

    def __init__(self, events: Sequence[PlacedDataset]) -> None:
        by_id: dict[str, PlacedDataset] = {}
        for placed in events:
            by_id.setdefault(placed.event.event_id, placed)
        self.placed = tuple(by_id.values())
        self._by_id = {event_id: placed.event for event_id, placed in by_id.items()}

    def names(self) -> list[str]:
        """Return the names of all data sets."""
        return sorted({event.dataset for event in self._by_id.values()})

    def event(self, event_id: str) -> DatasetEvent | None:
        """Return the event with this id."""
        return self._by_id.get(event_id)

    def of(self, name: str) -> list[DatasetEvent]:
        """Return the events of a data set."""
        return [event for event in self._by_id.values() if event.dataset == name]

    def newest(self, name: str) -> DatasetEvent | None:
        """Return the newest build under a name."""
        return next((event for event in reversed(self.of(name)) if event.kind == "built"), None)

    def find(self, reference: str, tenants: Sequence[str | None] | None = None) -> DatasetEvent:
        """Return the build that NAME, or NAME@DIGEST, names; of a digest its beginning will do.

        `tenants`: only those of these tenants; None: all. Raises NotFoundError, RefusedError if several begin so.
        """
        name, _, digest = reference.partition("@")
        events = [event for event in self.of(name) if tenants is None or event.tenant in tenants]
        builds = [event for event in events if event.kind == "built"]
        if not builds:
            known = [name for name in self.names() if tenants is None]
            raise NotFoundError(f"there is no data set {name[:80]!r}; {nearest(name, known)}")
        if not digest:
            return builds[-1]
        matching = [event for event in builds if event.digest.startswith(digest)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise RefusedError(f"{len(matching)} builds of {name} begin with {digest}; give more of the digest")
        raise NotFoundError(
            f"data set {name} has no build {digest[:80]}; its newest is {builds[-1].digest[:12]} "
            f"(`streamward improve datasets show {name}`)"
        )


def read(settings: Settings) -> DatasetLog:
    """Return the data sets of this log. Raises NotFoundError without the topic, LogError."""
    return _fold(settings, read_topic(settings, "datasets"))


def read_history(settings: Settings, history: History) -> DatasetLog:
    """Return the data sets of a history; an archive that never had the topic has none. Raises LogError."""
    try:
        bounds = history.bounds(["datasets"])
    except NotFoundError:
        return DatasetLog([])
    starts, ends = ({tp: bound[side] for tp, bound in bounds.items()} for side in (0, 1))
    return _fold(settings, history.read(starts, ends) if starts != ends else ())


def _fold(settings: Settings, records: Iterable[Record]) -> DatasetLog:
    events = []
    for record in records:
        event = record.decode_placed(DatasetEvent, topics(settings.topics)["datasets"].partitions)
        if not isinstance(event, Poison):
            events.append(PlacedDataset(record.at, event))
    return DatasetLog(events)


def announce(settings: Settings, event: DatasetEvent) -> tuple[DatasetEvent, bool]:
    """Write an event unless it is there. Return the one that counts, and whether it was written now.

    Raises LogError.
    """
    if (existing := read(settings).event(event.event_id)) is not None:
        return existing, False
    with Producer(settings, linger_ms=0) as producer:
        producer.send(event)
    return read(settings).event(event.event_id) or event, True
