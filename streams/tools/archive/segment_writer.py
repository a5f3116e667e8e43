"""Write a range of offsets of one partition: a Parquet file per day, and its entry for the Delta log.

    chunk of records ──► columns ──► by day ──► TOPIC/.half-… ──put──► _partition=P/_day=D/FIRST-NEXT-SHA-FOOTER.parquet
                                                           └─► Segment, statistics

Nearly every range has one day. Which columns are compressed how was measured: what hardly repeats gets no dictionary,
and logprobs hardly get smaller, whatever they are compressed with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from schemas import versions
from schemas.events import Event
from streams.arrow.decode import DecodedRows
from streams.files import sha256_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.columns import days_of, segment_schema, stored
from streams.tools.archive.segments import SCHEMA_KEY, footer_sha256
from streams.tools.archive.store import Store
from streams.tools.archive.tables import COUNTED, Segment, segment_name, stats_json

UNIQUE = ("_payload", "_offset", "_timestamp", "text", "error", "response_id", "reward_id", "group_id", "control_id")
"""Columns whose values hardly repeat, so that a dictionary of them would be useless."""


@dataclass
class _DayFile:
    """A file that is being written, a row group per chunk."""

    path: Path
    writer: pq.ParquetWriter
    records: int = 0
    bad: int = 0


@dataclass
class RangeWriter:
    """The files of a range of offsets while they are written. A context manager: what was not put is removed."""

    settings: Settings
    store: Store
    label: str
    partition: int
    records: int = 0
    bad: int = 0
    payload_bytes: int = 0
    next: int = 0
    """The offset after the last record; 0 if there was none."""
    _files: dict[str, _DayFile] = field(default_factory=dict)
    _places: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        topic = topics(self.settings.topics)[self.label]
        self._event, self._folder = topic.event, topic.name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._places:
            for file in self._files.values():
                with contextlib.suppress(OSError, pa.ArrowException):  # of a disk that is full: the first said so
                    file.writer.close()

    @property
    def full(self) -> bool:
        """Whether the range has reached its limits."""
        limits = self.settings.archive
        return self.records >= limits.segment_records or self.payload_bytes >= limits.segment_bytes

    def add(self, rows: DecodedRows) -> None:
        """Write a chunk of records of this partition."""
        if not rows.offsets:
            return
        days = days_of(rows.timestamps)
        if days[0] == days[-1] and len(set(days)) == 1:
            self._add(days[0], rows)
        else:
            for day in sorted(set(days)):
                self._add(day, _chosen(rows, [row for row, each in enumerate(days) if each == day]))
        self.records += len(rows.offsets)
        self.payload_bytes += sum(map(len, filter(None, rows.payloads)))
        self.next = rows.offsets[-1] + 1

    def _add(self, day: str, rows: DecodedRows) -> None:
        found = stored(self._event, rows)
        file = self._files.get(day)
        if file is None:
            file = self._files[day] = self._begun()
        file.writer.write_table(found.table, row_group_size=len(found.table))
        file.records += len(found.table)
        file.bad += found.bad
        self.bad += found.bad

    def closed(self, first: int, next_: int) -> Iterator[tuple[Segment, str]]:
        """Finish the files of the range, at least one, and yield the entry and the statistics of each."""
        if not self._files:
            self._add_nothing()
        for day, file in sorted(self._files.items()):
            file.writer.close()
            yield self._entry(day, file, (first, next_))

    def _add_nothing(self) -> None:
        """Begin a file without records: of a range in which a transaction left no record."""
        self._files[days_of([0])[0]] = self._begun()

    def _begun(self) -> _DayFile:
        path = self._places.enter_context(self.store.half(self._folder))
        return _DayFile(path, _writer(self._event, path))

    def _entry(self, day: str, file: _DayFile, offsets: tuple[int, int]) -> tuple[Segment, str]:
        sha256 = sha256_of(file.path)
        with file.path.open("rb") as source:
            size = source.seek(0, 2)
            footer = footer_sha256(source, size)
        least, most, nulls = _statistics(pq.read_metadata(file.path))
        name = segment_name(self.partition, day, offsets, sha256, footer)
        self.store.put(file.path, f"{self._folder}/{name}")
        segment = Segment(
            label=self.label, partition=self.partition, day=day, first=offsets[0], next=offsets[1], name=name,
            path=self.store.where(f"{self._folder}/{name}"), sha256=sha256, footer=footer, records=file.records,
            bad=file.bad, bytes=size, from_ms=0, to_ms=0, schema_ids=(),
        )  # fmt: skip
        return segment, stats_json(file.records, least, most, {**nulls, "_bad": file.records - file.bad})


def _chosen(rows: DecodedRows, which: list[int]) -> DecodedRows:
    columns = [[column[row] for row in which] if column else [] for column in rows[1:]]
    return DecodedRows(rows.topic, *columns)  # type: ignore[arg-type]


def _writer(event: type[Event], path: Path) -> pq.ParquetWriter:
    newest = versions.files().newest(event)
    schema = segment_schema(event)
    leaves = _leaves(schema)
    writer = pq.ParquetWriter(
        path,
        schema,
        compression={name: "snappy" if is_logprob else "zstd" for name, is_logprob in leaves.items()},
        compression_level={name: 1 for name, is_logprob in leaves.items() if not is_logprob},
        use_dictionary=[name for name in schema.names if name not in UNIQUE],
        write_statistics=[name for name in leaves if ".list." not in name],
        write_page_checksum=True,
        store_schema=False,
    )
    writer.add_key_value_metadata({SCHEMA_KEY: str(newest.id)})
    return writer


@cache
def _leaves(schema: pa.Schema) -> dict[str, bool]:
    """Return the path of each column that a Parquet file has, and whether it holds a number for each token sampled."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    columns = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return {
        columns.column(n).path: columns.column(n).physical_type == "FLOAT" and ".list." in columns.column(n).path
        for n in range(len(columns))
    }


def _statistics(metadata: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Return the least, the greatest and the number of nulls of the columns that have them in the Delta log."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            name, found = column.path_in_schema, column.statistics
            if found is None or name not in COUNTED:
                continue
            if found.has_null_count:
                nulls[name] = nulls.get(name, 0) + found.null_count
            if found.has_min_max and name != "_bad":
                least[name] = min(least.get(name, found.min), found.min)
                most[name] = max(most.get(name, found.max), found.max)
    return least, most, nulls
