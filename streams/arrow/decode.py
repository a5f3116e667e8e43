"""Decode records in bulk, into Arrow.

The trick: the payloads of a chunk are concatenated, with a random mark after each, into the bytes of *one* artificial
Avro value: an array of (magic byte, schema id, event, mark). One call decodes it at native speed, and the marks prove
that it was cut where it should be: after a body that is shorter or longer than its schema allows, the mark is not found
in its place.

    records ──► by schema id ──► that array ──► pyruhvro ──► the newest schema's columns ──► table
                                     └─ not sound ──► halves, quarters, … ──► serde.decode, one by one ──► bad

A row is returned exactly where `serde.decode` returns an event, with the same values; every other record is in `bad`,
with the same reason and error. pyruhvro alone guarantees less: it ignores bytes after a body, wraps integers that are
too wide, and accepts any bytes as text. So besides the marks, integers are read as 64 bits and must fit their column,
texts are validated, and the rules of `schemas.events.problems` are checked column by column (streams/arrow/rules.py). A
chunk that fails any of this is halved until few records are left, and serde judges those.

If every second record is bad, all are decoded the slow way.

Sealed rows are opened, one ciphertext each, and what was in them is decoded at once again (`Reading`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyruhvro

from schemas import event_sizes, ids as numbering, serde, versions
from schemas.events import Coordinates, Event
from streams.arrow import rules, types
from streams.arrow.types import TIME
from streams.kafka.record import Record

CHUNK_RECORDS = 8192
"""Maximum records decoded at once."""
CHUNK_BYTES = 8 * 1024 * 1024
"""Maximum payload bytes decoded at once, unless one record is larger. Four times as many take a fourth longer per byte:
decoded values have left the processor's cache before they are checked."""
SMALLEST_PIECE = 16
"""Among this few records with a fault, each is judged by itself."""

RECORD_FIELDS = [
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", TIME),
    pa.field("_key", pa.string()),
    pa.field("_schema_id", pa.int32()),
]
"""The first columns of every table: a record's partition, offset, time, key and schema id."""
_FRAME_BYTES = 5


def _varint(number: int) -> bytes:
    """Encode a non-negative number as an Avro long."""
    left, out = number << 1, bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


_MARK = (1 << 61) + secrets.randbits(61)
"""The mark after each body of a chunk; no writer of records can know it."""
_MARK_BYTES = _varint(_MARK)


class Bad(NamedTuple):
    """A record that is not an event."""

    at: Coordinates
    reason: str
    """Reason, as in serde.Poison: too_large, not_avro, unknown_schema, wrong_event, undecodable or contradictory."""
    error: str


class Decoded(NamedTuple):
    """Records, decoded."""

    table: pa.Table
    """One row per event, in the order of the records, in the columns of `arrow_schema`."""
    bad: tuple[Bad, ...]


class DecodedRows(NamedTuple):
    """Records of one topic, a column for each of their parts."""

    topic: str
    partitions: list[int]
    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    payloads: list[bytes | None]
    headers: list[tuple[tuple[str, bytes | None], ...]]
    """Empty if they are not read."""

    def at(self, row: int) -> Coordinates:
        """Return the coordinates of a row's record."""
        return Coordinates(self.topic, self.partitions[row], self.offsets[row])

    def cut(self, first: int, end: int) -> DecodedRows:
        """Return the rows from `first` to below `end`."""
        return DecodedRows(self.topic, *(column[first:end] for column in self[1:]))  # type: ignore[arg-type]


def decode(event: type[Event], records: Iterable[Record]) -> Decoded:
    """Return the records as a table, and those that are not an `event`. It never raises because of a record's
    content."""
    parts = [
        decode_rows(event, side_by_side(topic, list(of_topic)))
        for chunk in chunks(records)
        for topic, of_topic in groupby(chunk, key=_topic)
    ]
    tables = [part.table for part in parts] or [arrow_schema(event).empty_table()]
    return Decoded(pa.concat_tables(tables), tuple(bad for part in parts for bad in part.bad))


def decode_rows(event: type[Event], rows: DecodedRows, *, reading: Reading = "opened") -> Decoded:
    """Return the same for records as columns. They are decoded at once: observe CHUNK_RECORDS and CHUNK_BYTES."""
    judged = judge(event, rows.payloads, reading=reading)
    table = pa.table([*record_columns(rows, judged), *judged.fields(event)], schema=arrow_schema(event))
    wrong = {i: Bad(rows.at(i), poison.reason, poison.error) for i, poison in sorted(judged.wrong.items())}
    if wrong:
        table = table.take(pa.array([i for i in range(len(rows.payloads)) if i not in wrong], pa.int64()))
    return Decoded(table, tuple(wrong.values()))


def arrow_schema(event: type[Event]) -> pa.Schema:
    """Return the columns of an event's tables: RECORD_FIELDS, then its fields as in its newest Avro schema.

    All columns are nullable: in the archive, a row that is not an event has no values.
    """
    return _table_schema(versions.files().newest(event))


def record_columns(rows: DecodedRows, judged: Judged) -> list[pa.Array]:
    """Return the columns of RECORD_FIELDS."""
    ids = judged.schema_ids
    return [
        pa.array(rows.partitions, pa.int32()),
        pa.array(rows.offsets, pa.int64()),
        pa.array(rows.timestamps, pa.int64()).cast(TIME),
        texts(rows.keys),
        pa.repeat(pa.scalar(ids[0], pa.int32()), len(rows.payloads)) if len(ids) == 1 else pa.array(ids, pa.int32()),
    ]


def texts(keys: list[bytes | None]) -> pa.Array:
    """Return keys as text; invalid UTF-8 is replaced."""
    try:
        return pa.array(keys, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if key is None else key.decode(errors="replace") for key in keys], pa.string())


def chunks(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield the records in lists for one decoding."""
    chunk: list[Record] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(record.payload or b"")
        if len(chunk) == CHUNK_RECORDS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _topic(record: Record) -> str:
    return record.at.topic


def side_by_side(topic: str, records: Sequence[Record]) -> DecodedRows:
    """Return the records of one topic as columns."""
    return DecodedRows(
        topic,
        [record.at.partition for record in records],
        [record.at.offset for record in records],
        [record.timestamp_ms for record in records],
        [record.key for record in records],
        [record.payload for record in records],
        [record.headers for record in records],
    )


# --- the events in payloads -------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """The events in a list of payloads, and the payloads without one."""

    pieces: list[tuple[Sequence[int], pa.StructArray]]
    """Positions in the list, with their events."""
    wrong: dict[int, serde.Poison]
    schema_ids: list[int | None]
    """The schema id of each payload, or a single one for all."""
    exact: bool = False
    """Whether each payload is known to equal the encoding of its columns under the newest schema."""

    def fields(self, event: type[Event]) -> list[pa.Array]:
        """Return the event's columns, one row per payload; null for a payload without an event."""
        kind = _event_type(versions.files().newest(event))
        arrays = [events for _, events in self.pieces]
        if self.wrong:
            arrays.append(pa.nulls(len(self.wrong), kind))
        if not arrays:
            return [pa.array([], field.type) for field in kind]
        whole = arrays[0]
        if len(arrays) > 1:
            whole = pa.concat_arrays(arrays)
            positions = [position for piece, _ in self.pieces for position in piece] + list(self.wrong)
            whole = whole.take(pc.sort_indices(pa.array(positions, pa.int64())))
        return list(whole.flatten())


Reading = Literal["opened", "closed", "either"]
"""What a sealed event is read as. Opened: what is in it, and an erased one is a Poison. Closed: what is in clear of it.
Either: what is in it, and of an erased one what is in clear."""


def judge(
    event: type[Event], payloads: list[bytes | None], *, exact: bool = False, reading: Reading = "opened"
) -> Judged:
    """Return the payloads that are events, as columns, and the faults of the others. With `exact`, if all are events of
    one schema, they are encoded again to compare the bytes.
    """
    first = _schema_named(event, payloads[0][:_FRAME_BYTES] if payloads and payloads[0] else None)
    read = None if first is None else _read_if_sound(event, first, payloads)
    if first is not None and read is not None and (reading == "closed" or not _sealed_rows(read.events)):
        newest = first.schema == versions.files().newest(event)
        return Judged([(range(len(payloads)), read.events)], {}, [first.id], exact and newest and _is_exact(read))
    heads = [payload and payload[:_FRAME_BYTES] for payload in payloads]
    ids = {head: _schema_id(head) for head in set(heads)}
    judged = Judged([], {}, [ids[head] for head in heads])
    for head in ids:
        positions = [position for position, other in enumerate(heads) if other == head]
        schema = _schema_named(event, head)
        if schema is None:
            _decode_singly(event, positions, payloads, judged, reading)
        else:
            _decode_halves(event, schema, positions, payloads, judged, reading)
    return judged


class _WriterSchema(NamedTuple):
    """The schema of payloads."""

    id: int
    """Its id in the frame."""
    schema: versions.Schema


def _schema_named(event: type[Event], head: bytes | None) -> _WriterSchema | None:
    """Return the schema of this event that a payload's first bytes name, if they do."""
    schema_id = _schema_id(head)
    if schema_id is None:
        return None
    schema = numbering.current().schema_of(event.__name__, schema_id)
    return _WriterSchema(schema_id, schema) if schema is not None and schema.event == event.__name__ else None


def _schema_id(head: bytes | None) -> int | None:
    """Return the schema id in the first bytes of a payload, or None if no schema can have it."""
    if head is None or len(head) < _FRAME_BYTES or head[0] != serde.MAGIC or head[1] > 127:
        return None
    return int.from_bytes(head[1:], "big")


def _decode_halves(
    event: type[Event],
    schema: _WriterSchema,
    positions: list[int],
    payloads: _Payloads,
    judged: Judged,
    reading: Reading,
) -> None:
    """Decode the sound payloads in the largest pieces possible, and the rest one by one."""
    waiting = [positions]
    while waiting:
        part = waiting.pop()
        read = _read_if_sound(event, schema, [payloads[i] for i in part])
        if read is not None and (reading == "closed" or not (sealed := _sealed_rows(read.events))):
            judged.pieces.append((part, read.events))
        elif read is not None:
            contents = _contents(part, read.events, sealed, payloads)
            closed = {row for row, content in contents.items() if _stays_closed(content, reading)}
            kept = [row for row in range(len(part)) if row not in contents or row in closed]
            judged.pieces.append(([part[row] for row in kept], read.events.take(pa.array(kept, pa.int64()))))
            opened = {part[row]: content for row, content in contents.items() if row not in closed}
            judged.wrong.update({i: poison for i, poison in opened.items() if isinstance(poison, serde.Poison)})
            payloads_within = {i: content for i, content in opened.items() if isinstance(content, bytes)}
            if payloads_within:
                _decode_halves(event, schema, list(payloads_within), payloads_within, judged, "closed")
        elif len(part) > SMALLEST_PIECE:
            half = len(part) // 2
            waiting += [part[half:], part[:half]]
        else:
            _decode_singly(event, part, payloads, judged, reading)


_Payloads = Sequence[bytes | None] | Mapping[int, bytes]
"""Payloads by position."""


def _sealed_rows(events: pa.StructArray) -> list[int]:
    """Return the rows that are sealed."""
    if events.type.get_field_index(serde.SEALED) < 0 or not len((column := events.field(serde.SEALED)).values):
        return []
    return np.flatnonzero(np.diff(column.offsets)).tolist()


def _stays_closed(content: bytes | serde.Poison, reading: Reading) -> bool:
    return reading == "either" and isinstance(content, serde.Poison) and content.reason == "erased"


def _contents(
    positions: Sequence[int], events: pa.StructArray, sealed: list[int], payloads: _Payloads
) -> dict[int, bytes | serde.Poison]:
    """Return the payload that is sealed in each of these rows, or why it cannot be opened."""
    rows = events.take(pa.array(sealed, pa.int64()))
    contents = {}
    for row, subject, ciphertext in zip(
        sealed, rows.field("subject").to_pylist(), rows.field(serde.SEALED).to_pylist(), strict=True
    ):
        payload = payloads[positions[row]]
        assert payload is not None  # noqa: S101 - it was decoded
        contents[row] = serde.unseal(payload, subject, bytes(ciphertext))
    return contents


def _decode_singly(
    event: type[Event], positions: Sequence[int], payloads: _Payloads, judged: Judged, reading: Reading
) -> None:
    good, written = [], []
    for i in positions:
        read = serde.decode_closed(payloads[i], event) if reading == "closed" else serde.decode(payloads[i], event)
        if reading == "either" and isinstance(read, serde.Poison) and read.reason == "erased":
            read = serde.decode_closed(payloads[i], event)
        if isinstance(read, serde.Poison):
            judged.wrong[i] = read
        else:
            good.append(i)
            written.append(serde.encode_in_clear(read))  # in our encoding, whatever the writer's is
    if good:
        newest = versions.files().newest(event)
        again = _read(event, _WriterSchema(numbering.current().id_of(newest), newest), written)
        assert again is not None  # noqa: S101 - payloads that we wrote ourselves can be read
        judged.pieces.append((good, again.events))


class _Read(NamedTuple):
    """Events, and the bytes that they were read from."""

    events: pa.StructArray
    whole: bytes
    decoded: pa.RecordBatch
    shape: str


def _is_exact(read: _Read) -> bool:
    """Return whether encoding the events again gives the same bytes: no number is padded, no list cut into blocks."""
    try:
        ((again,),) = pyruhvro.serialize_record_batch(read.decoded, read.shape, 1)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException:  # as in _read
        return False
    return bool(again.as_buffer().equals(pa.py_buffer(read.whole)))


def _read_if_sound(event: type[Event], schema: _WriterSchema, payloads: Sequence[bytes | None]) -> _Read | None:
    """Return the events in these payloads if every one certainly is an event, written with this schema; else None."""
    if any(event_sizes.excess(payload, event) for payload in payloads):
        return None
    read = _read(event, schema, payloads)
    return read if read is not None and rules.hold(event, read.events) else None


def _read(event: type[Event], written: _WriterSchema, payloads: Sequence[bytes | None]) -> _Read | None:
    """Return the events in these payloads under the newest schema; None if their bytes are in any way unusual."""
    try:
        whole, shape = frame(payloads), array_of(written.schema)  # type: ignore[arg-type]
        decoded = pyruhvro.deserialize_array([whole], shape)
        items = decoded.column(0).values
        as_should_be = pc.and_(
            pc.equal(items.field("id").view(pa.uint32()), int.from_bytes(written.id.to_bytes(4, "big"), "little")),
            pc.and_(pc.equal(items.field("magic"), serde.MAGIC != 0), pc.equal(items.field("mark"), _MARK)),
        )
        if pc.all(as_should_be).as_py() is False:
            return None
        newest = versions.files().newest(event)
        events = types.as_newest(items.field("event"), _inline(newest), _event_type(newest))
        events.validate(full=True)  # pyruhvro does not check whether a text is UTF-8
        return _Read(events, whole, decoded, shape)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException:  # a payload may be None; pyruhvro raises ValueError, and older versions no Exception at all
        return None


def frame(payloads: Sequence[bytes]) -> bytes:
    """Return payloads as the bytes of one array, each followed by the mark."""
    first, *rest = payloads
    return _MARK_BYTES.join([_varint(len(payloads)) + first, *rest, b"\0"])


@cache
def array_of(schema: versions.Schema) -> str:
    """Return the schema of the result of `frame`."""
    fields = [
        {"name": "magic", "type": "boolean"},
        {"name": "id", "type": "float"},  # of four bytes, whichever they are
        {"name": "event", "type": types.widen(schema.definition)},
        {"name": "mark", "type": "long"},
    ]
    items = {"type": "array", "items": {"type": "record", "name": "Item", "fields": fields}}
    chunk = {"type": "record", "name": "Chunk", "namespace": "streamward.bulk"}
    return json.dumps({**chunk, "fields": [{"name": "items", "type": items}]})


@cache
def _table_schema(schema: versions.Schema) -> pa.Schema:
    return pa.schema([*RECORD_FIELDS, *_event_type(schema)])


@cache
def _event_type(schema: versions.Schema) -> pa.StructType:
    return types.arrow_type(_inline(schema))


@cache
def _inline(schema: versions.Schema) -> dict[str, Any]:
    return types.inline(schema.definition)
