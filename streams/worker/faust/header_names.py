"""Read records with header names that are not UTF-8, which would end aiokafka's consumer.

    fetched bytes ──► KeptRecords ──► aiokafka's reader in C ──► a name that is not UTF-8 ──► the rest by _read_msg

A single such record would end every worker, again after each restart. The reader in C fails on the whole batch; the one
in Python, which aiokafka has as well, is given the same bytes then, and skips what was delivered. As in every reader
(streams/kafka/headers.py), LEFT_OUT takes the place of the record's headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.record.default_records import _DefaultRecordBatchPy, _DefaultRecordPy
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy
from aiokafka.record.util import decode_varint

from streams.kafka.headers import LEFT_OUT
from streams.worker.faust.pinned_sources import STOCK


class KeptRecords(MemoryRecords):  # type: ignore[misc]  # one of two classes, chosen when it is imported
    """The part of a fetch for one partition, with its bytes."""

    def __init__(self, data: bytes) -> None:
        """`data` goes to aiokafka's class in __new__ or here, depending on which one it is."""
        super().__init__(data)
        self.data = data


class PlainRecords:
    """The same records, read in Python."""

    def __init__(self, data: bytes) -> None:
        self._batches = _MemoryRecordsPy(data)

    def has_next(self) -> bool:
        """Return whether there is another batch."""
        return bool(self._batches.has_next())

    def next_batch(self) -> Any:
        """Return the next batch; every one of Kafka 4 has the format that this reads (KIP-724)."""
        data = self._batches._next_slice
        self._batches.next_batch()
        return _DefaultRecordBatchPy(bytes(data or b""))


def _unpack_records(self: Any) -> Iterator[Any]:
    """In place of PartitionRecords._unpack_records."""
    try:
        yield from STOCK[PartitionRecords, "_unpack_records"](self)
    except UnicodeDecodeError:
        self._records = PlainRecords(self._records.data)
        yield from STOCK[PartitionRecords, "_unpack_records"](self)  # from `next_fetch_offset` on


def _read_msg(self: Any) -> _DefaultRecordPy:
    """In place of _DefaultRecordBatchPy._read_msg."""
    try:
        return STOCK[_DefaultRecordBatchPy, "_read_msg"](self)
    except UnicodeDecodeError:
        return _read_without_headers(self)


def _read_without_headers(batch: Any) -> _DefaultRecordPy:
    """Read a record up to its headers, and skip those; the layout of a record is above aiokafka's class."""
    length, position = decode_varint(batch._buffer, batch._pos)
    end = position + length

    def read_number() -> int:
        nonlocal position
        number, position = decode_varint(batch._buffer, position)
        return int(number)

    def read_bytes() -> bytes | None:
        nonlocal position
        size = read_number()
        begin, position = position, position + max(size, 0)
        return bytes(batch._buffer[begin:position]) if size >= 0 else None

    read_number()  # attributes, unused
    delay_ms, offset_in_batch = read_number(), read_number()
    key, value = read_bytes(), read_bytes()
    batch._pos = end
    is_appended = batch.timestamp_type == batch.LOG_APPEND_TIME
    timestamp_ms = batch.max_timestamp if is_appended else batch.first_timestamp + delay_ms
    offset = batch.base_offset + offset_in_batch
    return _DefaultRecordPy(offset, timestamp_ms, batch.timestamp_type, key, value, list(LEFT_OUT))


REPLACED: dict[type, tuple[Any, ...]] = {PartitionRecords: (_unpack_records,), _DefaultRecordBatchPy: (_read_msg,)}


def keep_bytes() -> None:
    """Have aiokafka's Fetcher keep the bytes of what it fetched."""
    fetcher.MemoryRecords = KeptRecords
