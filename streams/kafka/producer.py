"""Write events to the log.

    Event ──► encoded ──► Producer ──► topic[partition]@offset

Every producer uses the partitioner `murmur2_random`, as Java and aiokafka do; librdkafka's default would send most keys
to other partitions. Deliveries are idempotent and acknowledged by all replicas. A failed delivery is raised by the next
`send` or `flush`.

Not covered: transactions. No Python client has KIP-890's fixed protocol, so no guarantee depends on them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, Self

import confluent_kafka as ck

from schemas.events import Coordinates, DeadLetter, Event
from streams.errors import LogError
from streams.kafka import client
from streams.kafka.reader import locate
from streams.kafka.record import TopicPartition, check_size, encoded, trace_of
from streams.kafka.retry import BrokerOutage, BrokerUnreachable
from streams.kafka.topics import FRAMING_BYTES, topics
from streams.observability import catalog
from streams.observability.metrics import OFF
from streams.settings.model import Settings

PARTITIONER = "murmur2_random"

log = logging.getLogger(__name__)


def _reason(error: ck.KafkaError) -> str:
    if error.code() == ck.KafkaError.INVALID_TIMESTAMP:
        clock = "Is this machine's clock right? A topic takes no record older than its retention, or from the future"
        return f"{error.str()}. {clock}"
    return str(error.str())


def _failure(sent: _Sent, error: ck.KafkaError) -> _Failure:
    is_unanswered = error.code() == ck.KafkaError._MSG_TIMED_OUT
    return _Failure(f"{sent.topic}, key {sent.key!r}: {_reason(error)}", is_unanswered)


GIVE_UP_S = 60.0
"""How long a command waits for acknowledgements. A process with a BrokerOutage waits for kafka.outage_s."""
SLICE_S = 0.15
"""Longest single `poll` or `flush` of the client. A fatal error is raised inside a callback, and librdkafka then
returns at once. Asked for 0.2 s or more, confluent-kafka 2.16 calls librdkafka again before it looks at the exception:
further callbacks run while it is pending, and turn it into a SystemError or lose it. Below 0.2 s it makes one call, and
the error is raised as it is."""
FATAL_S = 2.0
"""How long to wait for the reason of a fatal error: `produce` reports the error itself a moment earlier."""
ANY_BYTES = 1_000_000_000
"""librdkafka's largest limit for a record."""
QUEUE_KIB = 64 * 1024
"""Limit of the queue of unacknowledged records; when it is full, `send` waits."""


class _Sent(NamedTuple):
    """A record on its way."""

    topic: str
    partition: int
    """-1: the partition of its key."""
    key: bytes | None
    payload: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int
    """ms since the epoch; 0: now."""
    on_ack: Callable[[Coordinates], None] | None


class _Failure(NamedTuple):
    """A record that was not written."""

    text: str
    is_unanswered: bool
    """Whether the broker did not answer: the record may be written later."""


class _Unplaced(NamedTuple):
    """A record that is acknowledged without an offset."""

    sent: _Sent
    at: TopicPartition
    timestamp_ms: int


class Producer:
    """Writes events. Use as a context manager: leaving it flushes, and raises what failed.

    With `outage` it waits while the broker is unreachable, and counts what it sends for `stage` on the outage's meter.
    Records sent meanwhile stay in a queue of at most QUEUE_KIB.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        linger_ms: float = 5,
        outage: BrokerOutage | None = None,
        stage: str = "",
        any_size: bool = False,
    ) -> None:
        """With `any_size` only the broker checks sizes: it counts compressed bytes, so the log may hold larger ones.

        Without `stage` the caller counts what it sends.
        """
        self._settings = settings
        self._outage = outage
        self._meter, self._stage = outage.meter if outage is not None and stage else OFF, stage
        self._topics = {topic.event: topic for topic in topics(settings.topics).values()}
        self._by_name = {topic.name: topic for topic in self._topics.values()}
        self._failed: list[_Failure] = []
        self._unplaced: list[_Unplaced] = []
        self._unanswered = 0
        self._counting = Lock()  # on_ack may be called in another thread than `send`
        self._any_size = any_size
        largest = max(topic.max_bytes for topic in self._topics.values())
        config: dict[str, Any] = {
            "partitioner": PARTITIONER,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": linger_ms,
            "compression.type": "lz4",
            "message.max.bytes": ANY_BYTES if any_size else largest + FRAMING_BYTES,
            "batch.size": min(1_000_000, settings.topics.max_record_bytes),  # the broker's limit is for a batch
            "delivery.timeout.ms": int(1000 * (settings.kafka.outage_s if outage else GIVE_UP_S)),
            "queue.buffering.max.messages": 100_000,
            "queue.buffering.max.kbytes": max(QUEUE_KIB, 2 * (largest + FRAMING_BYTES) // 1024),
            "topic.metadata.propagation.max.ms": int(settings.kafka.request_timeout_s * 1000),
        }
        self._producer = client.producer(settings.kafka, config)
        self._brokers = client.LostBrokers(settings.kafka, self._producer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.flush()
            else:
                with contextlib.suppress(LogError):
                    self.flush(timeout_s=2)
        finally:
            self._producer.purge()  # the rest would keep the process from ending while the broker is unreachable

    def send(
        self,
        event: Event,
        *,
        on_ack: Callable[[Coordinates], None] | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Queue `event`. It is in the log once `flush` returns, or once `on_ack` is called with its coordinates.

        Raises schemas.serde.EncodeError if the event is malformed, EventError if it is larger than its topic takes,
        LogError if an earlier delivery failed.
        """
        topic = self._topics[type(event)]
        if isinstance(event, DeadLetter):
            self._meter.add(catalog.DEAD_LETTERS, self._stage, event.reason)
            headers = headers or trace_of(event)
        self.send_bytes(topic.name, *encoded(event, topic), on_ack=on_ack, headers=headers)

    def send_bytes(
        self,
        topic: str | TopicPartition,
        key: bytes | None,
        payload: bytes | None,
        *,
        on_ack: Callable[[Coordinates], None] | None = None,
        headers: Mapping[str, bytes] | Sequence[tuple[str, bytes | None]] | None = None,
        timestamp_ms: int = 0,
    ) -> None:
        """Queue raw bytes for a topic, where `key` chooses the partition, or for one partition. Raises as `send`."""
        topic, partition = (topic, -1) if isinstance(topic, str) else topic
        if (shape := self._by_name.get(topic)) is not None:
            if not self._any_size:
                check_size(shape, key, payload)
            self._meter.add(catalog.EVENTS_OUT, self._stage, shape.label)
        header_list = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        self._produce(_Sent(topic, partition, key, payload, header_list, timestamp_ms, on_ack))
        self._served(self._producer.poll, 0)
        self._raise_failures()

    def _produce(self, sent: _Sent) -> None:
        while True:
            try:
                self._producer.produce(
                    sent.topic, sent.payload, sent.key, on_delivery=partial(self._delivered, sent),
                    headers=sent.headers, timestamp=sent.timestamp_ms, partition=sent.partition,
                )  # fmt: skip
                with self._counting:
                    self._unanswered += 1
                break
            except BufferError:  # the local queue is full: let the broker catch up
                self._wait_for_room()
            except ck.KafkaException as exc:  # refused on the spot: the topic is missing, or the client is dead
                if exc.args[0].code() == ck.KafkaError._FATAL:
                    self._raise_fatal()
                self._failed.append(_failure(sent, exc.args[0]))
                break

    def _delivered(self, sent: _Sent, error: ck.KafkaError | None, message: Any) -> None:
        with self._counting:
            self._unanswered -= 1
        if error is not None:
            self._failed.append(_failure(sent, error))
        elif message.offset() is None:
            timestamp_ms = message.timestamp()[1]
            self._unplaced.append(_Unplaced(sent, (message.topic(), message.partition()), timestamp_ms))
        elif sent.on_ack is not None:
            sent.on_ack(Coordinates(message.topic(), message.partition(), message.offset()))

    def _settle(self) -> None:
        """Look in the log for records that were acknowledged without an offset, and resend the missing ones.

        librdkafka infers from the answer to one batch that those before it were written. A partition that has just got
        its leader may have refused the first batch and taken the second: such a record was never written.
        """
        while self._unplaced:
            tp = self._unplaced[0].at
            batch = [unplaced for unplaced in self._unplaced if unplaced.at == tp]
            pairs = {(unplaced.sent.key, unplaced.sent.payload) for unplaced in batch}
            places = locate(self._settings, tp, min(unplaced.timestamp_ms for unplaced in batch), pairs)
            self._unplaced = [unplaced for unplaced in self._unplaced if unplaced.at != tp]  # not before it was read
            for sent, *_ in batch:
                coordinates = places.get((sent.key, sent.payload))
                if coordinates is None:
                    log.warning("%s[%d]: a record with key %r was not written: sent again", *tp, sent.key)
                    self._produce(sent)
                elif sent.on_ack is not None:
                    sent.on_ack(coordinates)

    def serve(self) -> None:
        """Process acknowledgements without waiting. Raises LogError for failed records."""
        self._served(self._producer.poll, 0)
        self._raise_failures()

    def flush(self, timeout_s: float | None = None) -> None:
        """Return once everything sent is acknowledged. Raises LogError, naming the missing ones.

        Without `timeout_s` it waits for as long as the BrokerOutage allows, or GIVE_UP_S if there is none.
        """
        if self._outage is not None and timeout_s is None:
            left = len(self._producer) + len(self._unplaced)
            while left:
                before, left = left, self._served(self._producer.flush, SLICE_S)
                self._raise_failures()
                self._report(before, left)
            return
        timeout_s = GIVE_UP_S if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        left = self._served(self._producer.flush, min(SLICE_S, timeout_s))
        while left and (remaining_s := deadline - time.monotonic()) > 0:
            left = self._served(self._producer.flush, min(SLICE_S, remaining_s))
        self._raise_failures()
        if left and (records := self._unanswered + len(self._unplaced)):  # `left` also counts errors of the client
            raise BrokerUnreachable(
                f"{records} records were not acknowledged by {self._settings.kafka.bootstrap} within {timeout_s:g} s. "
                "They may or may not be in the log; sending them again is safe, since ids say what a record is about"
            )

    def _wait_for_room(self) -> None:
        before = len(self._producer)
        self._served(self._producer.poll, SLICE_S)
        self._raise_failures()
        self._report(before, len(self._producer))

    def _served(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Call poll or flush for at most SLICE_S, settle records without an offset, and return how many are not in the
        log.

        Raises LogError if the client has failed for good.
        """
        try:
            left = call(timeout_s)
        except ck.KafkaException as exc:
            raise LogError(
                f"the log takes nothing more from this process: {_reason(exc.args[0])}. Check that it may write "
                "(kafka.sasl_username, and the access control of the cluster), and start it again"
            ) from exc
        if self._unplaced:
            self._settle()
            left = len(self._producer)
        return left + len(self._unplaced)

    def _raise_fatal(self) -> None:
        """Raise the LogError of a fatal error, unless it was raised before."""
        deadline = time.monotonic() + FATAL_S
        while time.monotonic() < deadline:
            self._served(self._producer.poll, SLICE_S)

    def _report(self, before: int, left: int) -> None:
        """Tell the BrokerOutage whether anything was acknowledged."""
        if self._outage is not None:
            if left < before:
                self._outage.answered()
                self._brokers.works()
            else:
                self._brokers.check()
                self._outage.silent(f"to {left} records")

    def _raise_failures(self) -> None:
        if self._failed:
            failed, self._failed = self._failed, []
            rest = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            kind = BrokerUnreachable if all(failure.is_unanswered for failure in failed) else LogError
            raise kind(
                f"the log refused a record for {failed[0].text}{rest}. Check the topics with `streamward doctor`"
            )
