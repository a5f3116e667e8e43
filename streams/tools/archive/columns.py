"""The columns of an archived topic: the fields of its events, and what is needed to return each record unchanged.

    DecodedRows ──► store_rows ──► columns, `_bad`          columns ──► records_of ──► Record, exactly as it was
                      └─ the payload is what the columns encode to: `_payload` is null

The members of a group are stored again without their tokens (`_members`): a reader reads whole lists, and most
questions about rewards do not need tokens.

A payload is stored in addition to its columns only where necessary. Most payloads equal, byte for byte, the encoding of
their columns: archiving checks this, and reading encodes them again. Other payloads are stored, and so are values that
no column can hold: a key that is not text, a time that Delta does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas import ids as numbering, versions
from schemas.events import AdvantagedGroup, Coordinates, Event
from schemas.versions import Schema
from streams.arrow import encode
from streams.arrow.decode import RECORD_FIELDS, DecodedRows, Judged, arrow_schema, judge, texts
from streams.arrow.types import TIME
from streams.kafka.headers import decode_headers
from streams.kafka.record import Record
from streams.tools.archive.tables import COUNTED, SPLIT_BY

RAW_FIELDS = [
    pa.field("_key_bytes", pa.binary()),
    pa.field("_time_ms", pa.int64()),
    pa.field("_headers", pa.list_(pa.struct([pa.field("name", pa.binary()), pa.field("value", pa.binary())]))),
    pa.field("_payload", pa.binary()),
    pa.field("_bad", pa.string()),
]
"""What the other columns do not tell: the key if that is not text, the time if it is beyond LAST_MS or before FIRST_MS,
the payload unless it is what the columns encode to, and why it is not an event, else null."""
MEMBERS = "_members"
"""What `responses` of a group holds, without PER_TOKEN."""
PER_TOKEN = ("prompt_token_ids", "completion_token_ids", "logprobs", "loss_mask", "branches")
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: no engine that reads Delta tables has other days."""
OUT_OF_RANGE = "out_of_range"
"""The reason of an event that has a time which no column can hold."""
_DAY_MS = 86_400_000
_STORED_TIME = pa.timestamp("us", tz="UTC")


class Stored(NamedTuple):
    """Records as the columns of a segment, in the order of `segment_schema`."""

    table: pa.Table
    bad: int


def segment_schema(event: type[Event]) -> pa.Schema:
    """Return the columns of a segment's file: those of a decoded table and RAW_FIELDS, without SPLIT_BY.

    Times have microseconds, as Delta wants them.
    """
    return _stored_schema(arrow_schema(event), has_members=event is AdvantagedGroup)


@cache
def _stored_schema(decoded: pa.Schema, *, has_members: bool) -> pa.Schema:
    fields = [*decoded, *RAW_FIELDS]
    if has_members:
        members = _per_record_fields(decoded.field("responses").type.value_type)
        fields.insert(len(decoded), pa.field(MEMBERS, pa.list_(pa.struct(members))))
    return pa.schema([field.with_type(_as_stored(field.type)) for field in fields if field.name not in SPLIT_BY])


def _per_record_fields(kind: pa.StructType) -> list[pa.Field]:
    return [field for field in kind if field.name not in PER_TOKEN]


def _members(responses: pa.ListArray) -> pa.ListArray:
    """Return the members of groups without what is per token, over the same memory."""
    fields = _per_record_fields(responses.type.value_type)
    members = pa.StructArray.from_arrays([responses.values.field(field.name) for field in fields], fields=fields)
    mask = responses.is_null() if responses.null_count else None
    return pa.ListArray.from_arrays(responses.offsets, members, mask=mask)


def table_schema(event: type[Event]) -> pa.Schema:
    """Return the columns of a topic's table: `_partition`, `_day`, and those of its files, those of COUNTED first."""
    columns = segment_schema(event)
    counted = [columns.field(name) for name in COUNTED]
    uncounted = [column for column in columns if column.name not in COUNTED]
    return pa.schema([pa.field("_partition", pa.int32()), pa.field("_day", pa.date32()), *counted, *uncounted])


def _as_stored(kind: pa.DataType) -> pa.DataType:
    if kind == TIME:
        return _STORED_TIME
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_stored(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _as_stored(kind.item_type))
    return pa.list_(_as_stored(kind.value_type)) if pa.types.is_list(kind) else kind


def days_of(timestamps: list[int]) -> list[str]:
    """Return the day of each time, in UTC."""
    days = np.clip(np.asarray(timestamps, np.int64), FIRST_MS, LAST_MS) // _DAY_MS
    if len(days) and days.min() == days.max():
        return [str(days[0].astype("datetime64[D]"))] * len(days)
    numbers, places = np.unique(days, return_inverse=True)
    names = [str(day) for day in numbers.astype("datetime64[D]")]
    return [names[place] for place in places]


def record_in(rows: DecodedRows, row: int) -> Record:
    """Return one of the rows as a record."""
    headers = rows.headers[row] if rows.headers else ()
    return Record(rows.at(row), rows.timestamps[row], rows.keys[row], rows.payloads[row], headers)


def store_rows(event: type[Event], rows: DecodedRows) -> Stored:
    """Return the rows as columns, and how many of them are not events. They are decoded at once, as in `judge`."""
    judged = judge(event, rows.payloads, exact=True, reading="closed")
    fields = judged.fields(event)
    late = _late(fields, len(rows.payloads))
    ids, count = judged.schema_ids, len(rows.payloads)
    schema_ids = pa.repeat(pa.scalar(ids[0], pa.int32()), count) if len(ids) == 1 else pa.array(ids, pa.int32())
    if judged.exact and not late.any():
        payloads = pa.nulls(count, pa.binary())
    else:
        fields = [_with_nulls(column, late) for column in fields]
        payloads = _payloads(event, rows, judged, fields, schema_ids, late)
    reasons = {row: poison.reason for row, poison in judged.wrong.items()} | dict.fromkeys(
        np.flatnonzero(late).tolist(), OUT_OF_RANGE
    )
    times = np.asarray(rows.timestamps, np.int64)
    beyond = (times < FIRST_MS) | (times > LAST_MS)
    keys, place = texts(rows.keys), arrow_schema(event).get_field_index("responses") - len(RECORD_FIELDS)
    columns = [
        pa.array(np.asarray(rows.offsets, np.int64)),
        pa.array(np.clip(times, FIRST_MS, LAST_MS)).cast(TIME),
        keys,
        schema_ids,
        *fields,
        *([_members(fields[place])] if event is AdvantagedGroup else []),
        _odd_keys(rows.keys, keys),
        pa.array(times, mask=~beyond) if beyond.any() else pa.nulls(count, pa.int64()),
        _headers(rows),
        payloads,
        pa.array([reasons.get(row) for row in range(count)], pa.string()) if reasons else pa.nulls(count, pa.string()),
    ]
    schema = segment_schema(event)
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return Stored(pa.table(arrays, schema=schema), len(reasons))


def _payloads(
    event: type[Event],
    rows: DecodedRows,
    judged: Judged,
    fields: list[pa.Array],
    schema_ids: pa.Array,
    late: np.ndarray[Any, Any],
) -> pa.Array:
    """Return the payloads that must be kept: each that its columns do not encode to."""
    newest = versions.files().newest(event)
    current_ids = numbering.current().ids_meaning(newest)
    ids = schema_ids.to_pylist()
    wrong = judged.wrong.keys() | set(np.flatnonzero(late).tolist())
    whole = [row for row, schema_id in enumerate(ids) if schema_id in current_ids and row not in wrong]
    payloads: list[bytes | None] = list(rows.payloads)
    chosen = pa.array(whole, pa.int64())
    names = [field.name for field in arrow_schema(event)][len(RECORD_FIELDS) :]
    events = pa.StructArray.from_arrays([column.take(chosen) for column in fields], names=names)
    for row, again in zip(whole, encode.payloads(newest, schema_ids.take(chosen), events), strict=True):
        if payloads[row] == again:
            payloads[row] = None
    return pa.array(payloads, pa.binary())


def _late(fields: Iterable[pa.Array], count: int) -> np.ndarray[Any, Any]:
    """Return which rows have a time that no column can hold."""
    late = np.zeros(count, np.bool_)
    for column in fields:
        if column.type == TIME:
            times = column.cast(pa.int64())
            span = pc.min_max(times)
            low, high = span["min"].as_py(), span["max"].as_py()
            if low is not None and (low < FIRST_MS or high > LAST_MS):
                beyond = pc.or_(pc.less(times, FIRST_MS), pc.greater(times, LAST_MS))
                late |= np.asarray(pc.fill_null(beyond, False))
    return late


def _with_nulls(column: pa.Array, late: np.ndarray[Any, Any]) -> pa.Array:
    """Return the column with nulls in these rows."""
    if not late.any():
        return column
    return column.take(pa.array(np.arange(len(late)), mask=late))


def _odd_keys(keys: list[bytes | None], texts: pa.Array) -> pa.Array:
    """Return the keys that are not what is shown of them."""
    text_bytes = texts.cast(pa.binary())
    key_bytes = pa.array(keys, pa.binary())
    if text_bytes.equals(key_bytes):
        return pa.nulls(len(keys), pa.binary())
    return pa.array(
        [key if key != text else None for key, text in zip(keys, text_bytes.to_pylist(), strict=True)], pa.binary()
    )


def _headers(rows: DecodedRows) -> pa.Array:
    """Return the headers as a column; a list for each of so many rows would keep the garbage collector busy."""
    pairs = [pair for headers in rows.headers for pair in headers] if any(rows.headers) else []
    ends = accumulate(map(len, rows.headers), initial=0) if pairs else [0] * (len(rows.payloads) + 1)
    kind = RAW_FIELDS[2].type
    inner = pa.StructArray.from_arrays(
        [
            pa.array([name.encode() for name, _ in pairs], pa.binary()),
            pa.array([value for _, value in pairs], pa.binary()),
        ],
        fields=list(kind.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(list(ends), pa.int32()), inner)


# --- and back ---------------------------------------------------------------------------------------------------------


def records_of(topic: str, partition: int, schema: Schema, batch: Any) -> Iterator[Record]:
    """Yield the records of a piece of a segment, as they were in the log. `schema`: the one that its columns were
    written for. Raises pyarrow's and pyruhvro's errors for invalid data.
    """
    table = as_archived(pa.table(batch) if isinstance(batch, pa.RecordBatch) else batch).combine_chunks()
    offsets, times, keys, odd_keys, odd_times, headers = (
        table.column(name)
        for name in ("_offset", "_timestamp", "_key", "_key_bytes", "_time_ms", "_headers")
    )  # fmt: skip
    rows = zip(
        offsets.to_pylist(),
        times.cast(TIME).cast(pa.int64()).to_pylist(),
        keys.cast(pa.binary()).to_pylist(),
        odd_keys.to_pylist(),
        odd_times.to_pylist(),
        headers.to_pylist(),
        payloads_of(schema, table),
        strict=True,
    )
    for offset, timestamp_ms, key, odd_key, odd_ms, pairs, payload in rows:
        yield Record(
            Coordinates(topic, partition, offset),
            timestamp_ms if odd_ms is None else odd_ms,
            key if odd_key is None else odd_key,
            payload,
            decode_headers((pair["name"], pair["value"]) for pair in pairs),
        )


def payloads_of(schema: Schema, table: pa.Table) -> list[bytes | None]:
    """Return the payloads of a piece of a segment, encoded again where they were not kept."""
    table = as_archived(table)
    payloads: list[bytes | None] = table.column("_payload").to_pylist()
    is_encoded = pc.and_(table.column("_payload").is_null(), table.column("_bad").is_null())
    places = np.flatnonzero(np.asarray(is_encoded)).tolist()
    if not places:
        return payloads
    encoded = table if len(places) == len(table) else table.filter(is_encoded)
    names = [field["name"] for field in schema.definition["fields"]]
    events = pa.StructArray.from_arrays([_as_array(encoded.column(name)) for name in names], names=names)
    ids = _as_array(encoded.column("_schema_id"))
    for place, payload in zip(places, encode.payloads(schema, ids, events), strict=True):
        payloads[place] = payload
    return payloads


def as_archived(table: pa.Table) -> pa.Table:
    """Return a piece of a segment in the types that its columns had: a file says that texts and lists may be large."""
    small_schema = small(table.schema)
    return table if small_schema == table.schema else table.cast(small_schema)


@cache
def small(schema: pa.Schema) -> pa.Schema:
    """Return a file's columns without large types."""
    return pa.schema([pa.field(field.name, _small(field.type)) for field in schema])


def _small(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _small(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_small(kind.key_type), _small(kind.item_type))
    return pa.list_(_small(kind.value_type)) if pa.types.is_large_list(kind) or pa.types.is_list(kind) else kind


def _as_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    combined = column.combine_chunks()
    return combined if not isinstance(combined, pa.ChunkedArray) else pa.concat_arrays(combined.chunks)
