"""The log in files: a Delta table for each topic, which Polars, DuckDB and pandas can read, too.

    STORE/TOPIC/ ─┬─ _delta_log/00000000000000000007.json                        which files count, and how far it goes
                  └─ _partition=P/_day=D/FIRST-NEXT-SHA-FOOTER.parquet ...       segments, without gaps up to `next`

    ArchiveReader ──► segments, next_offset ──► files for a query      ──► read, fetch ──► Record, exactly as it was

A file that the Delta log does not name does not count, so a sync may be killed anywhere; of two that continue one
partition at the same offset, Delta accepts the first, and the other continues after it. Segments never change:
compaction replaces them.

Before the first record of a segment is returned, its sha256 is computed over the whole file, once per reader. Queries
read columns instead, after `sound`, which checks the file's size and the sha256 of its footer, where all statistics
are.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas import versions
from schemas.events import Coordinates
from schemas.versions import Schema
from streams.errors import LogError
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.columns import records_of, table_schema
from streams.tools.archive.store import Store
from streams.tools.archive.tables import FOOTER_DIGITS, ArchiveExtent, ArchiveTable, Segment, TableState

MERGED_RECORDS = 512
"""Records of each partition in memory while several are read at once."""
KEPT_GROUPS = 8
"""Row groups that stay in memory for the next `fetch`."""
FOOTER_BYTES = 8
"""What ends a Parquet file: the length of its footer, and PAR1."""
SCHEMA_KEY = "streamward.schema"
"""In the footer: the id, in schemas/lock.json, of the schema that the columns were written for."""


def fingerprint(record: Record) -> str:
    """Return a sha256 over a record's partition, offset, time, key, payload and headers, without its topic."""
    digest = hashlib.sha256(f"{record.at.partition} {record.at.offset} {record.timestamp_ms}".encode())
    for part in (record.key, record.payload, repr(record.headers).encode()):
        digest.update(b"-" if part is None else b"%d " % len(part) + part)
    return digest.hexdigest()


class ArchiveReader:
    """The archive of a deployment's topics. Reads only; `streams/tools/archive/sync.py` writes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topics = topics(settings.topics)
        self.store = Store(settings.archive.store)
        self._tables: dict[str, ArchiveTable] = {}
        self._states: dict[str, TableState | None] = {}
        self._verified: set[str] = set()
        self._groups: OrderedDict[tuple[str, int], tuple[Schema, pa.Table]] = OrderedDict()

    def refresh(self) -> None:
        """Read the tables' logs again at the next call: a sync may have continued."""
        self._states.clear()

    def folder(self, label: str) -> str:
        """Return the folder of a topic, relative to the store."""
        return self._topics[label].name

    def label(self, folder: str) -> str:
        """Return the label of the topic with this name."""
        return next(label for label, topic in self._topics.items() if topic.name == folder)

    @property
    def location(self) -> str:
        """The archive's location, as in the settings."""
        return self._settings.archive.store

    def table(self, label: str) -> ArchiveTable:
        """Return the table of a topic, whether it exists or not."""
        if label not in self._tables:
            schema = table_schema(self._topics[label].event)
            self._tables[label] = ArchiveTable(self.store, self.folder(label), label, schema)
        return self._tables[label]

    def state(self, label: str) -> TableState | None:
        """Return what is archived of a topic, or None if it never was. Raises LogError if its log is damaged."""
        if label not in self._states:
            self._states[label] = self.table(label).load()
        return self._states[label]

    def partitions(self, label: str) -> list[int]:
        """Return the partitions that were archived, empty or not."""
        state = self.state(label)
        return [] if state is None else sorted(state.extents)

    def extent(self, label: str, partition: int) -> ArchiveExtent | None:
        """Return what is archived of a partition, or None if it never was. Raises as `state`."""
        state = self.state(label)
        return None if state is None else state.extents.get(partition)

    def segments(self, label: str, partition: int) -> list[Segment]:
        """Return the segments of a partition, in order, without gaps."""
        extent = self.extent(label, partition)
        return [] if extent is None else list(extent.segments)

    def next_offset(self, label: str, partition: int) -> int | None:
        """Return the offset after the last that is archived, or None if the partition never was."""
        extent = self.extent(label, partition)
        return None if extent is None else extent.next

    def last(self, label: str, partition: int) -> Record | None:
        """Return the last record that is archived, if any is; its segment's sha256 is not checked.

        After it there may be offsets that hold no record.
        """
        newest_first = reversed(self.segments(label, partition))
        for _, files in groupby(newest_first, key=lambda segment: segment.first):
            lasts = {self._last_offset(file): file for file in files if file.records}
            if lasts:
                position = Coordinates(self.folder(label), partition, max(lasts))
                return self._find([lasts[position.offset]], position, checked=False)
        return None

    def _last_offset(self, segment: Segment) -> int:
        end = Coordinates(self.folder(segment.label), segment.partition, segment.next)
        *_, offsets = self._group_of(segment, end, checked=False)
        return offsets[-1]

    # --- reading ------------------------------------------------------------------------------------------------------

    def check(self, segment: Segment) -> None:
        """Check that a segment is, byte for byte, what its name says; reads it once. Raises LogError if not."""
        if segment.path in self._verified:
            return
        try:
            sha256 = self.store.sha256(self._name(segment))
        except FileNotFoundError:
            raise _missing_error(segment) from None
        if sha256 != segment.sha256:
            raise _damage_error(segment, f"has sha256 {sha256[:12]}, expected {segment.sha256[:12]}")
        self._verified.add(segment.path)

    def sound(self, segment: Segment) -> None:
        """Check that a segment exists with the right size and footer, without reading it. Raises LogError if not."""
        try:
            with self.store.open(self._name(segment)) as file:
                size = file.seek(0, 2)
                if size != segment.bytes:
                    raise _damage_error(segment, f"has {size} bytes, expected {segment.bytes}")
                if footer_sha256(file, size)[:FOOTER_DIGITS] != segment.footer:
                    raise _damage_error(segment, "has another footer")
        except FileNotFoundError:
            raise _missing_error(segment) from None

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        """Yield every record from `starts` to below `ends`, several partitions merged by timestamp.

        Each partition comes in the order of its offsets. Raises LogError, naming the segment, if one is missing or
        damaged, and if a range is not archived.
        """
        labels = {topic.name: label for label, topic in self._topics.items()}
        parts = [
            self._partition(labels[tp[0]], tp, start, ends[tp]) for tp, start in starts.items() if start < ends[tp]
        ]
        return heapq.merge(*parts, key=lambda record: record.timestamp_ms) if len(parts) > 1 else iter_of(parts)

    def fetch(self, positions: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        """Return the records at these coordinates. Raises LogError, naming those that are not there."""
        labels = {topic.name: label for label, topic in self._topics.items()}
        records: dict[Coordinates, Record] = {}
        for position in sorted(set(positions)):
            segments = self._segments_of(labels[position.topic], position)
            record = self._find(segments, position)
            if record is None:
                raise LogError(f"{position}: no such record; {segments[0].path} has none at this offset")
            records[position] = record
        return records

    def _segments_of(self, label: str, position: Coordinates) -> list[Segment]:
        """Return the segments of the range that an offset is in."""
        segments = self.segments(label, position.partition)
        place = bisect.bisect_right(segments, position.offset, key=lambda segment: segment.first) - 1
        if place < 0 or position.offset >= segments[place].next:
            raise self._not_archived(label, position.partition, position.offset, position.offset + 1)
        return [segment for segment in segments if segment.first == segments[place].first]

    def _find(self, segments: list[Segment], position: Coordinates, *, checked: bool = True) -> Record | None:
        for segment in filter(lambda candidate: candidate.records, segments):
            schema, table, offsets = self._group_of(segment, position, checked=checked)
            place = bisect.bisect_left(offsets, position.offset)
            if place < len(offsets) and offsets[place] == position.offset:
                with _readable(segment):
                    (record,) = records_of(position.topic, position.partition, schema, table.slice(place, 1))
                return record
        return None

    def _not_archived(self, label: str, partition: int, start: int, end: int) -> LogError:
        extent = self.extent(label, partition)
        stored_range = "nothing" if extent is None or not extent.segments else f"{extent.first} to {extent.next - 1}"
        return LogError(
            f"{self.folder(label)}[{partition}]: offsets {start} to {end - 1} were asked for, but the archive in "
            f"{self._settings.archive.store} holds {stored_range} of this partition; run `streamward admin archive "
            "sync`, or ask for what is there (`streamward admin archive list`)"
        )

    def _partition(self, label: str, tp: TopicPartition, start: int, end: int) -> Iterator[Record]:
        extent = self.extent(label, tp[1])
        if extent is None or start < extent.first or end > extent.next:
            raise self._not_archived(label, tp[1], start, end)
        for (first, next_), days in groupby(extent.segments, key=lambda segment: (segment.first, segment.next)):
            if next_ > start and first < end:
                yield from (record for record in self.range(tp, days) if start <= record.at.offset < end)

    def range(self, tp: TopicPartition, segments: Iterable[Segment]) -> Iterator[Record]:
        """Yield the records of the segments of one range, in the order of their offsets. Raises as `read`."""
        days = [self._records(tp, segment) for segment in segments]
        return days[0] if len(days) == 1 else heapq.merge(*days, key=lambda record: record.at.offset)

    def _records(self, tp: TopicPartition, segment: Segment) -> Iterator[Record]:
        with self.open_segment(segment) as file:
            schema = schema_of(file)
            for batch in file.iter_batches(batch_size=MERGED_RECORDS, use_threads=False):
                yield from records_of(*tp, schema, batch)

    @contextlib.contextmanager
    def open_segment(self, segment: Segment, *, checked: bool = True) -> Iterator[pq.ParquetFile]:
        """Open a segment for a block, after checking its sha256. Raises LogError, also for its contents.

        Read it with `use_threads=False`, as it is opened without `pre_buffer`: a thread of Arrow's that still gives
        back a buffer of Python's while the process ends aborts it (Arrow issue 34314).
        """
        if checked:
            self.check(segment)
        with (
            _readable(segment),
            self.store.open(self._name(segment)) as source,
            pq.ParquetFile(source, pre_buffer=False) as file,
        ):
            yield file

    def _group_of(
        self, segment: Segment, position: Coordinates, *, checked: bool
    ) -> tuple[Schema, pa.Table, list[int]]:
        """Return the row group that may hold an offset, and the offsets in it; the last few stay in memory."""
        with self.open_segment(segment, checked=checked) as file:
            column = file.schema_arrow.names.index("_offset")
            lasts = [
                file.metadata.row_group(i).column(column).statistics.max for i in range(file.metadata.num_row_groups)
            ]
            number = min(bisect.bisect_left(lasts, position.offset), len(lasts) - 1)
            key = (segment.path, number)
            if key not in self._groups:
                self._groups[key] = (schema_of(file), file.read_row_group(number, use_threads=False))
                if len(self._groups) > KEPT_GROUPS:
                    self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        schema, table = self._groups[key]
        return schema, table, table["_offset"].to_pylist()

    def _name(self, segment: Segment) -> str:
        return f"{self.folder(segment.label)}/{segment.name}"


def schema_of(file: pq.ParquetFile) -> Schema:
    """Return the schema that a segment's columns were written for. Raises ValueError if this release does not have
    it."""
    schema_id = int((file.metadata.metadata or {}).get(SCHEMA_KEY.encode(), b""))
    schema = versions.files().by_id(schema_id)
    if schema is None:
        raise ValueError(f"it was written under schema id {schema_id}, which this release does not have; update it")
    return schema


def iter_of(parts: list[Iterator[Record]]) -> Iterator[Record]:
    """Yield what the parts hold, one after the other."""
    for part in parts:
        yield from part


def footer_sha256(file: Any, size: int) -> str:
    """Return the sha256 of a Parquet file's footer."""
    file.seek(max(0, size - FOOTER_BYTES))
    end = file.read(FOOTER_BYTES)
    length = min(int.from_bytes(end[:4], "little"), size)
    file.seek(max(0, size - FOOTER_BYTES - length))
    return hashlib.sha256(file.read(length) + end).hexdigest()


@contextlib.contextmanager
def _readable(segment: Segment) -> Iterator[None]:
    """Raise LogError for what Parquet makes of a file that no archive wrote, though its sha256 is right."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError) as exc:
        raise _damage_error(segment, f"holds no records of a topic ({exc!r})") from exc


def _missing_error(segment: Segment) -> LogError:
    return LogError(
        f"{segment.path}: this segment is missing, and with it {segment.records} records of {segment.label}"
        f"[{segment.partition}], offsets {segment.first} to {segment.next - 1}. Restore the file from a copy of the "
        "archive; `streamward admin archive verify` names all that is wrong"
    )


def _damage_error(segment: Segment, damage: str) -> LogError:
    return LogError(
        f"{segment.path}: {damage}: it was changed since it was written. It holds {segment.label}"
        f"[{segment.partition}], offsets {segment.first} to {segment.next - 1}. Restore the file from a copy of the "
        "archive; `streamward admin archive verify` names all that is wrong"
    )
