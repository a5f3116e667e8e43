"""Write a record with a header whose name is any bytes, which no other Python client does.

aiokafka's producer, with its batch builder in Python ──► a name that encodes to FF FE "name"
"""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from schemas.events import Coordinates
from streams.kafka.record import TopicPartition

NAME = b"\xff\xfename"
"""Not UTF-8."""
VALUE = b"\x00\xff"


class _RawName(str):
    """Text that encodes to NAME."""

    def encode(self, *_: object) -> bytes:
        return NAME


def write(bootstrap: str, tp: TopicPartition, key: bytes, payload: bytes, timestamp_ms: int) -> Coordinates:
    """Write a record with three headers, the second of which is named NAME; return its coordinates."""
    return asyncio.run(_write(bootstrap, tp, key, payload, timestamp_ms))


async def _write(bootstrap: str, tp: TopicPartition, key: bytes, payload: bytes, timestamp_ms: int) -> Coordinates:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        batch = producer.create_batch()
        batch._builder = _DefaultRecordBatchBuilderPy(
            magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            batch_size=2**20,
        )  # fmt: skip
        headers = [("plain", b"1"), (_RawName(), VALUE), ("none", None)]
        batch.append(key=key, value=payload, timestamp=timestamp_ms, headers=headers)
        written = await (await producer.send_batch(batch, tp[0], partition=tp[1]))
    return Coordinates(*tp, written.offset)
