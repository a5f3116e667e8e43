"""Write a range of offsets of one partition: a Parquet file per day, and its entry for the Delta log.

    chunk of records ──► columns, by day ──► memory ──► Parquet ──► TOPIC/.half-… ──put──► _partition=P/_day=D/…
                                                        └─► sha256, Segment, statistics

Nearly every range has one day. Polars writes the Parquet: for lists of tokens, which are most of the data, it takes a
quarter of pyarrow's time. It takes whole tables, so a range is in memory until it is closed; archive.segment_bytes
bounds it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from schemas import versions
from schemas.events import Event
from streams.arrow.decode import CHUNK_BYTES, CHUNK_RECORDS, DecodedRows
from streams.kafka.headers import LEFT_OUT
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.columns import days_of, segment_schema, store_rows
from streams.tools.archive.segments import SCHEMA_KEY, footer_sha256
from streams.tools.archive.store import Store
from streams.tools.archive.tables import COUNTED, Segment, segment_name, stats_json

LEVEL = 1
"""Of zstd, which is three times as fast as at its default, 3, and a few percent larger."""


@dataclass
class _Day:
    """The records of one day in a range."""

    tables: list[pa.Table] = field(default_factory=list)
    bad: int = 0
    payload_bytes: int = 0


@dataclass
class RangeWriter:
    """The records of a range of offsets, in memory until they are written."""

    settings: Settings
    store: Store
    label: str
    partition: int
    records: int = 0
    bad: int = 0
    headers_left_out: int = 0
    """Records with headers that were left out (streams/kafka/headers.py)."""
    payload_bytes: int = 0
    next: int = 0
    """The offset after the last record; 0 if it is empty."""
    _days: dict[str, _Day] = field(default_factory=dict)

    def __post_init__(self) -> None:
        topic = topics(self.settings.topics)[self.label]
        self._event, self._folder = topic.event, topic.name

    @property
    def full(self) -> bool:
        """Whether the range has reached its limits."""
        limits = self.settings.archive
        return self.records >= limits.segment_records or self.payload_bytes >= limits.segment_bytes

    def add(self, rows: DecodedRows) -> None:
        """Take a chunk of records of this partition."""
        if not rows.offsets:
            return
        days = days_of(rows.timestamps)
        if days.count(days[0]) == len(days):
            self._add(days[0], rows)
        else:
            for day in sorted(set(days)):
                self._add(day, _select_rows(rows, [row for row, row_day in enumerate(days) if row_day == day]))
        self.records += len(rows.offsets)
        self.next = rows.offsets[-1] + 1

    def _add(self, day: str, rows: DecodedRows) -> None:
        columns = store_rows(self._event, rows)
        day_records, size = self._days.setdefault(day, _Day()), sum(map(len, filter(None, rows.payloads)))
        day_records.tables.append(columns.table)
        day_records.bad += columns.bad
        day_records.payload_bytes += size
        self.bad += columns.bad
        self.headers_left_out += rows.headers.count(LEFT_OUT)
        self.payload_bytes += size

    def write_files(self, first: int, next_: int) -> Iterator[tuple[Segment, str]]:
        """Write the files of the range, at least one, and yield the entry and the statistics of each.

        A range in which a transaction left no record is a file without records. Raises LogError if the store refuses.
        """
        for day, day_records in sorted(self._days.items()) or [(days_of([0])[0], _Day())]:
            yield self._write_file(day, day_records, (first, next_))

    def _write_file(self, day: str, day_records: _Day, offsets: tuple[int, int]) -> tuple[Segment, str]:
        table = pa.concat_tables([segment_schema(self._event).empty_table(), *day_records.tables])
        day_records.tables.clear()
        data = _parquet(self._event, table, day_records.payload_bytes)
        sha256, footer = hashlib.sha256(data).hexdigest(), footer_sha256(io.BytesIO(data), len(data))
        name = segment_name(self.partition, day, offsets, sha256, footer)
        self.store.write(f"{self._folder}/{name}", data, half_in=self._folder)
        segment = Segment(
            label=self.label, partition=self.partition, day=day, first=offsets[0], next=offsets[1], name=name,
            path=self.store.location(f"{self._folder}/{name}"), sha256=sha256, footer=footer, records=len(table),
            bad=day_records.bad, bytes=len(data), from_ms=0, to_ms=0, schema_ids=(),
        )  # fmt: skip
        return segment, stats_json(len(table), *_statistics(table))


def _select_rows(rows: DecodedRows, numbers: list[int]) -> DecodedRows:
    columns = [[column[row] for row in numbers] if column else [] for column in rows[1:]]
    return DecodedRows(rows.topic, *columns)  # type: ignore[arg-type]


def _parquet(event: type[Event], table: pa.Table, payload_bytes: int) -> bytes:
    """Return a Parquet file, with row groups as large as what is decoded at once."""
    rows = min(CHUNK_RECORDS, max(1, CHUNK_BYTES * len(table) // max(1, payload_bytes)))
    newest, target = versions.files().newest(event), io.BytesIO()
    frame = pl.from_arrow(table, rechunk=False)
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 - of a table
    frame.write_parquet(
        target, compression="zstd", compression_level=LEVEL, row_group_size=rows,
        metadata={SCHEMA_KEY: str(newest.id)},
    )  # fmt: skip
    return target.getvalue()


def _statistics(table: pa.Table) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Return the least, the greatest and the number of nulls of the columns that have them in the Delta log."""
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls = {name: table.column(name).null_count for name in COUNTED}
    for name in COUNTED:
        span = pc.min_max(table.column(name))
        if span["min"].is_valid:
            smallest[name], largest[name] = span["min"].as_py(), span["max"].as_py()
    return smallest, largest, nulls
