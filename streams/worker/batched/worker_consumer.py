"""A member of the group of stream workers that reads with librdkafka.

    commits and their notes, bounds of the log ──► where to begin, what to restore ──► Record
    all members are of the other driver ──► wait until they have left

It is the same group as the Faust workers', with the same commits and the same notes in them (`changelogs.py`), so a
worker of one driver continues where a worker of the other was. Both cannot run at once: they distribute partitions by
different protocols, and Kafka refuses the second, which asks again until the others have left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

import confluent_kafka as ck

from streams.kafka.consumer import GroupConsumer, OnAssignment
from streams.kafka.group_names import STREAMS
from streams.kafka.reader import EARLIEST, LATEST, offsets_of
from streams.kafka.record import TopicPartition
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.observability.metrics import Meter
from streams.processes.watchdog import Watchdog
from streams.settings.model import Kafka, Settings
from streams.worker.changelogs import END, Changelogs, Extent, distrust

QUEUE_KIB = 16 * 1024
"""Read-ahead. All of it is handled before any new record, including those of a topic that the worker itself writes."""
_METADATA = b"CGMDv2:"
"""Prefix of librdkafka's description of a membership; the generation follows, as a little-endian int32."""

log = logging.getLogger("streamward.worker")


class Bounds(NamedTuple):
    """The first offset of a partition, and the one after its last record."""

    first: int
    end: int


class WatchedOutage(BrokerOutage):
    """A BrokerOutage that keeps the watchdog quiet: an unreachable broker is no reason to end the process."""

    def __init__(self, kafka: Kafka, stop: threading.Event, meter: Meter, watchdog: Watchdog) -> None:
        super().__init__(kafka, stop, meter)
        self._watchdog = watchdog
        self.reachable = True

    def answered(self) -> None:
        """Note that the broker answered."""
        self._watchdog.beat()
        self.reachable = True
        super().answered()

    def silent(self, subject: str) -> None:
        """Note that `subject` did not come. Raises as BrokerOutage."""
        self._watchdog.beat()
        self.reachable = False
        super().silent(subject)


class WorkerConsumer(GroupConsumer):
    """Reads for all stages of one worker; `changelogs` tracks the changelogs of its tables."""

    COUNTS_RECORDS = False
    TAKES_ALL_ANEW = True  # a table's rows and the commits of all its sources are of one moment
    CONFIG: Mapping[str, object] = {
        "queued.max.messages.kbytes": QUEUE_KIB,
        "fetch.queue.backoff.ms": 10,  # 1000 by default: that long it would idle whenever its queue was full
    }

    def __init__(
        self,
        settings: Settings,
        labels: Iterable[str],
        tables: Mapping[str, int],
        outage: BrokerOutage,
        on_assignment: OnAssignment,
    ) -> None:
        """`tables` has the partition count of each changelog."""
        self.changelogs = Changelogs()
        self.bounds: dict[TopicPartition, Bounds] = {}
        """Bounds of the assigned partitions and their changelogs, at the time of the assignment."""
        self.distrusted: set[TopicPartition] = set()
        """Changelog partitions that have lost rows: their sources are read again from the start."""
        self.waits = False
        """Whether the group consists of workers of the other driver."""
        self._tables = tables
        self._counts = {topic.name: topic.partitions for topic in topics(settings.topics).values()}
        super().__init__(settings, STREAMS, labels, outage, on_assignment)

    @property
    def generation(self) -> int:
        """The generation of the group of which this worker is a member."""
        described = self._consumer.consumer_group_metadata()
        if not described.startswith(_METADATA):
            raise RuntimeError(f"librdkafka describes a membership as {described[:20]!r}, expected {_METADATA!r}")
        return int.from_bytes(described[len(_METADATA) :][:4], "little", signed=True)

    def end(self, tp: TopicPartition) -> int:
        """Return the last known end of a partition, without a request; never less than at its assignment."""
        return max(self.bounds[tp].end, super().end(tp) or 0)

    def changelogs_of(self, tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the changelog partitions of the tables that these partitions feed."""
        numbers = {(self._counts[topic], number) for topic, number in tps}
        return [
            (name, number)
            for name, count in self._tables.items()
            for number in range(count)
            if (count, number) in numbers
        ]

    def _starts(self, tps: list[TopicPartition]) -> list[ck.TopicPartition]:
        """Return where to begin: at the commit, or at the first record without a commit or if rows were lost."""
        self.waits = False
        commits = {(commit.topic, commit.partition): commit for commit in self._commits_here(tps)}
        fed = self.changelogs_of(tps)
        self.bounds = self._bounds_now([*tps, *fed])
        for tp, commit in commits.items():
            wrong = self._outside(tp, "has committed", commit.offset, self.bounds[tp]) if commit.offset >= 0 else None
            if wrong is not None:
                raise wrong
        self.changelogs.accept({tp: Extent(*self.bounds[tp]) for tp in fed})
        wound_back = self._wind_back(commits, fed)
        if wound_back:  # with the note that was accepted: after a crash, the rebuild continues from here
            self._consumer.commit(offsets=[self._committing(tp, self.bounds[tp].first) for tp in wound_back])
        return [
            ck.TopicPartition(*tp, self.bounds[tp].first if tp in wound_back or commit.offset < 0 else commit.offset)
            for tp, commit in commits.items()
        ]

    def _wind_back(
        self, commits: Mapping[TopicPartition, ck.TopicPartition], fed: list[TopicPartition]
    ) -> set[TopicPartition]:
        """Return the partitions to be read again from their first record, and note which rows cannot be trusted."""
        self.distrusted, wound_back = set(), set[TopicPartition]()
        for count, number in sorted({(self._tables[topic], number) for topic, number in fed}):
            sources = [tp for tp in commits if (self._counts[tp[0]], tp[1]) == (count, number)]
            changelogs = [tp for tp in fed if (self._tables[tp[0]], tp[1]) == (count, number)]
            reasons = distrust(
                {tp[0]: Extent(*self.bounds[tp]) for tp in changelogs},
                [commits[tp].metadata or "" for tp in sources],
                committed=any(commits[tp].offset > 0 for tp in sources),
            )
            for topic, reason in reasons.items():
                origins = ", ".join(
                    f"{topic}[{number}]@{self.bounds[topic, number].first}" for topic, number in sources
                )
                log.warning(
                    "%s[%d] %s. Its rows cannot be trusted, and are rebuilt from %s", topic, number, reason, origins
                )
            if reasons:
                self.distrusted |= set(changelogs)
                wound_back |= {tp for tp in sources if commits[tp].offset > self.bounds[tp].first}
        return wound_back

    def _bounds_now(self, tps: list[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the bounds of many partitions in two requests."""
        first, end = (
            self._ask(partial(offsets_of, self._consumer, tps, spec), "to where topics end")
            for spec in (EARLIEST, LATEST)
        )
        return {tp: Bounds(first[tp], end[tp]) for tp in tps}

    def _committing(self, tp: TopicPartition, offset: int) -> ck.TopicPartition:
        note = self.changelogs.note(tp[1], self._topic_ids.of(tp[0])).rstrip(END)  # the client adds the zero byte
        return ck.TopicPartition(*tp, offset, metadata=note) if note else ck.TopicPartition(*tp, offset)

    def _waits_for_others(self) -> bool:
        if not self.waits:
            self.waits = True
            log.info("the workers of this log are of another driver; this one takes over when they have left")
            self._meter.ready("kafka")
        return True
