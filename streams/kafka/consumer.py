"""Follow topics as a member of a consumer group, and commit what is done.

    group's commit ──► Consumer ──► Record ──► Contiguous: which of them are done ──► commit
                          └── none: the first record there is; cut by retention, or beyond the end: LogError

No offset is ever reset in silence: whoever loses records to retention is told how many, and decides. A commit of a
partition that was lost (a session that ran out, a process that was frozen) says nothing: somebody else owns it and
reads from the last commit, so what was done is done twice, and ids tell.

Not covered: exactly once. Between what was written and its commit a process can die.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Self, TypeVar

import confluent_kafka as ck

from streams.errors import LogError
from streams.kafka.client import POLL_S, client_config, unreachable
from streams.kafka.lag import LagMeter
from streams.kafka.reader import Reader, consume, is_unknown_topic, record_of, trouble_of
from streams.kafka.record import Record, TopicPartition
from streams.kafka.retry import ANSWER_S, TRANSIENT, BrokerOutage
from streams.kafka.topics import topics
from streams.observability import catalog
from streams.observability.metrics import OFF, Meter
from streams.settings.model import Settings

T = TypeVar("T")

METADATA_S = 5
"""How often a member asks which topics there are. A broker that was just started may know of none for a moment, and who
asked in that moment joins no group until it asks again: five minutes later, if librdkafka had its way."""
MISSING_S = 3 * METADATA_S
"""How long a topic may be unknown to the broker before it counts as missing."""


class GroupConsumer(Reader):
    """Follows topics as a member of a consumer group, and commits only what `commit` is told.

    `on_assigned` and `on_revoked` are called from `poll` with the partitions gained and lost; a consumer that keeps
    state per partition drops it there. A first start begins at the first record there is. A commit that lies below it,
    or beyond the end of the log, is a LogError from `poll`.

    With `patience` every call waits while the broker is away. Without, it fails within kafka.request_timeout_s. What is
    read is counted by `meter`, as of `stage`, and its condition `kafka` holds once partitions were assigned.
    """

    def __init__(
        self,
        settings: Settings,
        group: str,
        labels: Iterable[str],
        *,
        on_assigned: Callable[[list[TopicPartition]], None] | None = None,
        on_revoked: Callable[[list[TopicPartition]], None] | None = None,
        patience: BrokerOutage | None = None,
        meter: Meter = OFF,
        stage: str = "",
    ) -> None:
        self._settings = settings
        self._group = group
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._meter, self._stage = meter, stage
        self._next: dict[TopicPartition, int] = {}
        """Of each partition owned, the next offset that is not done."""
        self._intake = LagMeter(meter, stage, settings.topics, self._stands)
        self._missing: tuple[float, str, LogError] | None = None  # since when, which topic, and what that would mean
        self._stopped: set[TopicPartition] = set()  # librdkafka reads them no more: the broker did not know them
        self._topics = [topics(settings.topics)[label].name for label in labels]
        super().__init__(
            {
                **client_config(settings.kafka),
                "group.id": settings.topics.prefix + group,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": False,
                "topic.metadata.refresh.interval.ms": METADATA_S * 1000,
                "session.timeout.ms": int(settings.kafka.session_timeout_s * 1000),
                "heartbeat.interval.ms": int(settings.kafka.session_timeout_s * 250),
                "max.poll.interval.ms": int(1000 * max(600, settings.kafka.outage_s + 60)),
                "fetch.max.bytes": 32 * 1024 * 1024,
                "partition.assignment.strategy": "range",  # the same numbers of co-partitioned topics go together
            },
            self._topics[0],
            patience,
        )
        self._subscribe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, count: int = 500, timeout_s: float = POLL_S) -> list[Record]:
        """Return up to `count` records, in partition order, as soon as there is one; none when none came in time.

        Raises LogError if the broker refuses (a topic that stays missing, an authorisation), if retention has cut what
        comes next, and if the broker was away longer than the patience lasts.
        """
        self._raise_trouble()
        self._meter.heartbeat()
        records = []
        for message in consume(self._consumer, count, timeout_s):
            if (error := trouble_of(message)) is None:
                records += [] if message.error() else [record_of(message)]
            elif is_unknown_topic(message.error()):
                self._missing = self._missing or (time.monotonic(), message.topic(), error)
                if message.error().code() == ck.KafkaError._AUTO_OFFSET_RESET:
                    self._stopped.add((message.topic(), message.partition()))
            elif message.error().code() == ck.KafkaError._AUTO_OFFSET_RESET:
                self._trouble = self._lost(message.topic(), message.partition()) or error
            else:
                self._trouble = error
        self._look_for_missing()
        for record in records:
            self._intake.took((record.at.topic, record.at.partition), record.at.offset, record.timestamp_ms)
        self._intake.look()
        return self._told(records)

    def _look_for_missing(self) -> None:
        """Take a topic that was unknown for long enough for missing, or read on if the broker knows it by now."""
        if self._missing is None or time.monotonic() < self._missing[0] + MISSING_S:
            return
        (_, topic, error), self._missing = self._missing, None
        try:
            found = self._consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
        except ck.KafkaException:
            if self._stopped:
                self._missing = (time.monotonic(), topic, error)
            return  # nobody answers: whoever does says it again
        if found.error is not None:
            self._trouble = error
        elif self._stopped:
            self._stopped.clear()
            self._consumer.unsubscribe()
            self._subscribe()  # librdkafka begins with a partition when it is assigned, and seeks in none it has left

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Record that everything below `next_offsets` is done. A lost partition is not committed, and says nothing.

        Raises LogError if the broker refuses, or was away longer than the patience lasts.
        """
        if not next_offsets:
            return
        offsets = [ck.TopicPartition(topic, partition, offset) for (topic, partition), offset in next_offsets.items()]

        def commit() -> list[ck.KafkaError | None]:
            errors = [done.error for done in self._consumer.commit(offsets=offsets, asynchronous=False)]
            if passing := [error for error in errors if error is not None and error.code() in TRANSIENT]:
                raise ck.KafkaException(passing[0])
            return errors

        try:
            errors = commit() if self._patience is None else self._patience.ask(commit, "to a commit")
        except ck.KafkaException as exc:
            errors = [exc.args[0]]
        for error in errors:
            # of a lost partition somebody else is the owner now, and reads from the last commit: at least once
            if error is not None and error.code() not in _LOST_MEMBERSHIP:
                raise LogError(
                    f"committing {dict(next_offsets)} failed: {error.str()}. Nothing is lost: it comes again"
                )
        for tp, offset in next_offsets.items():
            if tp in self._next:
                self._next[tp] = offset
                self._intake.done(tp, offset)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions this member owns now."""
        return [(tp.topic, tp.partition) for tp in self._consumer.assignment()]

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offset to read per partition; 0 where nothing was committed.

        Raises LogError if the broker does not answer.
        """
        try:
            return {(tp.topic, tp.partition): max(tp.offset, 0) for tp in self._commits(partitions)}
        except ck.KafkaException as exc:
            raise unreachable(self._settings.kafka, exc.args[0].str()) from exc

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions for now."""
        self._consumer.pause([ck.TopicPartition(*tp) for tp in partitions])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions again."""
        self._consumer.resume([ck.TopicPartition(*tp) for tp in partitions])

    def close(self) -> None:
        """Leave the group, without a commit."""
        if self._patience is None:
            self._consumer.close()
        else:
            self._patience.close(self._consumer.close)

    # --- where to begin -----------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        self._consumer.subscribe(self._topics, on_assign=self._begin, on_revoke=self._end, on_lost=self._end)

    def _begin(self, _: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        """Go to the commit, or where there is none to the first record; read nothing if that cannot be right."""
        tps = [(tp.topic, tp.partition) for tp in partitions]
        try:
            starts = [self._start(tp) for tp in self._commits(tps)]
        except ck.KafkaException as exc:
            self._trouble = unreachable(self._settings.kafka, exc.args[0].str())
        except LogError as exc:
            self._trouble = exc
        else:
            self._consumer.assign(starts)
            self._next |= {(tp.topic, tp.partition): max(tp.offset, 0) for tp in starts}
            self._meter.add(catalog.REBALANCES, self._stage)
            self._meter.ready("kafka")
            if self._on_assigned is not None:
                self._on_assigned(tps)
            return
        self._consumer.assign([])

    def _end(self, _: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        tps = [(tp.topic, tp.partition) for tp in partitions]
        for tp in tps:
            self._next.pop(tp, None)
        self._stopped.difference_update(tps)
        self._intake.revoked(tps)
        if self._on_revoked is not None:
            self._on_revoked(tps)

    def _stands(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the next offset and the end of each partition, as far as known. Asks no broker."""
        found = {}
        for tp, offset in self._next.items():
            bounds = self._consumer.get_watermark_offsets(ck.TopicPartition(*tp), cached=True)
            if bounds is not None and bounds[1] >= 0:
                found[tp] = (max(offset, bounds[0]), bounds[1])
        return found

    def _start(self, committed: ck.TopicPartition) -> ck.TopicPartition:
        tp, offset = (committed.topic, committed.partition), committed.offset
        if offset < 0:
            return ck.TopicPartition(*tp, ck.OFFSET_BEGINNING)
        if (wrong := self._wrong(tp, "has committed", offset)) is not None:
            raise wrong
        return ck.TopicPartition(*tp, offset)

    def _lost(self, topic: str, partition: int) -> LogError | None:
        """Return what is wrong with the place that was read from, which the log says it does not have."""
        at = ck.TopicPartition(topic, partition)
        try:
            stands = [tp.offset for tp in (*self._consumer.position([at]), *self._commits([(topic, partition)]))]
            return self._wrong((topic, partition), "stands at", max(stands))
        except ck.KafkaException:
            return None

    def _wrong(self, tp: TopicPartition, says: str, offset: int) -> LogError | None:
        """Return the error if the partition has nothing at `offset`, and it is not its end."""
        first, end = self._asked(lambda timeout_s: _bounds(self._consumer, tp, timeout_s), "to where a topic ends")
        if offset < first:
            return LogError(
                f"{tp[0]}[{tp[1]}]: group {self._settings.topics.prefix}{self._group} {says} {offset}, but the first "
                f"record there is has offset {first}: retention has cut {first - offset} that this group did not read. "
                f"Restore them, or accept the loss with `streamward offsets skip --group {self._group}`"
            )
        if offset > end:
            return LogError(
                f"{tp[0]}[{tp[1]}]: group {self._settings.topics.prefix}{self._group} {says} {offset}, but the "
                f"partition ends at {end}. The topic was made anew or lost records; reset the group's offsets to the "
                "earliest"
            )
        return None

    def _commits(self, partitions: Iterable[TopicPartition]) -> list[ck.TopicPartition]:
        wanted = [ck.TopicPartition(*tp) for tp in partitions]
        return self._asked(lambda timeout_s: self._consumer.committed(wanted, timeout=timeout_s), "for commits")

    def _asked(self, call: Callable[[float], T], wanted: str) -> T:
        """Return what `call` returns, given how long it may take, seconds."""
        if self._patience is None:
            return call(self._settings.kafka.request_timeout_s)
        return self._patience.ask(lambda: call(ANSWER_S), wanted, here=True)


_LOST_MEMBERSHIP = {
    ck.KafkaError.ILLEGAL_GENERATION,
    ck.KafkaError.UNKNOWN_MEMBER_ID,
    ck.KafkaError.REBALANCE_IN_PROGRESS,
    ck.KafkaError._ASSIGNMENT_LOST,
}


def _bounds(consumer: ck.Consumer, tp: TopicPartition, timeout_s: float) -> tuple[int, int]:
    try:
        first, end = consumer.get_watermark_offsets(ck.TopicPartition(*tp), timeout=timeout_s)
    except ck.KafkaException as exc:
        if exc.args[0].code() == ck.KafkaError._UNKNOWN_PARTITION:  # of each one, while the broker is away
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TRANSPORT)) from exc
        raise
    return first, end


class OffsetTracker:
    """Which records of one partition are done. Only what is contiguous may be committed."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()  # read, in order; done ones leave from the left
        self._done: set[int] = set()
        self._next: int | None = None

    def read(self, offset: int) -> None:
        """Take in an offset that was read; they come in order, holes in the log included."""
        self._open.append(offset)

    def done(self, offset: int) -> None:
        """Say that nothing needs to happen any more for the record at `offset`."""
        self._done.add(offset)
        while self._open and self._open[0] in self._done:
            self._next = self._open.popleft() + 1
            self._done.discard(self._next - 1)

    @property
    def next_offset(self) -> int | None:
        """The first offset that is not done, as far as known; None if none is done."""
        return self._next

    @property
    def left(self) -> int:
        """Records that were read and are not done."""
        return len(self._open) - len(self._done)
