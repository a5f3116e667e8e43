"""A replay in parts that need nothing of each other: copying pieces of the archive, and joining the tasks of a bucket.

    pieces of the archive ──► Copying: a piece ──► COPIED: a row for each record of a chosen task, renamed
                                  │ how many, how late ──► places_of: where each piece begins in the experiment
               rows of a bucket ──► Joining: its tasks ──► MADE: groups, dead letters, and when each left

What becomes of a task depends on its own records alone, in the order in which they are read: by the newest time that
their partition of the topic has had so far, then by topic, then by offset (merged.py). That order, and the offsets in
the experiment, follow from what came before a piece (`PieceStart`). The reducer is that of every other replay,
`driver.joined`; so however the rows are cut into tables, and in whatever order they come, the same rows come out.
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

from schemas.events import Coordinates, DeadLetter
from streams.kafka.record import Record, encoded
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Settings
from streams.tools.archive.segments import ArchiveReader
from streams.tools.distributed.engine import SharedValue, as_batches
from streams.tools.distributed.pieces import ArchivePiece, bucket_of
from streams.tools.replay import driver
from streams.tools.replay.copy import Renaming
from streams.tools.replay.recorded_lag import Trained

BATCH_RECORDS = 1000
AT_ONCE = 5000
"""Records of whole tasks that are joined in one go, at least: they are decoded together."""
NEVER_MS = -1
"""The time of a record that has none, and the least there is."""

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
MADE = pa.schema(
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
ORDER = tuple(MADE.names[:5])


class PieceStart(NamedTuple):
    """Where a piece begins in the experiment."""

    offset: int
    newest_ms: int
    """The newest time of the records before it in its partition."""


# --- copying ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Copying:
    """Reads a piece and renames the policy in what is under a chosen key."""

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
            payload = self.renaming.of(record, topic)
            if payload is None:
                yield bucket, number, -1, newest_ms, record.timestamp_ms, record.key, None
                continue
            newest_ms = max(newest_ms, record.timestamp_ms)
            yield bucket, number, row, newest_ms, record.timestamp_ms, record.key, payload
            row += 1


def counted(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield COUNTED of some rows of COPIED."""
    sums = rows.append_column("lost", rows["payload"].is_null().cast(pa.int64())).group_by("piece")
    found = sums.aggregate([("lost", "count"), ("lost", "sum"), ("newest_ms", "max")])
    records = pc.subtract(found["lost_count"], found["lost_sum"])
    columns = [found["piece"].cast(pa.int64()), records, found["lost_sum"], found["newest_ms_max"]]
    yield from pa.table(columns, schema=COUNTED).to_batches()


def places_of(pieces: list[ArchivePiece], counts: Iterable[pa.Table]) -> tuple[list[PieceStart], Counter[str]]:
    """Return where each piece begins in the experiment, and how many records of each topic there are."""
    records, newest = np.zeros(len(pieces), np.int64), np.full(len(pieces), NEVER_MS)
    found: Counter[str] = Counter()
    for table in counts:
        for piece, number, lost, newest_ms in zip(*table.to_pydict().values(), strict=True):
            records[piece] += number
            newest[piece] = max(newest[piece], newest_ms)
            found[KEYED_BY_TASK[pieces[piece].topic]] += number
            found["unreadable"] += lost
    places: list[PieceStart] = []
    for _, some in groupby(range(len(pieces)), key=lambda number: pieces[number][:2]):
        offset, newest_ms = 0, NEVER_MS
        for number in some:
            places.append(PieceStart(offset, newest_ms))
            offset, newest_ms = offset + int(records[number]), max(newest_ms, int(newest[number]))
    return places, +found


# --- joining ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joining:
    """Joins the tasks of which it is given every record."""

    own: Settings
    """Of the experiment."""
    pieces: SharedValue
    places: SharedValue
    trained: Trained

    def __call__(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield MADE of rows of COPIED, in any order."""
        yield from as_batches(self._rows(self._placed(rows)), MADE, BATCH_RECORDS)

    def _placed(self, rows: pa.Table) -> pa.Table:
        """Return the rows with their places in the experiment, task by task as each is read."""
        rows = rows.filter(rows["payload"].is_valid())
        of = rows["piece"].to_numpy()
        pieces, places = self.pieces.value, self.places.value
        topic = np.array([piece.topic for piece in pieces], np.int32)[of]
        partition = np.array([piece.partition for piece in pieces], np.int32)[of]
        offset = np.array([place.offset for place in places], np.int64)[of] + rows["row"].to_numpy()
        newest = np.maximum(np.array([place.newest_ms for place in places], np.int64)[of], rows["newest_ms"].to_numpy())
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
        names = [topics(self.own.topics)[label].name for label in KEYED_BY_TASK]
        letters = topics(self.own.topics)["dead-letters"]
        for partition, rows in _whole_tasks(placed):
            newest: dict[Coordinates, tuple[int, int]] = {}
            records: dict[Coordinates, Record] = {}
            for key, newest_ms, topic, offset, timestamp_ms, payload in rows:
                at = Coordinates(names[topic], partition, offset)
                newest[at], records[at] = (newest_ms, topic), Record(at, timestamp_ms, key, payload)
            look_up = _RecordsAt(records)
            made = driver.joined(self.own, records.values(), look_up=look_up, note=self.trained.note)
            for number, (record, one) in enumerate(made):
                letter = isinstance(one, DeadLetter)
                key, payload = encoded(one, letters) if isinstance(one, DeadLetter) else (one.key, one.payload)
                place = (*newest[record.at], record.at.offset, number)
                yield partition, *place, record.timestamp_ms, letter, key, payload


@dataclass(frozen=True, slots=True)
class _RecordsAt:
    """The records that are joined, by where they are."""

    records: Mapping[Coordinates, Record]

    def __call__(self, wanted: Iterable[Coordinates]) -> Mapping[Coordinates, Record]:
        return {at: self.records[at] for at in wanted}


def _whole_tasks(placed: pa.Table) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    """Yield the rows of some tasks of one partition, without their partition, AT_ONCE or more until that ends."""
    rows = (row for batch in placed.to_batches(BATCH_RECORDS) for row in zip(*batch.to_pydict().values(), strict=True))
    held: list[tuple[Any, ...]] = []
    number = -1
    for (partition, _), some in groupby(rows, key=lambda row: row[:2]):
        if held and (partition != number or len(held) >= AT_ONCE):
            yield number, held
            held = []
        number = partition
        held += (row[1:] for row in some)
    if held:
        yield number, held
