"""The traces of transactions in a partition: markers, aborted records, and records of one that is still open.

    partition, offsets ──► batches as they are in the log ──► markers and aborted records; the producer of an open one

Only other programs and `admin archive restore` use transactions. librdkafka shows neither markers nor producers, but
aiokafka's batches do, so this is the one module below the Faust worker that imports it.

Not covered: a producer's transactional.id, which only the transaction coordinator knows (`kafka-transactions.sh list`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition as Place

from streams.kafka.client import tls_context, unreachable
from streams.kafka.record import TopicPartition
from streams.output import moment
from streams.settings.model import Kafka

T = TypeVar("T")

FETCH_BYTES = 4 * 1024 * 1024
READ_UNCOMMITTED = 0


class OpenTransaction(NamedTuple):
    """A transaction that has begun in a partition and not ended."""

    topic: str
    partition: int
    offset: int
    """Offset of its first record here, where the partition ends for readers."""
    producer_id: int
    epoch: int
    since_ms: int
    """Record time of its first batch here."""

    def __str__(self) -> str:
        return (
            f"{self.topic}[{self.partition}]@{self.offset}: producer {self.producer_id} (epoch {self.epoch}) has a "
            f"transaction open from here on, since {moment(self.since_ms)}: no record from there on is read yet"
        )

    def row(self) -> dict[str, Any]:
        """Return it for printing."""
        return {**self._asdict(), "what": str(self)}


def unread_offsets(kafka: Kafka, tp: TopicPartition, ranges: Iterable[range]) -> set[int]:
    """Return which offsets in these ranges hold a marker, or a record of a transaction. If a reader got no record
    there, it was aborted. Raises LogError if the broker does not answer.
    """

    async def read() -> set[int]:
        offsets: set[int] = set()
        async with _connected(kafka, tp[0]) as client:
            for span in ranges:
                position = span.start
                while position < span.stop:
                    batches = await _fetch(client, tp, position)
                    if not batches:
                        break
                    for batch in batches:
                        if batch.is_control_batch or batch.is_transactional:
                            offsets.update(record.offset for record in batch if record.offset in span)
                    position = batches[-1].next_offset
        return offsets

    return _answer(kafka, read())


def open_transaction(kafka: Kafka, tp: TopicPartition, stable_end: int) -> OpenTransaction | None:
    """Return the transaction that ends a partition at `stable_end`, if it is still open. Raises as `unread_offsets`."""

    async def read() -> OpenTransaction | None:
        async with _connected(kafka, tp[0]) as client:
            for batch in await _fetch(client, tp, stable_end):
                if batch.is_transactional and not batch.is_control_batch:
                    producer = (batch.producer_id, batch.producer_epoch)
                    return OpenTransaction(*tp, stable_end, *producer, batch.first_timestamp)
        return None

    return _answer(kafka, read())


def _answer(kafka: Kafka, reading: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(asyncio.wait_for(reading, kafka.request_timeout_s * 6))
    except (KafkaError, TimeoutError, OSError) as exc:
        raise unreachable(kafka, repr(exc)) from exc


@asynccontextmanager
async def _connected(kafka: Kafka, topic: str) -> AsyncIterator[AIOKafkaClient]:
    client = AIOKafkaClient(
        bootstrap_servers=kafka.bootstrap,
        request_timeout_ms=int(kafka.request_timeout_s * 1000),
        security_protocol=kafka.security_protocol,
        ssl_context=tls_context(kafka),
        sasl_mechanism=kafka.sasl_mechanism or "PLAIN",
        sasl_plain_username=kafka.sasl_username,
        sasl_plain_password=kafka.sasl_password.get_secret_value() if kafka.sasl_password else None,
    )
    try:
        await client.bootstrap()
        await client.set_topics([topic])
        yield client
    finally:
        await client.close()


async def _fetch(client: AIOKafkaClient, tp: TopicPartition, offset: int) -> list[Any]:
    """Return the batches from the one that holds `offset` on, as many as one answer has; none at the end."""
    leader = client.cluster.leader_for_partition(Place(*tp))
    request = FetchRequest(100, 1, FETCH_BYTES, READ_UNCOMMITTED, [(tp[0], [(tp[1], offset, FETCH_BYTES)])])
    response = await client.send(leader, request)
    batches = []
    for _, partitions in response.topics:
        for _, error_code, *_, data in partitions:
            if error_code:
                raise for_code(error_code)
            records = MemoryRecords(data)
            while records.has_next():
                batches.append(records.next_batch())
    return batches
