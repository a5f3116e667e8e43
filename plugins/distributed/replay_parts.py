"""A replay in parts that need nothing of each other: copying pieces of the archive, and joining the tasks of a bucket.

    pieces of the archive ──► Copying: a piece ──► COPIED: a row for each record of a chosen task, renamed
                                  │ count_rows ──► piece_starts: where each piece begins in the experiment
               rows of a bucket ──► Joining: its tasks ──► JOINED: groups, dead letters, and when each left

The groups of a task depend on its own records alone, in the order in which they are read: by the newest time that
their partition of the topic has had so far, then by topic, then by offset (merge_by_time.py). That order, and the
offsets in the experiment, follow from the records before a piece (`PieceStart`). The reducer is that of every other
replay, `driver.join_states`; so the result is the same however the rows are cut into tables, and in whatever order they
come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plugins.distributed.data_engine import SharedValue, as_batches
from plugins.distributed.pieces import ArchivePiece, bucket_of
from schemas.events import Coordinates, DeadLetter
from streams.kafka.record import Record
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Settings
from streams.tools.archive.segments import ArchiveReader
from streams.tools.replay import driver
from streams.tools.replay.copy import Renaming
from streams.tools.replay.recorded_lag import Trained

BATCH_RECORDS = 1000
CHUNK_RECORDS = 5000
"""Records of whole tasks that are joined in one go, at least: they are decoded together."""
NEVER_MS = -1
"""The time of a record that has none, below any other."""

COPIED = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("piece", pa.int32()),
        pa.field("row", pa.int64()),
        pa.field("newest_ms", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary()),
    ]
)
"""A record for the experiment: its place among those of its piece, and the newest time of the piece so far. A record
that could not be decoded has no payload, and no place: -1."""
COUNTED = pa.schema([pa.field(name, pa.int64()) for name in ("piece", "records", "unreadable", "newest_ms")])
JOINED = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("newest_ms", pa.int64()),
        pa.field("topic", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("number", pa.int32()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("letter", pa.bool_()),
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary()),
    ]
)
"""A group or a dead letter, its record's time, and after which record it left: the first five columns, in which order a
partition reads its records."""
ORDER = tuple(JOINED.names[:5])


class PieceStart(NamedTuple):
    """Where a piece begins in the experiment."""

    offset: int
    newest_ms: int
    """The newest time of the records before it in its partition."""


# --- copying ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Copying:
    """Reads a piece and renames the policy in the records of the chosen keys."""

    settings: Settings
    """Of the source, with the archive's whole path."""
    pieces: SharedValue
    keys: SharedValue
    renaming: Renaming
    buckets: int

    def __call__(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece. Raises LogError, naming the segment, if it is missing or damaged."""
        yield from as_batches(self._rows(number, self.pieces.value[number]), COPIED, BATCH_RECORDS)

    def _rows(self, number: int, piece: ArchivePiece) -> Iterator[tuple[Any, ...]]:
        topic, keys = topics(self.settings.topics)[KEYED_BY_TASK[piece.topic]], self.keys.value
        records = ArchiveReader(self.settings).range((topic.name, piece.partition), piece.segments)
        row, newest_ms = 0, NEVER_MS
        for record in records:
            if record.key is None or record.key not in keys or not piece.first <= record.at.offset < piece.next:
                continue
            bucket = bucket_of(record.key, self.buckets, piece.partition)
            payload = self.renaming.payload(record, topic)
            if payload is None:
                yield bucket, number, -1, newest_ms, record.timestamp_ms, record.key, None
                continue
            newest_ms = max(newest_ms, record.timestamp_ms)
            yield bucket, number, row, newest_ms, record.timestamp_ms, record.key, payload
            row += 1


def count_rows(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield COUNTED of some rows of COPIED."""
    sums = rows.append_column("lost", rows["payload"].is_null().cast(pa.int64())).group_by("piece")
    totals = sums.aggregate([("lost", "count"), ("lost", "sum"), ("newest_ms", "max")])
    records = pc.subtract(totals["lost_count"], totals["lost_sum"])
    columns = [totals["piece"].cast(pa.int64()), records, totals["lost_sum"], totals["newest_ms_max"]]
    yield from pa.table(columns, schema=COUNTED).to_batches()


def piece_starts(pieces: list[ArchivePiece], tables: Iterable[pa.Table]) -> tuple[list[PieceStart], Counter[str]]:
    """Return where each piece begins in the experiment, and the number of records of each topic. `tables`: COUNTED."""
    records, newest = np.zeros(len(pieces), np.int64), np.full(len(pieces), NEVER_MS)
    counts: Counter[str] = Counter()
    for table in tables:
        for piece, number, lost, newest_ms in zip(*table.to_pydict().values(), strict=True):
            records[piece] += number
            newest[piece] = max(newest[piece], newest_ms)
            counts[KEYED_BY_TASK[pieces[piece].topic]] += number
            counts["unreadable"] += lost
    starts: list[PieceStart] = []
    for _, numbers in groupby(range(len(pieces)), key=lambda number: pieces[number][:2]):
        offset, newest_ms = 0, NEVER_MS
        for number in numbers:
            starts.append(PieceStart(offset, newest_ms))
            offset, newest_ms = offset + int(records[number]), max(newest_ms, int(newest[number]))
    return starts, +counts


# --- joining ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joining:
    """Joins tasks, given all records of each."""

    settings: Settings
    """Of the experiment."""
    pieces: SharedValue
    starts: SharedValue
    trained: Trained

    def __call__(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield JOINED of rows of COPIED, in any order."""
        yield from as_batches(self._rows(self._place(rows)), JOINED, BATCH_RECORDS)

    def _place(self, rows: pa.Table) -> pa.Table:
        """Return the rows with their places in the experiment, task by task as each is read."""
        rows = rows.filter(rows["payload"].is_valid())
        numbers = rows["piece"].to_numpy()
        pieces, starts = self.pieces.value, self.starts.value
        topic = np.array([piece.topic for piece in pieces], np.int32)[numbers]
        partition = np.array([piece.partition for piece in pieces], np.int32)[numbers]
        offset = np.array([start.offset for start in starts], np.int64)[numbers] + rows["row"].to_numpy()
        newest = np.array([start.newest_ms for start in starts], np.int64)[numbers]
        newest = np.maximum(newest, rows["newest_ms"].to_numpy())
        table = pa.table(
            {
                "partition": partition,
                "key": rows["key"],
                "newest_ms": newest,
                "topic": topic,
                "offset": offset,
                "timestamp_ms": rows["timestamp_ms"],
                "payload": rows["payload"],
            }
        )
        return table.sort_by([(name, "ascending") for name in table.column_names[:5]])

    def _rows(self, placed: pa.Table) -> Iterator[tuple[Any, ...]]:
        names = [topics(self.settings.topics)[label].name for label in KEYED_BY_TASK]
        letters = topics(self.settings.topics)["dead-letters"]
        for partition, rows in _whole_tasks(placed):
            newest: dict[Coordinates, tuple[int, int]] = {}
            records: dict[Coordinates, Record] = {}
            for key, newest_ms, topic, offset, timestamp_ms, payload in rows:
                coordinates = Coordinates(names[topic], partition, offset)
                newest[coordinates] = newest_ms, topic
                records[coordinates] = Record(coordinates, timestamp_ms, key, payload)
            look_up = _RecordsAt(records)
            results = driver.join_states(self.settings, records.values(), look_up=look_up, note=self.trained.note)
            for number, (record, result) in enumerate(results):
                letter = isinstance(result, DeadLetter)
                key, payload = driver.encode_result(result, letters)
                place = (*newest[record.at], record.at.offset, number)
                yield partition, *place, record.timestamp_ms, letter, key, payload


@dataclass(frozen=True, slots=True)
class _RecordsAt:
    """The records that are joined, by their coordinates."""

    records: Mapping[Coordinates, Record]

    def __call__(self, places: Iterable[Coordinates]) -> Mapping[Coordinates, Record]:
        return {coordinates: self.records[coordinates] for coordinates in places}


def _whole_tasks(placed: pa.Table) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    """Yield the rows of some tasks of one partition, without their partition, CHUNK_RECORDS or more until that ends."""
    rows = (row for batch in placed.to_batches(BATCH_RECORDS) for row in zip(*batch.to_pydict().values(), strict=True))
    pending: list[tuple[Any, ...]] = []
    number = -1
    for (partition, _), task_rows in groupby(rows, key=lambda row: row[:2]):
        if pending and (partition != number or len(pending) >= CHUNK_RECORDS):
            yield number, pending
            pending = []
        number = partition
        pending += (row[1:] for row in task_rows)
    if pending:
        yield number, pending
