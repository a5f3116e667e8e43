"""The versions of every policy in some partitions of `adapters`, kept up to date.

adapters[partitions] ──► one reader ──► a fold per policy ──► `of`: its versions, as of the last `follow`
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.events import AdapterEvent
from schemas.serde import Poison
from streams.adapters.versions import AdapterState, empty, fold
from streams.kafka import admin
from streams.kafka.client import POLL_S
from streams.kafka.reader import PartitionReader
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings


class FollowedAdapters:
    """Folds the adapter events of many policies. Records that are no adapter events are skipped."""

    def __init__(self, settings: Settings, outage: BrokerOutage) -> None:
        """Follow no partition yet."""
        self._settings, self._outage = settings, outage
        self._topic = topics(settings.topics)["adapters"].name
        self._reader: PartitionReader | None = None
        self._states: dict[str, AdapterState] = {}

    def close(self) -> None:
        """Close the client."""
        if self._reader is not None:
            self._reader.__exit__()

    def assign(self, partitions: Iterable[int]) -> None:
        """Follow these partitions from their first record, and forget any other; then `follow`."""
        self.close()
        bounds = self._outage.ask(lambda: admin.offsets(self._settings, ["adapters"]), "to where adapters begin")
        starts = {(self._topic, partition): bounds[self._topic, partition][0] for partition in partitions}
        self._states = {}
        self._reader = PartitionReader(self._settings, starts, outage=self._outage) if starts else None
        for _, partition in starts:
            self.follow(partition)

    def follow(self, partition: int) -> None:
        """Take in every event that `partition` has by now. Raises LogError if the broker does not answer."""
        tp, reader = (self._topic, partition), self._reader
        if reader is None:
            raise ValueError(f"partition {partition} is not assigned")
        end = reader.bounds(tp)[1]
        while (position := reader.position)[tp] < end:
            self._outage.read_on(self._topic)
            for record in reader.poll(timeout_s=POLL_S):
                event = record.decode(AdapterEvent)
                if not isinstance(event, Poison):
                    self._states[event.policy] = fold(self.of(event.policy), event)
            if reader.position == position:
                self._outage.silent("with adapter events")
            else:
                self._outage.answered()

    def of(self, policy: str) -> AdapterState:
        """Return what is known of a policy."""
        return self._states.get(policy) or empty(policy)
