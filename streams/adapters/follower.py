"""Follow `adapters`: the versions of every policy, up to the newest record read.

    adapters [some partitions] ──► AdapterFollower ──► router(policy): its versions, and which of them answer here
    other topics, same client ──┘        └──► their records, from `poll` and `catch_up`

Every live process that must know the versions of policies has one of these: agents, servers, trainers. Records that are
not adapter events are skipped, as are events outside the partition of their policy, which no other process reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from schemas.events import AdapterEvent, Coordinates
from schemas.serde import Poison
from streams.adapters.router import VersionRouter
from streams.adapters.serving import Serving
from streams.adapters.versions import AdapterState
from streams.kafka.admin import offsets
from streams.kafka.client import POLL_S
from streams.kafka.reader import PartitionReader
from streams.kafka.record import Record, TopicPartition
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.observability import trace_context
from streams.settings.model import Settings

log = logging.getLogger("streamward.adapters")


class AdapterFollower:
    """The versions of many policies. One thread reads; any other may use the result."""

    def __init__(self, settings: Settings, outage: BrokerOutage, serves: Callable[[str], bool]) -> None:
        """Follow no partition yet. `serves` tells which policies matter here."""
        self._settings, self._outage, self._serves = settings, outage, serves
        self._topic = topics(settings.topics)["adapters"].name
        self._reader: PartitionReader | None = None
        self._routers: dict[str, VersionRouter] = {}
        self._trained: set[str] = set()
        self._has_caught_up = False

    def close(self) -> None:
        """Close the client."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def assign(
        self, partitions: Iterable[int], other_starts: Mapping[TopicPartition, int] | None = None
    ) -> list[Record]:
        """Follow these partitions from their first record, and other topics from `other_starts`, instead of any before.

        Returns once every event in the log by now is taken in, with records of the other topics that came meanwhile.
        Raises NotFoundError if a topic does not exist, LogError, StoppedReading once the process should stop.
        """
        self.close()
        self._routers, self._trained, self._has_caught_up = {}, set(), False
        bounds = self._outage.ask(lambda: offsets(self._settings, ["adapters"]), "to where adapters begin")
        starts = {tp: bounds[tp][0] for tp in ((self._topic, partition) for partition in partitions)}
        if not starts:
            return []
        self._reader = PartitionReader(self._settings, {**starts, **(other_starts or {})}, outage=self._outage)
        other_records = self._read_to({tp: bounds[tp][1] for tp in starts})
        self._has_caught_up = True
        return other_records

    def poll(self, timeout_s: float = 0.0) -> list[Record]:
        """Take in new events, waiting at most `timeout_s`; return the records of other topics."""
        records = self._open_reader.poll(timeout_s=timeout_s)
        self._take([record for record in records if record.at.topic == self._topic])
        return [record for record in records if record.at.topic != self._topic]

    def catch_up(self, partition: int | None = None) -> list[Record]:
        """Take in every event that the log has by now, of one partition or of all; return the other records that came.

        Raises LogError if the broker does not answer.
        """
        followed = [tp for tp in self._open_reader.position if tp[0] == self._topic and partition in (None, tp[1])]
        # with its own client: on the reader's connection the answer waits for the fetch before it, half a second
        bounds = self._outage.ask(lambda: offsets(self._settings, ["adapters"]), "to where adapters end")
        return self._read_to({tp: bounds[tp][1] for tp in followed})

    @property
    def policies(self) -> set[str]:
        """The policies that have any event."""
        return set(self._trained)

    def router(self, policy: str) -> VersionRouter:
        """Return the versions of a policy, and which of them answer here."""
        return self._routers.setdefault(policy, VersionRouter(policy))

    def of(self, policy: str) -> AdapterState:
        """Return the versions of a policy."""
        return self.router(policy).adapters

    @property
    def _open_reader(self) -> PartitionReader:
        if self._reader is None:
            raise ValueError("no partition of adapters is assigned")
        return self._reader

    def _read_to(self, ends: Mapping[TopicPartition, int]) -> list[Record]:
        reader, other_records = self._open_reader, list[Record]()
        while any(reader.position[tp] < end for tp, end in ends.items()):
            self._outage.read_on(self._topic)
            before = reader.position
            other_records += self.poll(POLL_S)
            if reader.position == before:
                self._outage.silent("with adapter events")
            else:
                self._outage.answered()
        return other_records

    def _take(self, records: Iterable[Record]) -> None:
        """Take in records, policy by policy, so that the tables of each are copied once."""
        events: dict[str, list[tuple[AdapterEvent, Coordinates]]] = {}
        for record in records:
            event = record.decode_placed(AdapterEvent, self._settings.topics.policy_partitions)
            if isinstance(event, Poison):
                log.warning("skipped: %s", event.error, extra=record.log_extra)
            elif self._serves(event.policy):
                events.setdefault(event.policy, []).append((event, record.at))
                context = trace_context.of_headers(record.headers)
                if event.kind == "trained" and context is not None:
                    self.router(event.policy).announced_in.setdefault(event.version, context)
        for policy, of_policy in events.items():
            self._trained.add(policy)
            router = self.router(policy)
            before = router.serving
            router.take_all(of_policy)
            if self._has_caught_up:
                _log_change(policy, before, router.serving)


def _log_change(policy: str, before: Serving, after: Serving) -> None:
    """Log every change of the answering versions."""
    if after.primary != before.primary:
        log.info("%s: version %d is primary now, version %d was", policy, after.primary, before.primary)
    if (after.candidate, after.share) != (before.candidate, before.share):
        candidate = "no version" if after.candidate is None else f"version {after.candidate}"
        log.info("%s: %s is the candidate now, for %g of the tasks", policy, candidate, after.share)
