"""Write one segment: records as a Parquet file, a row group per chunk.

Beside the columns of the event each row has the record as it was (RAW_FIELDS), so that also a record that is not an
event can be restored byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.events import Event
from streams.arrow.decode import RECORD_FIELDS, DecodedRows, arrow_schema, judge, record_columns
from streams.files import sha256_of
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.manifests import Segment
from streams.tools.archive.segments import fingerprint, footer_sha256

RAW_FIELDS = [
    pa.field("_key_bytes", pa.binary()),
    pa.field("_headers", pa.list_(pa.struct([pa.field("name", pa.binary()), pa.field("value", pa.binary())]))),
    pa.field("_payload", pa.binary()),
    pa.field("_bad", pa.string()),
]
"""The record as it was: its key if that is not text, and why it is not an event, else null."""

UNIQUE = ("_payload", "_offset", "_timestamp", "text", "error", "response_id", "reward_id", "group_id", "control_id")
"""Columns whose values hardly repeat, so that a dictionary of them would be useless."""


def segment_schema(event: type[Event]) -> pa.Schema:
    """Return the columns of a segment: those of a decoded table, and RAW_FIELDS."""
    return pa.schema([*arrow_schema(event), *RAW_FIELDS])


def record_in(rows: DecodedRows, row: int) -> Record:
    """Return one of the rows as a record."""
    return Record(rows.at(row), rows.timestamps[row], rows.keys[row], rows.payloads[row], rows.headers[row])


@dataclass
class SegmentWriter:
    """A Parquet file that is being written, a row group per chunk."""

    settings: Settings
    label: str
    path: Path
    records: int = 0
    bad: int = 0
    payload_bytes: int = 0
    next: int = 0
    last_sha256: str = ""
    times: list[int] = field(default_factory=list)
    ids: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._event = topics(self.settings.topics)[self.label].event
        schema = segment_schema(self._event)
        self._writer = pq.ParquetWriter(
            self.path,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in schema.names if name not in UNIQUE],
            write_page_checksum=True,
        )

    @property
    def full(self) -> bool:
        """Whether the file has reached its limits."""
        limits = self.settings.archive
        return self.records >= limits.segment_records or self.payload_bytes >= limits.segment_bytes

    def add(self, rows: DecodedRows) -> None:
        """Write a chunk of records."""
        if not rows.offsets:
            return
        table, bad = _table(self._event, rows)
        self._writer.write_table(table, row_group_size=len(table))
        self.records += len(table)
        self.bad += bad
        self.payload_bytes += sum(map(len, filter(None, rows.payloads)))
        self.next = rows.offsets[-1] + 1
        self.last_sha256 = fingerprint(record_in(rows, -1))
        self.times = [min(rows.timestamps + self.times[:1]), max(rows.timestamps + self.times[1:])]
        self.ids.update(each for each in table["_schema_id"].unique().to_pylist() if each is not None)

    def closed(self, partition: int, first: int, next_: int) -> Segment:
        """Finish the file, and return its entry for the manifest."""
        self._writer.close()
        sha256 = sha256_of(self.path)
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            footer = footer_sha256(file, size)
        from_ms, to_ms = self.times or (0, 0)
        return Segment(
            label=self.label,
            partition=partition,
            first=first,
            next=next_,
            path=str(self.path),
            sha256=sha256,
            footer_sha256=footer,
            last_sha256=self.last_sha256,
            records=self.records,
            bad=self.bad,
            bytes=size,
            payload_bytes=self.payload_bytes,
            from_ms=from_ms,
            to_ms=to_ms,
            schema_ids=tuple(sorted(self.ids)),
        )


def _table(event: type[Event], rows: DecodedRows) -> tuple[pa.Table, int]:
    """Return the rows as a piece of a segment, and how many of them are not events."""
    judged = judge(event, rows.payloads)
    columns = record_columns(rows, judged)
    places = {field.name: number for number, field in enumerate(RECORD_FIELDS)}
    keys = columns[places["_key"]].cast(pa.binary()).to_pylist()
    odd = [raw if raw != key else None for raw, key in zip(rows.keys, keys, strict=True)]
    reasons = [None if row not in judged.wrong else judged.wrong[row].reason for row in range(len(rows.payloads))]
    arrays = [
        pa.array(odd, pa.binary()),
        _headers(rows),
        pa.array(rows.payloads, pa.binary()),
        pa.array(reasons, pa.string()),
    ]
    return pa.table([*columns, *judged.fields(event), *arrays], schema=segment_schema(event)), len(judged.wrong)


def _headers(rows: DecodedRows) -> pa.Array:
    """Return the headers as a column; a list for each of so many rows would keep the garbage collector busy."""
    pairs = [pair for each in rows.headers for pair in each]
    ends = accumulate(map(len, rows.headers), initial=0)
    inner = pa.StructArray.from_arrays(
        [
            pa.array([name.encode(errors="surrogateescape") for name, _ in pairs], pa.binary()),
            pa.array([value for _, value in pairs], pa.binary()),
        ],
        fields=list(RAW_FIELDS[1].type.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(list(ends), pa.int32()), inner)
