"""Read records with a header whose name is not UTF-8, which end aiokafka's consumer.

    fetched bytes ──► KeptRecords ──► aiokafka's C reader ──► a name that is not text ──► the rest by _read_msg

Whoever may write to a topic could so end every worker, again after each restart. The reader in C fails on the whole
batch; the one in Python, which aiokafka has as well, is given the same bytes then, and skips what was delivered. It
decodes a name as streams/kafka/headers.py does: an odd byte becomes a lone surrogate (PEP 383).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchPy, _DefaultRecordPy
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy
from aiokafka.record.util import decode_varint

from streams.worker.faust.pinned_sources import STOCK


class KeptRecords(MemoryRecords):  # type: ignore[misc]  # one of two classes, chosen when it is imported
    """What a fetch returned of one partition, with its bytes."""

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
    """In place of _DefaultRecordBatchPy._read_msg; the layout of a record is above that class."""
    buffer = self._buffer
    length, start = decode_varint(buffer, self._pos)
    _, pos = decode_varint(buffer, start)  # attributes, unused

    def number() -> int:
        nonlocal pos
        value, pos = decode_varint(buffer, pos)
        return int(value)

    def data() -> bytes | None:
        nonlocal pos
        size = number()
        begin, pos = pos, pos + max(size, 0)
        return bytes(buffer[begin:pos]) if size >= 0 else None

    sent_after, number_in_batch = number(), number()
    key, value, count = data(), data(), number()
    headers = [((data() or b"").decode(errors="surrogateescape"), data()) for _ in range(count)]
    if count < 0 or pos - start != length:
        raise CorruptRecordException(f"a record of {length} bytes has {pos - start}, and {count} headers")
    self._pos = pos
    appended = self.timestamp_type == self.LOG_APPEND_TIME
    timestamp = self.max_timestamp if appended else self.first_timestamp + sent_after
    offset = self.base_offset + number_in_batch
    return _DefaultRecordPy(offset, timestamp, self.timestamp_type, key, value, headers)


REPLACED: dict[type, tuple[Any, ...]] = {PartitionRecords: (_unpack_records,), _DefaultRecordBatchPy: (_read_msg,)}


def keep_bytes() -> None:
    """Have aiokafka's Fetcher keep the bytes of what it fetched."""
    fetcher.MemoryRecords = KeptRecords
