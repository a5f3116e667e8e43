"""Read the log from given offsets.

    starts, ends ────► PartitionReader, read  no group and no commit, to a bound or for ever ────────► Record
    coordinates ─────► fetch                  these records, or an error that names the missing ones ─► Record

Records of one partition come in the order of their offsets, only committed ones. A partition ends at its last stable
offset, where the first open transaction begins. Offsets have holes (markers, aborted and deleted records): progress is
the client's position, not the last record.

Faults that librdkafka repairs itself (a lost connection) show only as silence, which a BrokerOutage reports. Others (a
missing topic, an offset that retention has cut, a refusal) are a LogError, raised after the records before it were
returned. No offset is ever reset.

Groups and commits are in streams/kafka/consumer.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Self, TypeVar

import confluent_kafka as ck

from schemas.conventions import EARLIEST_MS
from schemas.events import Coordinates
from streams.errors import LogError, StreamwardError
from streams.kafka import client
from streams.kafka.client import POLL_S, unreachable
from streams.kafka.headers import headers_of
from streams.kafka.record import Record, TopicPartition, latest_ms, made_of, warn_of_time
from streams.kafka.retry import ANSWER_S, TRANSIENT, BrokerOutage
from streams.kafka.topic_ids import TopicIds
from streams.kafka.topics import FRAMING_BYTES, topics
from streams.settings.model import Settings

T = TypeVar("T")

QUEUE_KIB = 16 * 1024
"""Read-ahead of one reader. With librdkafka's default, 64 MiB, a few readers would hold a small log in memory."""

RECEIVE_BYTES = 100_000_000
"""librdkafka's default limit for an answer of the broker; it is raised where the topics take larger records."""

BOUNDED_MS = 50
"""How long the broker keeps an empty fetch of a reader with bounds: transaction markers after the last record show only
in the next answer. A new assignment waits as long, too."""

FOLLOWING_MS = 500
"""The same for a reader that follows. It still gets records at once; ten readers that ask every 50 ms, as in
`streamward serve`, take a tenth of a core of an idle broker."""

FAR = 1000
"""Gap between two fetched records up to which reading through is as fast as a seek."""

LOOK_EVERY_S = 1.0
"""Time between two looks for open transactions."""

STALL_S = 10.0
"""After nothing has come for this long, the broker is asked whether something should have."""

SILENCE_S = 60.0
"""Without an outage to wait for, a broker that sends nothing for this long counts as unreachable."""

log = logging.getLogger("streamward.kafka")


class StableEnd(NamedTuple):
    """The end of a partition at a given high watermark."""

    high_watermark: int
    offset: int


def open_transaction(tp: TopicPartition, offset: int) -> str:
    """Return the message about a transaction that keeps readers waiting at this offset."""
    return (
        f"{tp[0]}[{tp[1]}]@{offset}: a transaction is open from here on, and no record after it can be read before its "
        "producer commits or aborts it; `streamward doctor` names the producer"
    )


class Reader:
    """A client that raises an error only after the records before it, and reports silence to its `outage`."""

    def __init__(self, settings: Settings, config: Mapping[str, Any], topic: str, outage: BrokerOutage | None) -> None:
        largest = max(topic.max_bytes for topic in topics(settings.topics).values()) + FRAMING_BYTES
        self._settings, self._config = (
            settings,
            {
                # what one fetch may return: a record that is larger than fetch.max.bytes comes alone (KIP-74)
                "receive.message.max.bytes": max(RECEIVE_BYTES, largest + FRAMING_BYTES),
                **config,
            },
        )
        self._open_client()
        self._topic = topic  # what to ask a silent broker about
        self._outage = outage
        self._trouble: StreamwardError | None = None
        self._stable_ends: dict[TopicPartition, StableEnd] = {}
        self._positions_before: dict[TopicPartition, int] = {}
        self._next_look = 0.0
        self._topic_ids: TopicIds | None = None

    def end(self, tp: TopicPartition) -> int | None:
        """Return the last known end of a partition, without a request; None if unknown."""
        high = self._high_watermark(tp)
        stable = self._stable_ends.get(tp)
        return stable.offset if stable is not None and stable.high_watermark == high else high

    def _high_watermark(self, tp: TopicPartition) -> int | None:
        bounds = self._consumer.get_watermark_offsets(ck.TopicPartition(*tp), cached=True)
        return bounds[1] if bounds is not None and bounds[1] >= 0 else None

    def _look_for_open_transactions(self) -> None:
        """Ask, once a second, for the ends of partitions that seem to have records and return none. The client keeps
        only the high watermark of a fetch, which includes records after an open transaction.
        """
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        positions = {(tp.topic, tp.partition): tp.offset for tp in self._consumer.position(self._consumer.assignment())}
        before, self._positions_before = self._positions_before, positions
        silent = {
            tp: high
            for tp, position in positions.items()
            if position == before.get(tp) and (high := self.end(tp)) is not None and high > max(position, 0)
        }
        if not silent:
            return
        try:
            ends = offsets_of(self._consumer, silent, LATEST, ANSWER_S)
        except ck.KafkaException:
            return  # an outage, which is reported elsewhere
        for tp, high in silent.items():
            self._stable_ends[tp] = StableEnd(high, ends[tp])
            if ends[tp] < high and ends[tp] <= max(positions[tp], 0):
                log.warning("%s", open_transaction(tp, ends[tp]))

    def _raise_trouble(self) -> None:
        """Raise the error that came with an earlier batch, whose records were returned."""
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    def _checked(self, records: list[Record]) -> list[Record]:
        """Return `records`. If there are none, raise a pending error, or check that the broker answers."""
        if records:
            self._brokers.works()
        else:
            self._raise_trouble()
            self._look_for_brokers()
        if self._outage is not None:
            if records:
                self._outage.answered()
            else:
                self._outage.probe(lambda: self._consumer.list_topics(self._topic, timeout=ANSWER_S))
        return records

    def _open_client(self) -> None:
        """Read with a new client from now on, and notice if that one loses its brokers."""
        self._consumer = client.consumer(self._settings.kafka, self._config)
        self._brokers = client.LostBrokers(self._settings.kafka, self._consumer)

    def _look_for_brokers(self) -> None:
        """Raise LogError if the client has lost its brokers."""
        self._brokers.check()

    def _records(self, messages: Sequence[Any]) -> list[Record]:
        """Return the records in messages that are not errors."""
        columns = (map(part, messages) for part in (ck.Message.topic, ck.Message.partition, ck.Message.offset))
        places = map(made_of(Coordinates), zip(*columns, strict=True))
        times = [message.timestamp()[1] for message in messages]
        keys, payloads = map(ck.Message.key, messages), map(ck.Message.value, messages)
        records = list(map(made_of(Record), zip(places, times, keys, payloads, map(headers_of, messages), strict=True)))
        if times and (min(times) < EARLIEST_MS or max(times) > latest_ms()):
            for record in records:
                warn_of_time(record.at, record.timestamp_ms)
        return records


class PartitionReader(Reader):
    """Reads partitions from given offsets with `assign`: no group, no commit, bounded or following.

    `position` is the next offset per partition; `at_end` is true once every bound is reached.
    """

    def __init__(
        self,
        settings: Settings,
        starts: Mapping[TopicPartition, int],
        *,
        ends: Mapping[TopicPartition, int] | None = None,
        outage: BrokerOutage | None = None,
        fetch_wait_ms: int | None = None,
    ) -> None:
        """`fetch_wait_ms`: how long the broker keeps a fetch that finds nothing; else BOUNDED_MS or FOLLOWING_MS."""
        if fetch_wait_ms is None:
            fetch_wait_ms = FOLLOWING_MS if starts and ends is None else BOUNDED_MS
        super().__init__(
            settings,
            {
                "group.id": settings.topics.prefix + "tail",  # required by librdkafka; never joined, never committed
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": fetch_wait_ms,
                "queued.max.messages.kbytes": QUEUE_KIB,
                "fetch.queue.backoff.ms": 20,  # 1000 by default: that long it would idle whenever this queue was full
            },
            next(iter(starts), ("", 0))[0],
            outage,
        )
        self._heard_at = time.monotonic()
        self._missing: Coordinates | None = None  # the broker has it, and it did not come
        self.assign(starts, ends)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def assign(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int] | None = None) -> None:
        """Read from `starts`, to below `ends` if given, instead of what was read until now."""
        self._ends = None if ends is None else dict(ends)
        self._position = dict(starts)
        names = {topic for topic, _ in starts} if ends is None else set()
        if names and (self._topic_ids is None or self._topic_ids.names != sorted(names)):
            self._topic_ids = TopicIds(self._settings.kafka, names)
        reading = [tp for tp in starts if self._ends is None or starts[tp] < self._ends[tp]]
        partitions = [ck.TopicPartition(*tp, starts[tp]) for tp in reading]
        self._consumer.assign(partitions)
        self._consumer.resume(partitions)  # librdkafka leaves one paused that was paused at its bound

    @property
    def position(self) -> dict[TopicPartition, int]:
        """The next offset to be read, per partition."""
        return dict(self._position)

    def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """Return the first offset of a partition and its end, as the broker has them now. Raises LogError."""
        return self._asked(lambda limit_s: bounds_of(self._consumer, tp, limit_s))

    def first_at(self, tp: TopicPartition, timestamp_ms: int) -> int:
        """Return the first offset whose record has this timestamp or a later one; the end if none has.

        Raises LogError.
        """

        def ask(limit_s: float) -> int:
            (answer,) = self._consumer.offsets_for_times([ck.TopicPartition(*tp, timestamp_ms)], timeout=limit_s)
            if answer.offset == ck.OFFSET_INVALID:
                raise no_answer()
            return int(answer.offset)

        offset = self._asked(ask)
        return offset if offset >= 0 else self.bounds(tp)[1]

    def _asked(self, call: Callable[[float], T]) -> T:
        """Return what the broker answers to `call`, which takes a time limit in seconds. Raises LogError."""
        if self._outage is not None:
            return self._outage.ask(lambda: call(ANSWER_S), "to where a topic ends")
        try:
            return call(self._settings.kafka.request_timeout_s)
        except ck.KafkaException as exc:
            raise unreachable(self._settings.kafka, exc.args[0].str()) from exc

    def at_end(self) -> bool:
        """Whether every bound is reached; False when there are none."""
        return self._ends is not None and all(self._position[tp] >= end for tp, end in self._ends.items())

    def poll(self, count: int = 1000, timeout_s: float = POLL_S) -> list[Record]:
        """Return up to `count` records below the bounds. Raises LogError if an offset is gone or the broker refuses."""
        return self._checked(self._records(self._messages(count, timeout_s)))

    def _messages(self, count: int, timeout_s: float) -> list[Any]:
        """Return up to `count` messages below the bounds. Raises as `poll`."""
        self._raise_trouble()
        self._look_for_open_transactions()
        if self._topic_ids is not None:
            self._topic_ids.look()
        messages = consume(self._consumer, count, timeout_s)
        if messages:
            self._heard_at, self._missing = time.monotonic(), None
        elif time.monotonic() > self._heard_at + STALL_S:
            self._restart_if_stalled()
        if any(map(ck.Message.error, messages)):
            for message in messages:
                if message.error() is not None:
                    self._note(message)
            messages = [message for message in messages if message.error() is None]
        places = list(zip(map(ck.Message.topic, messages), map(ck.Message.partition, messages), strict=True))
        # the last message of a partition tells how far it was read, and whether any is beyond its bound
        last = dict(zip(places, messages, strict=True))
        beyond = {tp: self._position[tp] for tp, message in last.items() if self._is_beyond(tp, message.offset() + 1)}
        if not beyond:
            return messages
        return [m for tp, m in zip(places, messages, strict=True) if tp not in beyond or m.offset() < beyond[tp]]

    def _is_beyond(self, tp: TopicPartition, position: int) -> bool:
        """Note a position, and return whether it is beyond the bound; if so, stop fetching the partition."""
        end = position if self._ends is None else self._ends[tp]
        # never backwards: an error message in the same batch may have told that the partition ends later, behind a gap
        self._position[tp] = max(self._position[tp], min(position, end))
        if position <= end:
            return False
        self._consumer.pause([ck.TopicPartition(*tp)])
        return True

    def _restart_if_stalled(self) -> None:
        """Read on with a new client if the broker has had a record for STALL_S that this one does not fetch.

        After its broker has restarted, librdkafka's consumer now and then fetches nothing more of a partition, though
        it is answered everything else (librdkafka issue 5153, seen with 2.16).
        """
        self._heard_at, missing_before = time.monotonic(), self._missing
        try:
            unread = (Coordinates(*tp, self._position[tp]) for tp in self._unfinished() if self._is_behind(tp))
            self._missing = next(unread, None)
        except ck.KafkaException:
            return  # an outage: librdkafka reconnects by itself
        if self._missing is not None and self._missing == missing_before:
            self._replace_client(f"{self._missing} did not come in {STALL_S:g} s")

    def _look_for_brokers(self) -> None:
        """Read on with a new client if this one has lost its brokers."""
        if (reason := self._brokers.reason()) is not None:
            self._replace_client(reason)

    def _replace_client(self, reason: str) -> None:
        log.warning("%s: reading on with a new client", reason)
        before = self._consumer
        self._open_client()
        self.assign(self._position, self._ends)
        before.close()

    def _unfinished(self) -> list[TopicPartition]:
        return [tp for tp, offset in self._position.items() if self._ends is None or offset < self._ends[tp]]

    def _is_behind(self, tp: TopicPartition) -> bool:
        return bounds_of(self._consumer, tp, ANSWER_S)[1] > self._position[tp]

    def batches(self, outage: BrokerOutage | None) -> Iterator[list[Record]]:
        """Yield every record up to the bounds, as `poll` returns them. Raises as `read`."""
        silent_since = time.monotonic()
        while not self.at_end():
            if outage is not None:
                outage.read_on(self._topic)
            records = self.poll()
            yield records
            if records:
                silent_since = time.monotonic()
            if outage is not None:
                if records:
                    outage.answered()
                else:
                    outage.silent("with what a topic holds")
            elif time.monotonic() - silent_since > SILENCE_S:
                cause = f"nothing came for {SILENCE_S:g} s at {self.position}, expected up to {self._ends}"
                raise unreachable(self._settings.kafka, cause)

    def _note(self, message: Any) -> None:
        """Handle a message that is not a record."""
        if (trouble := trouble_of(message)) is not None:
            recreated = None if self._topic_ids is None else self._topic_ids.recreation(message.topic())
            self._trouble = recreated or trouble
        elif message.error().code() == ck.KafkaError._PARTITION_EOF:
            # the log ends here: between the last record and the end are only transaction markers
            tp = (message.topic(), message.partition())
            self._position[tp] = max(self._position[tp], message.offset())


def read(
    settings: Settings,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    outage: BrokerOutage | None = None,
) -> Iterator[Record]:
    """Yield every record from `starts` to below `ends`, in partition order, and never commit.

    Raises LogError if a range is gone, and if nothing comes for a minute (with `outage`: for kafka.outage_s); with
    `outage` StoppedReading once the process should stop.
    """
    with PartitionReader(settings, starts, ends=ends) as reader:
        for records in reader.batches(outage):
            yield from records


def fetch(
    settings: Settings,
    places: Iterable[Coordinates],
    *,
    outage: BrokerOutage | None = None,
    connected: PartitionReader | None = None,
) -> dict[Coordinates, Record]:
    """Return the records at these coordinates. Raises LogError, naming those that are gone; otherwise as `read`.

    Fetch often through a reader that is `connected`: connecting takes longer than a few records.
    """
    by_partition: dict[TopicPartition, set[int]] = {}
    for place in places:
        by_partition.setdefault((place.topic, place.partition), set()).add(place.offset)
    if not by_partition:
        return {}
    records: dict[Coordinates, Record] = {}
    ranges = {tp: _ranges(offsets) for tp, offsets in by_partition.items()}
    with PartitionReader(settings, {}) if connected is None else nullcontext(connected) as reader:
        for number in range(max(map(len, ranges.values()))):
            round_ranges = {tp: span[number] for tp, span in ranges.items() if number < len(span)}
            reader.assign(
                {tp: span.start for tp, span in round_ranges.items()},
                {tp: span.stop for tp, span in round_ranges.items()},
            )
            for record in (record for records in reader.batches(outage) for record in records):
                if record.at.offset in by_partition[record.at.topic, record.at.partition]:
                    records[record.at] = record
    requested = {Coordinates(*tp, offset) for tp, offsets in by_partition.items() for offset in offsets}
    if missing := sorted(requested - records.keys()):
        raise LogError(
            f"{', '.join(map(str, missing[:5]))}{' and more' if missing[5:] else ''}: no such record. The topic is "
            "compacted or written in transactions; Streamward's are neither, so compare them with `streamward doctor`"
        )
    return records


def locate(
    settings: Settings, tp: TopicPartition, since_ms: int, pairs: set[tuple[bytes | None, bytes | None]]
) -> dict[tuple[bytes | None, bytes | None], Coordinates]:
    """Return where the records with these keys and payloads are, as far as they are there, from this time on.

    Raises as `read`. It is for a partition whose leader has just answered, so it waits for no outage.
    """
    places: dict[tuple[bytes | None, bytes | None], Coordinates] = {}
    with PartitionReader(settings, {}) as reader:
        start, (_, end) = reader.first_at(tp, since_ms), reader.bounds(tp)
        reader.assign({tp: start}, {tp: end})
        for record in (record for records in reader.batches(None) for record in records):
            if (record.key, record.payload) in pairs:
                places.setdefault((record.key, record.payload), record.at)
    return places


def _ranges(offsets: Iterable[int]) -> list[range]:
    """Return ranges that hold all these offsets, and never more than FAR others in a row."""
    ranges: list[range] = []
    for offset in sorted(offsets):
        if ranges and offset - ranges[-1].stop <= FAR:
            ranges[-1] = range(ranges[-1].start, offset + 1)
        else:
            ranges.append(range(offset, offset + 1))
    return ranges


def bounds_of(consumer: ck.Consumer, tp: TopicPartition, timeout_s: float) -> tuple[int, int]:
    """Return the first offset of a partition and its end. Raises KafkaException, a transient one in an outage."""
    try:
        first, end = consumer.get_watermark_offsets(ck.TopicPartition(*tp), timeout=timeout_s)
    except ck.KafkaException as exc:
        raise _passing(exc, ck.KafkaError._UNKNOWN_PARTITION) from exc
    return first, end


EARLIEST, LATEST = -2, -1
"""Special timestamps in requests for offsets (KIP-79): the first offset, and the one after the last."""


def offsets_of(
    consumer: ck.Consumer, tps: Iterable[TopicPartition], spec: int, timeout_s: float
) -> dict[TopicPartition, int]:
    """Return an offset of each of many partitions, EARLIEST or LATEST, in one request. Raises as `bounds_of`."""
    try:
        answers = consumer.offsets_for_times([ck.TopicPartition(*tp, spec) for tp in tps], timeout=timeout_s)
        if (failed := next((answer.error for answer in answers if answer.error is not None), None)) is not None:
            raise ck.KafkaException(failed)
        if any(answer.offset == ck.OFFSET_INVALID for answer in answers):
            raise no_answer()
    except ck.KafkaException as exc:
        raise _passing(exc, ck.KafkaError._UNKNOWN_PARTITION, ck.KafkaError.UNKNOWN_TOPIC_OR_PART) from exc
    return {(answer.topic, answer.partition): max(answer.offset, 0) for answer in answers}


def no_answer() -> ck.KafkaException:
    """Return the error of a partition that no broker answered for: librdkafka gives OFFSET_INVALID for it."""
    return ck.KafkaException(ck.KafkaError(ck.KafkaError.OFFSET_NOT_AVAILABLE))


def _passing(exc: ck.KafkaException, *unknown: int) -> ck.KafkaException:
    """Return the error, or a transient one in place of these: so are all partitions while no broker is reached."""
    if exc.args[0].code() not in unknown:
        return exc
    return ck.KafkaException(ck.KafkaError(ck.KafkaError._TRANSPORT))


# --- messages of librdkafka -------------------------------------------------------------------------------------------


def consume(consumer: ck.Consumer, count: int, timeout_s: float) -> list[Any]:
    """Return up to `count` messages as soon as there is one; `consume` alone would wait for all of them."""
    first = consumer.poll(timeout_s)
    if first is None:
        return []
    return [first, *(consumer.consume(count - 1, 0) if count > 1 else ())]


_MENDS = (ck.KafkaError._PARTITION_EOF, ck.KafkaError._MAX_POLL_EXCEEDED)


def trouble_of(message: Any) -> LogError | None:
    """Return the error in a message, unless it passes by itself."""
    error = message.error()
    if error is None:
        return None
    if error.code() in _MENDS or error.code() in TRANSIENT:
        return None  # librdkafka reconnects or rejoins by itself
    topic = message.topic() or "the log"
    if error.code() == ck.KafkaError._AUTO_OFFSET_RESET and not is_unknown_topic(error):
        return LogError(
            f"{topic}[{message.partition()}]: the offset asked for is gone: {error.str()}. Retention has cut it; read "
            "from a later offset (`streamward admin topics describe` shows the first), or restore it"
        )
    return LogError(f"{topic}: {error.str()}. Check topics and access rights with `streamward doctor`")


def is_unknown_topic(error: ck.KafkaError) -> bool:
    """Whether the broker does not know a topic or partition; if it has just started, perhaps not yet.

    When librdkafka finds no start offset, the broker's reason is only in the error's text.
    """
    unknown = ck.KafkaError.UNKNOWN_TOPIC_OR_PART
    if error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
        return ck.KafkaError(unknown).str() in error.str()
    return bool(error.code() == unknown)


def is_refused(error: ck.KafkaError) -> bool:
    """Whether a group takes no member of this kind, since its members assign the partitions by a protocol of their own.

    To a member of group.protocol=consumer the broker says that there is no such group, which ends its client; the
    reason is only in the error's text.
    """
    if error.code() == ck.KafkaError._FATAL:
        return ck.KafkaError(ck.KafkaError.GROUP_ID_NOT_FOUND).str() in error.str()
    return bool(error.code() == ck.KafkaError.INCONSISTENT_GROUP_PROTOCOL)
