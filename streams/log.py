"""The Kafka log, as the rest of Streamward uses it.

    Event ──► Producer ──► topic[partition]@offset ──► Consumer (a group, following) ──► Record
                                                  └──► read (a range, bounded at the start, never committing) ──► Record

Every producer uses the partitioner `murmur2_random`, as Java and aiokafka do; librdkafka's default would put most keys
elsewhere. Deliveries are idempotent and acknowledged by all replicas, and a failed one is an error at the next `flush`,
never a line in a file. A consumer commits only what it is told to.

Not covered: transactions. No promise rests on them (KIP-890's fixed protocol is in no Python client).
"""

from __future__ import annotations

import base64
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self, TypeVar

import confluent_kafka as ck

from schemas import serde
from schemas.events import Coordinates, DeadLetter, Event, derive_id
from streams.errors import EventError, LogError
from streams.settings import Kafka, Settings
from streams.topics import FRAMING_BYTES, Topic, topics

PARTITIONER = "murmur2_random"
POLL_S = 0.2
"""Longest wait in one poll: how quickly a stopping process notices."""

E = TypeVar("E", bound=Event)
TopicPartition = tuple[str, int]


class Record(NamedTuple):
    """One record as it lies in the log."""

    at: Coordinates
    timestamp_ms: int
    key: bytes | None
    payload: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def decode(self, expected: type[E]) -> E | serde.Poison:
        """Return the event in this record, or a Poison. Never raises."""
        return serde.decode(self.payload, expected)


def dead_letter(record: Record, *, stage: str, reason: str, error: str) -> DeadLetter:
    """Return the dead letter of a record that `stage` cannot use; `error` is put behind the record's coordinates.

    It is a function of the record alone, so that a second reading gives the same letter.
    """
    return DeadLetter(
        dead_letter_id=derive_id(stage, *record.at),
        created_at=record.timestamp_ms,
        stage=stage,
        reason=reason,
        error=f"{record.at}: {error}",
        source_topic=record.at.topic,
        source_partition=record.at.partition,
        source_offset=record.at.offset,
        source_timestamp=record.timestamp_ms,
        key=_base64(record.key),
        payload=_base64(record.payload),
        headers={name: _base64(value) or "" for name, value in record.headers},
    )


def key_of(event: Event, topic: Topic) -> bytes | None:
    """Return the record key of `event`: a field of it, or for a dead letter the key of its source."""
    if isinstance(event, DeadLetter):
        return None if event.key is None else base64.b64decode(event.key)
    key: str = getattr(event, topic.key)
    return key.encode()


def check_size(topic: Topic, key: bytes | None, payload: bytes | None) -> None:
    """Raise EventError (`too_large`), with the size and the setting, if the topic does not take such a record."""
    size = len(key or b"") + len(payload or b"")
    if size > topic.max_bytes:
        raise EventError(
            f"a record of {size} bytes for {topic.name}, key {(key or b'')[:60]!r}, which takes at most "
            f"{topic.max_bytes}. Make the event smaller (fewer or shorter messages, fewer tokens, a smaller group), or "
            "raise topics.max_record_bytes, here and on the topics that exist (max.message.bytes)",
            reason="too_large",
        )


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


# --- connections ------------------------------------------------------------------------------------------------------


def client_config(kafka: Kafka) -> dict[str, Any]:
    """Return the librdkafka settings that every client of this cluster shares."""
    config: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": kafka.security_protocol,
        "socket.timeout.ms": int(kafka.request_timeout_s * 1000),
        "error_cb": _on_error,
        "logger": logging.getLogger("librdkafka"),  # its lines come out in poll and flush; else it writes to stderr
    }
    optional = {
        "sasl.mechanism": kafka.sasl_mechanism,
        "sasl.username": kafka.sasl_username,
        "sasl.password": kafka.sasl_password.get_secret_value() if kafka.sasl_password else None,
        "ssl.ca.location": kafka.ssl_ca_location,
        "ssl.certificate.location": kafka.ssl_certificate_location,
        "ssl.key.location": kafka.ssl_key_location,
    }
    config |= {key: str(value) for key, value in optional.items() if value is not None}
    return config | {key: value.get_secret_value() for key, value in kafka.client.items()}


def _on_error(error: ck.KafkaError) -> None:
    """Keep librdkafka from printing; what matters comes back through poll, flush or a time-out."""


def unreachable(kafka: Kafka, cause: object) -> LogError:
    """Return the error for a broker that does not answer, with the ways out."""
    return LogError(
        f"Kafka at {kafka.bootstrap} did not answer within {kafka.request_timeout_s:g} s ({cause}). Check that it runs "
        "(`streamward broker status`, or `streamward broker start` for an embedded one) and that kafka.bootstrap and "
        "kafka.security_protocol are right (`streamward config show`)"
    )


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of `key` under `murmur2_random`, the same as Kafka's Java client gives."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 that Kafka's default partitioner uses (seed 0x9747b28c), unsigned."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)


# --- writing ----------------------------------------------------------------------------------------------------------


class Producer:
    """Writes events. Use as a context manager: leaving it flushes, and raises what failed."""

    def __init__(self, settings: Settings, *, linger_ms: float = 5) -> None:
        self._settings = settings
        self._topics = {topic.event: topic for topic in topics(settings.topics).values()}
        self._by_name = {topic.name: topic for topic in self._topics.values()}
        self._failed: list[str] = []
        largest = max(topic.max_bytes for topic in self._topics.values())
        self._producer = ck.Producer(
            {
                **client_config(settings.kafka),
                "partitioner": PARTITIONER,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": linger_ms,
                "compression.type": "lz4",
                "message.max.bytes": largest + FRAMING_BYTES,
                "batch.size": min(1_000_000, settings.topics.max_record_bytes),  # the broker's limit is for a batch
                "delivery.timeout.ms": 60_000,
                "topic.metadata.propagation.max.ms": int(settings.kafka.request_timeout_s * 1000),
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
        else:
            with contextlib.suppress(LogError):
                self.flush(timeout_s=2)

    def send(
        self,
        event: Event,
        *,
        on_ack: Callable[[Coordinates], None] | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Hand `event` to the log; it is there once `flush` returns, or once `on_ack` is called with where it lies.

        Raises schemas.serde.EncodeError if the event is malformed, EventError if it is larger than its topic takes,
        LogError if an earlier delivery failed.
        """
        topic = self._topics[type(event)]
        self.send_bytes(topic.name, key_of(event, topic), serde.encode(event), on_ack=on_ack, headers=headers)

    def send_bytes(
        self,
        topic: str,
        key: bytes | None,
        payload: bytes | None,
        *,
        on_ack: Callable[[Coordinates], None] | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        """Hand raw bytes to the log, to the partition of `key`. Raises as `send` does."""
        if (known := self._by_name.get(topic)) is not None:
            check_size(known, key, payload)

        def delivered(error: ck.KafkaError | None, message: Any) -> None:
            if error is not None:
                self._failed.append(f"{topic}, key {key!r}: {error.str()}")
            elif on_ack is not None:
                on_ack(Coordinates(message.topic(), message.partition(), message.offset()))

        while True:
            try:
                self._producer.produce(
                    topic, payload, key, on_delivery=delivered, headers=list((headers or {}).items()),
                    timestamp=timestamp_ms,
                )  # fmt: skip
                break
            except BufferError:  # the local queue is full: let the broker catch up
                self._producer.poll(POLL_S)
                self._raise_failures()
            except (
                ck.KafkaException
            ) as exc:  # refused on the spot: a topic known to be missing, a producer that is dead
                self._failed.append(f"{topic}, key {key!r}: {exc.args[0].str()}")
                break
        self._producer.poll(0)
        self._raise_failures()

    def flush(self, timeout_s: float = 60) -> None:
        """Return once everything sent is acknowledged. Raises LogError, naming what was not."""
        left = self._producer.flush(timeout_s)
        self._raise_failures()
        if left:
            raise LogError(
                f"{left} records were not acknowledged by {self._settings.kafka.bootstrap} within {timeout_s:g} s. "
                "They may or may not be in the log; sending them again is safe, since ids say what a record is about"
            )

    def _raise_failures(self) -> None:
        if self._failed:
            failed, self._failed = self._failed, []
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            raise LogError(f"the log refused a record for {failed[0]}{more}. Check the topics with `streamward doctor`")


# --- reading ----------------------------------------------------------------------------------------------------------


class Consumer:
    """Follows topics as a member of a consumer group, and commits only what `commit` is told.

    `on_assigned` and `on_revoked` are called from `poll` with the partitions gained and lost; a consumer that keeps
    state per partition drops it there. A first start begins at offset 0.
    """

    def __init__(
        self,
        settings: Settings,
        group: str,
        labels: Iterable[str],
        *,
        on_assigned: Callable[[list[TopicPartition]], None] | None = None,
        on_revoked: Callable[[list[TopicPartition]], None] | None = None,
    ) -> None:
        self._settings = settings
        self._names = [topics(settings.topics)[label].name for label in labels]
        self._trouble: LogError | None = None
        self._consumer = ck.Consumer(
            {
                **client_config(settings.kafka),
                "group.id": settings.topics.prefix + group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": False,
                "session.timeout.ms": int(settings.kafka.session_timeout_s * 1000),
                "heartbeat.interval.ms": int(settings.kafka.session_timeout_s * 250),
                "max.poll.interval.ms": 600_000,
                "fetch.max.bytes": 32 * 1024 * 1024,
                "partition.assignment.strategy": "range",  # the same numbers of co-partitioned topics go together
            }
        )
        self._consumer.subscribe(
            self._names,
            on_assign=_rebalance(on_assigned),
            on_revoke=_rebalance(on_revoked),
            on_lost=_rebalance(on_revoked),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, count: int = 500, timeout_s: float = POLL_S) -> list[Record]:
        """Return up to `count` records, in partition order, as soon as there is one; none when none came in time.

        Raises LogError if the broker refuses (a topic that is missing, an authorisation).
        """
        _raise_first(self)
        records = []
        for message in _consume(self._consumer, count, timeout_s):
            if (error := _trouble(message)) is None:
                records += [] if message.error() else [_record(message)]
            else:
                self._trouble = error
        if not records:
            _raise_first(self)
        return records

    def commit(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Record that everything below `next_offsets` is done. A lost partition is not committed, and says nothing."""
        if not next_offsets:
            return
        offsets = [ck.TopicPartition(topic, partition, offset) for (topic, partition), offset in next_offsets.items()]
        try:
            errors = [done.error for done in self._consumer.commit(offsets=offsets, asynchronous=False)]
        except ck.KafkaException as exc:
            errors = [exc.args[0]]
        for error in errors:
            # of a lost partition somebody else is the owner now, and reads from the last commit: at least once
            if error is not None and error.code() not in _LOST_MEMBERSHIP:
                raise LogError(
                    f"committing {dict(next_offsets)} failed: {error.str()}. Nothing is lost: it comes again"
                )

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions this member owns now."""
        return [(tp.topic, tp.partition) for tp in self._consumer.assignment()]

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offset to read per partition; 0 where nothing was committed.

        Raises LogError if the broker does not answer.
        """
        wanted = [ck.TopicPartition(topic, partition) for topic, partition in partitions]
        try:
            found = self._consumer.committed(wanted, timeout=self._settings.kafka.request_timeout_s)
        except ck.KafkaException as exc:
            raise unreachable(self._settings.kafka, exc.args[0].str()) from exc
        return {(tp.topic, tp.partition): max(tp.offset, 0) for tp in found}

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions for now."""
        self._consumer.pause([ck.TopicPartition(*tp) for tp in partitions])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions again."""
        self._consumer.resume([ck.TopicPartition(*tp) for tp in partitions])

    def close(self) -> None:
        """Leave the group, without a commit."""
        self._consumer.close()


_LOST_MEMBERSHIP = {
    ck.KafkaError.ILLEGAL_GENERATION,
    ck.KafkaError.UNKNOWN_MEMBER_ID,
    ck.KafkaError.REBALANCE_IN_PROGRESS,
    ck.KafkaError._ASSIGNMENT_LOST,
}


def _rebalance(callback: Callable[[list[TopicPartition]], None] | None) -> Callable[[Any, Any], None]:
    def on_rebalance(_: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        if callback is not None:
            callback([(tp.topic, tp.partition) for tp in partitions])

    return on_rebalance


class Tail:
    """Reads partitions from given offsets with `assign`: no group, no commit, bounded or following.

    `poll` returns what came; `position` is the next offset per partition; `at_end` says whether all bounds are reached.
    """

    def __init__(
        self,
        settings: Settings,
        starts: Mapping[TopicPartition, int],
        *,
        ends: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self._ends = None if ends is None else dict(ends)
        self._position = dict(starts)
        self._trouble: LogError | None = None
        self._consumer = ck.Consumer(
            {
                **client_config(settings.kafka),
                "group.id": settings.topics.prefix + "tail",  # required by librdkafka; never joined, never committed
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )
        reading = [tp for tp in starts if self._ends is None or starts[tp] < self._ends[tp]]
        self._consumer.assign([ck.TopicPartition(*tp, starts[tp]) for tp in reading])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    @property
    def position(self) -> dict[TopicPartition, int]:
        """The next offset to be read, per partition."""
        return dict(self._position)

    def at_end(self) -> bool:
        """Whether every bound is reached; False when there are none."""
        return self._ends is not None and all(self._position[tp] >= end for tp, end in self._ends.items())

    def poll(self, count: int = 1000, timeout_s: float = POLL_S) -> list[Record]:
        """Return up to `count` records below the bounds. Raises LogError if an offset is gone or the broker refuses."""
        _raise_first(self)
        records = []
        for message in _consume(self._consumer, count, timeout_s):
            if (error := message.error()) is not None:
                if (trouble := _trouble(message)) is not None:
                    self._trouble = trouble
                elif error.code() == ck.KafkaError._PARTITION_EOF:
                    # the log ends here: what lies between the last record and the end are markers of transactions
                    tp = (message.topic(), message.partition())
                    self._position[tp] = max(self._position[tp], message.offset())
                continue
            record = _record(message)
            tp = (record.at.topic, record.at.partition)
            if self._ends is not None and record.at.offset >= self._ends[tp]:
                if self._position[tp] < self._ends[tp]:
                    self._position[tp] = self._ends[tp]
                self._consumer.pause([ck.TopicPartition(*tp)])  # what comes behind the bound is not asked for
                continue
            self._position[tp] = record.at.offset + 1
            records.append(record)
        if not records:
            _raise_first(self)
        return records


def read(
    settings: Settings,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Iterator[Record]:
    """Yield every record from `starts` to below `ends`, in partition order, and never commit.

    Raises LogError if a range is no longer there, or nothing comes for a minute.
    """
    with Tail(settings, starts, ends=ends) as tail:
        silent_since = time.monotonic()
        while not tail.at_end():
            records = tail.poll()
            yield from records
            if records:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > 60:
                raise unreachable(
                    settings.kafka, f"nothing came for 60 s at {tail.position}, expected up to {dict(ends)}"
                )


def fetch(settings: Settings, wanted: Iterable[Coordinates]) -> dict[Coordinates, Record]:
    """Return the records at these coordinates. Raises LogError, naming those that are gone."""
    by_partition: dict[TopicPartition, set[int]] = {}
    for at in wanted:
        by_partition.setdefault((at.topic, at.partition), set()).add(at.offset)
    if not by_partition:
        return {}
    starts = {tp: min(found) for tp, found in by_partition.items()}
    ends = {tp: max(found) + 1 for tp, found in by_partition.items()}
    found = {
        record.at: record
        for record in read(settings, starts, ends)
        if record.at.offset in by_partition[(record.at.topic, record.at.partition)]
    }
    every = {Coordinates(*tp, offset) for tp, offsets in by_partition.items() for offset in offsets}
    if gone := sorted(every - found.keys()):
        raise LogError(
            f"{', '.join(map(str, gone[:5]))}{' and more' if gone[5:] else ''}: nothing there. The topic is compacted "
            "or written in transactions; Streamward's are neither, so compare them with `streamward doctor`"
        )
    return found


def _consume(consumer: ck.Consumer, count: int, timeout_s: float) -> list[Any]:
    """Return up to `count` messages as soon as there is one; `consume` alone would wait for all of them."""
    first = consumer.poll(timeout_s)
    if first is None:
        return []
    return [first, *(consumer.consume(count - 1, 0) if count > 1 else ())]


def _trouble(message: Any) -> LogError | None:
    """Return the error a message stands for, if it is one that does not pass by itself."""
    error = message.error()
    if error is None:
        return None
    if error.code() in (ck.KafkaError._PARTITION_EOF, ck.KafkaError._TRANSPORT, ck.KafkaError._ALL_BROKERS_DOWN):
        return None  # librdkafka reconnects by itself
    where = message.topic() or "the log"
    if error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
        return LogError(
            f"{where}[{message.partition()}]: the offset asked for is gone: {error.str()}. Retention has cut it; read "
            "from a later offset (`streamward topics describe` shows the first), or restore it"
        )
    return LogError(f"{where}: {error.str()}. Check topics and access rights with `streamward doctor`")


def _raise_first(reader: Consumer | Tail) -> None:
    """Raise what an earlier message stood for; the records that came with it were returned before."""
    trouble, reader._trouble = reader._trouble, None
    if trouble is not None:
        raise trouble


def _record(message: Any) -> Record:
    return Record(
        Coordinates(message.topic(), message.partition(), message.offset()),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )
