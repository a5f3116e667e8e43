"""Write events to the log.

    Event ──► key_of, check_size ──► Producer ──► topic[partition]@offset

Every producer uses the partitioner `murmur2_random`, as Java and aiokafka do; librdkafka's default would put most keys
elsewhere. Deliveries are idempotent and acknowledged by all replicas, and a failed one is an error at the next `flush`,
never a line in a file.

Not covered: transactions. No promise rests on them: KIP-890's fixed protocol is in no Python client.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import confluent_kafka as ck

from schemas import serde
from schemas.events import Coordinates, DeadLetter, Event
from streams.errors import LogError
from streams.kafka.client import POLL_S, client_config
from streams.kafka.record import check_size, key_of, trace_of
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import FRAMING_BYTES, topics
from streams.observability import catalog
from streams.observability.metrics import OFF, Meter
from streams.settings.model import Settings

PARTITIONER = "murmur2_random"


def _why(error: ck.KafkaError) -> str:
    if error.code() == ck.KafkaError.INVALID_TIMESTAMP:
        return f"{error.str()} Is this machine's clock right? Kafka takes no records from the future"
    return str(error.str())


GIVE_UP_S = 60.0
"""How long a command waits for what it wrote to be acknowledged; a process with patience waits for kafka.outage_s."""
QUEUE_KIB = 64 * 1024
"""What may wait in memory to be acknowledged; when it is full, `send` waits."""


class Producer:
    """Writes events. Use as a context manager: leaving it flushes, and raises what failed.

    With `patience` it waits while the broker is away. What is sent meanwhile stays in a queue of QUEUE_KIB at most.
    What is sent is counted by `meter`, as of `stage`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        linger_ms: float = 5,
        patience: BrokerOutage | None = None,
        meter: Meter = OFF,
        stage: str = "",
    ) -> None:
        self._settings = settings
        self._patience = patience
        self._meter, self._stage = meter, stage
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
                "delivery.timeout.ms": int(1000 * (settings.kafka.outage_s if patience else GIVE_UP_S)),
                "queue.buffering.max.messages": 100_000,
                "queue.buffering.max.kbytes": max(QUEUE_KIB, 2 * (largest + FRAMING_BYTES) // 1024),
                "topic.metadata.propagation.max.ms": int(settings.kafka.request_timeout_s * 1000),
            }
        )

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
            self._producer.purge()  # what is left would keep the process from ending while the broker is away

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
        if isinstance(event, DeadLetter):
            self._meter.add(catalog.DEAD_LETTERS, self._stage, event.reason)
            headers = headers or trace_of(event)
        self.send_bytes(topic.name, key_of(event, topic), serde.encode(event), on_ack=on_ack, headers=headers)

    def send_bytes(
        self,
        topic: str,
        key: bytes | None,
        payload: bytes | None,
        *,
        on_ack: Callable[[Coordinates], None] | None = None,
        headers: Mapping[str, bytes] | Sequence[tuple[str, bytes | None]] | None = None,
        timestamp_ms: int = 0,
        partition: int = -1,
    ) -> None:
        """Hand raw bytes to the log, to the partition of `key` unless another is named. Raises as `send` does."""
        if (known := self._by_name.get(topic)) is not None:
            check_size(known, key, payload)
            self._meter.add(catalog.EVENTS_OUT, self._stage, known.label)

        def delivered(error: ck.KafkaError | None, message: Any) -> None:
            if error is not None:
                self._failed.append(f"{topic}, key {key!r}: {_why(error)}")
            elif on_ack is not None:
                on_ack(Coordinates(message.topic(), message.partition(), message.offset()))

        while True:
            try:
                self._producer.produce(
                    topic, payload, key, on_delivery=delivered,
                    headers=list(headers.items() if isinstance(headers, Mapping) else headers or ()),
                    timestamp=timestamp_ms, partition=partition,
                )  # fmt: skip
                break
            except BufferError:  # the local queue is full: let the broker catch up
                self._wait_for_room()
            except ck.KafkaException as exc:  # refused on the spot: a topic that is missing, a producer that is dead
                self._failed.append(f"{topic}, key {key!r}: {_why(exc.args[0])}")
                break
        self._served(self._producer.poll, 0)
        self._raise_failures()

    def flush(self, timeout_s: float | None = None) -> None:
        """Return once everything sent is acknowledged. Raises LogError, naming what was not.

        Without `timeout_s` that takes as long as the patience of this producer lasts, or GIVE_UP_S if it has none.
        """
        if self._patience is not None and timeout_s is None:
            left = len(self._producer)
            while left:
                before, left = left, self._served(self._producer.flush, POLL_S)
                self._raise_failures()
                self._report(before, left)
            return
        timeout_s = GIVE_UP_S if timeout_s is None else timeout_s
        left = self._served(self._producer.flush, timeout_s)
        self._raise_failures()
        if left:
            raise LogError(
                f"{left} records were not acknowledged by {self._settings.kafka.bootstrap} within {timeout_s:g} s. "
                "They may or may not be in the log; sending them again is safe, since ids say what a record is about"
            )

    def _wait_for_room(self) -> None:
        before = len(self._producer)
        self._served(self._producer.poll, POLL_S)
        self._raise_failures()
        self._report(before, len(self._producer))

    def _served(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Call poll or flush. Raises LogError if this producer is dead, which the client says out of either of them.

        As a SystemError, when a callback was under way.
        """
        try:
            return call(timeout_s)
        except (ck.KafkaException, SystemError) as exc:
            cause = exc.__cause__ if isinstance(exc, SystemError) else exc
            if not isinstance(cause, ck.KafkaException):
                raise
            raise LogError(
                f"the log takes nothing more from this process: {_why(cause.args[0])}. Check that it may write "
                "(kafka.sasl_username, and the access control of the cluster), and start it again"
            ) from exc

    def _report(self, before: int, left: int) -> None:
        """Tell the patience whether anything was acknowledged."""
        if self._patience is not None:
            if left < before:
                self._patience.answered()
            else:
                self._patience.silent(f"to {left} records")

    def _raise_failures(self) -> None:
        if self._failed:
            failed, self._failed = self._failed, []
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            raise LogError(f"the log refused a record for {failed[0]}{more}. Check the topics with `streamward doctor`")
