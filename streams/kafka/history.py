"""Records that will not change any more, for tools that read the past.

    topics, coordinates ──► History ──► bounds, read, fetch ──► Record

`LogHistory` is what the broker holds. streams/tools/archive/history.py has two more: the archive, and both as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from schemas.events import Coordinates
from streams.kafka import admin, reader
from streams.kafka.record import Record, TopicPartition
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings


class History(Protocol):
    """Records that will not change any more."""

    def bounds(self, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (first offset, offset after the last) per partition of these topics, given by label."""

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        """Yield every record from `starts` to below `ends`, each partition in the order of its offsets.

        Raises LogError if a part is found nowhere.
        """

    def fetch(self, places: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        """Return the records at these coordinates. Raises LogError, naming those that are gone."""


class LogHistory:
    """What the broker holds."""

    def __init__(self, settings: Settings, outage: BrokerOutage | None = None) -> None:
        """`outage`: how long to wait for an unreachable broker."""
        self._settings, self._outage = settings, outage

    def bounds(self, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (first offset, offset after the last) per partition of these topics, given by label."""
        names = list(labels)
        if self._outage is None:
            return admin.offsets(self._settings, names)
        return self._outage.ask(lambda: admin.offsets(self._settings, names), "to where topics end")

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        """Yield every record from `starts` to below `ends`. Raises LogError as `reader.read` does."""
        return reader.read(self._settings, starts, ends, outage=self._outage)

    def fetch(self, places: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        """Return the records at these coordinates. Raises LogError, naming those that are gone."""
        return reader.fetch(self._settings, places, outage=self._outage)
