"""Write offsets without records, so that the records after them keep their original offsets.

    n offsets, 2 or more ──► n - 1 records of a transaction that is aborted, and its marker
    one offset           ──► the record before it, in a transaction that is committed: the marker

A Kafka partition gives every record the next offset; only transactions leave offsets that no reader gets. A hole may
have been a marker, an aborted record, or one that compaction removed: readers see no difference.

These are the only transactions that Streamward writes; each has a few records of one partition, and ends before the
next record is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import confluent_kafka as ck

from schemas.events import Coordinates
from streams.errors import LogError, RefusedError
from streams.kafka import client
from streams.kafka.producer import ANY_BYTES
from streams.kafka.reader import PartitionReader
from streams.kafka.record import Record, TopicPartition
from streams.settings.model import Settings

MOST_ABORTED = 100_000
"""Offsets of one aborted transaction: a longer hole takes several."""
LOOK_S = 0.005


class Hole(NamedTuple):
    """Offsets without a record, and the record before them."""

    before: Record | None
    """None where nothing was written in front of them: the hole is where writing begins."""
    first: int
    size: int


def holes_after(records: Iterable[Record], begin: int, end: int) -> Iterator[Hole]:
    """Yield each record with the hole after it, usually empty; first the hole at `begin`, if any."""
    before, position = None, begin
    for record in records:
        if before is not None or record.at.offset > position:
            yield Hole(before, position, record.at.offset - position)
        before, position = record, record.at.offset + 1
    if before is not None or position < end:
        yield Hole(before, position, end - position)


class HoleWriter:
    """Writes holes into partitions of one log."""

    def __init__(self, settings: Settings) -> None:
        """Abort the transaction of a killed writer, if there is one. Raises LogError if the broker refuses."""
        self._settings = settings
        self._id = f"{settings.topics.prefix}archive-restore"
        config = {"transactional.id": self._id, "message.max.bytes": ANY_BYTES, "compression.type": "lz4"}
        self._producer = client.producer(settings.kafka, config)
        self._ends = PartitionReader(settings, {})
        try:
            self._producer.init_transactions(settings.kafka.request_timeout_s)
        except ck.KafkaException as exc:
            raise self._refusal("no transaction can be begun", exc) from exc

    def write(self, tp: TopicPartition, hole: Hole, placeholder: bytes) -> None:
        """Write a hole; a hole of one offset together with the record before it.

        Everything sent to the partition before has to be acknowledged. Raises RefusedError if there is no such record,
        or if another process writes there, LogError if the broker refuses.
        """
        if hole.size == 1:
            if hole.before is None:
                raise RefusedError(
                    f"{tp[0]}[{tp[1]}]@{hole.first}: a restore was interrupted within offsets that hold no record, and "
                    "left one that nothing can fill. Delete the topic, and restore again"
                )
            self._transaction(tp, [hole.before], hole.first + 1, commit=True)
        timestamp_ms = 0 if hole.before is None else hole.before.timestamp_ms
        position, end = hole.first, hole.first + hole.size
        while hole.size > 1 and position < end:
            count = min(MOST_ABORTED, end - position)
            count -= end - position - count == 1  # none is left alone
            records = [
                Record(Coordinates(*tp, offset), timestamp_ms, None, placeholder)
                for offset in range(position, position + count - 1)
            ]
            position += count
            self._transaction(tp, records, position, commit=False)

    def _transaction(self, tp: TopicPartition, records: list[Record], end: int, *, commit: bool) -> None:
        """Write records and their marker, and return once the partition ends at `end`."""
        timeout_s = self._settings.kafka.request_timeout_s
        try:
            self._producer.begin_transaction()
            for record in records:
                self._producer.produce(
                    tp[0], record.payload, record.key, tp[1], timestamp=record.timestamp_ms, headers=[*record.headers]
                )
                self._producer.poll(0)
            self._producer.flush(timeout_s)
            self._producer.commit_transaction(timeout_s) if commit else self._producer.abort_transaction(timeout_s)
        except (ck.KafkaException, BufferError) as exc:
            raise self._refusal(f"offsets without a record were not written to {tp[0]}[{tp[1]}]", exc) from exc
        self._wait_for_end(tp, end)

    def _wait_for_end(self, tp: TopicPartition, end: int) -> None:
        """Return once the marker is written, which is after the client heard that the transaction has ended."""
        deadline = time.monotonic() + self._settings.kafka.request_timeout_s
        while (now := self._ends.bounds(tp)[1]) < end:
            if time.monotonic() > deadline:
                raise LogError(f"{tp[0]}[{tp[1]}]: ends at {now} after a transaction, expected {end}; restore again")
            time.sleep(LOOK_S)
        if now > end:
            raise RefusedError(
                f"{tp[0]}[{tp[1]}]: ends at {now}, expected {end}: another process writes to this topic. Stop it, and "
                "restore into other topics"
            )

    def _refusal(self, failure: str, exc: Exception) -> LogError:
        reason = exc.args[0].str() if isinstance(exc, ck.KafkaException) else str(exc)
        return LogError(f"{failure}: {reason}. It needs the right to write under the transactional id {self._id}")

    def close(self) -> None:
        """Disconnect."""
        self._ends.close()
