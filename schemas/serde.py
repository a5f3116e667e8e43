"""Convert events to bytes and back, in Confluent framing.

    event ──► checked ──► 0x00 | schema id, 4 bytes big-endian | Avro body ──► event, or Poison

Writing is strict: a wrong type, an integer out of range, a NaN reward or a bool in place of a number is an error at the
producer. Reading never raises: bytes that cannot be used come back as `Poison`, with a short reason and a sentence, and
the reader decides (Streamward sends them to `dead-letters`).

`schemas.ids` resolves the id in a frame; with a Schema Registry it may need a request, and raises if that fails.

An event with a subject is sealed when it is written, and opened when it is read (schemas/sealing.py). If its subject
was erased, or its key is unknown, it is a Poison; `decode_closed` reads what is in clear, with any keys or none.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import fastavro

from schemas import event_sizes, events, ids, key_source, sealing, versions
from schemas.avro_schema import LAYOUT
from schemas.convert import EncodeError as EncodeError, from_plain, to_plain
from schemas.ids import FRAME as FRAME, MAGIC as MAGIC, LockIds
from schemas.tokens import VIEWS

E = TypeVar("E", bound=events.Event)


@dataclass(frozen=True, slots=True)
class Poison:
    """Bytes that are not an event, or an event with the wrong key or partition."""

    reason: str
    """too_large, not_avro, unknown_schema, wrong_event, undecodable, contradictory, wrong_key or wrong_partition; of a
    sealed event erased, unknown_key or altered."""
    error: str
    """The expected and the actual value, and the way out."""


def encode(event: events.Event) -> bytes:
    """Return the framed bytes of `event` under the newest schema of its type.

    Raises EncodeError, naming the field, the expected and the actual value.
    """
    plain = to_plain(event)
    broken = next(events.problems(event), None)
    if broken is not None:
        raise EncodeError(f"{type(event).__name__}: {broken}")
    return encode_values(type(event), plain)


def encode_values(kind: Any, values: dict[str, Any]) -> bytes:
    """Return the framed bytes of an event of this type with these values, which must be as `to_plain` returns them."""
    newest = _newest(kind, ids.current())
    if values.get("subject") is None or values[SEALED]:
        return _framed_bytes(newest, values)
    values = {**values, SEALED: None}
    try:
        closed = _framed_bytes(newest, sealing.placeholders(kind)(values))
        bound = closed[:-1]  # without `sealed`, which is null: 0
        return bound + _tail(sealing.seal(values["subject"], bound, partial(_framed_bytes, newest, values)))
    except key_source.UnknownKeyError as exc:
        raise EncodeError(f"{kind.__name__}: {exc}") from exc


def encode_in_clear(event: events.Event) -> bytes:
    """Return the bytes of an event that is not sealed, whatever its subject: never for the log."""
    kind: Any = type(event)
    return _framed_bytes(_newest(kind, ids.current()), to_plain(event))


def _framed_bytes(newest: _Newest, values: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    out.write(newest.frame)
    fastavro.schemaless_writer(out, newest.schema.fastavro_schema, values)
    return out.getvalue()


SEALED = "sealed"
"""The last field of every event that has a subject."""


def _tail(sealed: bytes) -> bytes:
    """Return the end of a record: `sealed` as Avro has bytes that may be null, their branch, length and content."""
    left, length = len(sealed) << 1, bytearray([2])
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    return bytes([*length, left]) + sealed


def decode(payload: bytes | None, expected: type[E]) -> E | Poison:
    """Return the event in `payload`, read as the newest version of `expected`, or a Poison.

    Never raises for the content of a payload; only a look-up in a Schema Registry or of a key may raise.
    """
    event = decode_closed(payload, expected)
    sealed = getattr(event, SEALED, None)
    if isinstance(event, Poison) or not sealed:
        return event
    assert payload is not None  # noqa: S101 - it was decoded
    content = unseal(payload, event.subject, sealed.data)  # type: ignore[union-attr]  # it has both fields
    if isinstance(content, Poison):
        return content
    opened = decode_closed(content, expected)
    if isinstance(opened, Poison) or opened.sealed or opened.subject != event.subject:  # type: ignore[union-attr]
        return Poison("contradictory", f"what is sealed in it is no {expected.__name__} of its subject")
    return opened


def unseal(payload: bytes, subject: str | None, sealed: bytes) -> bytes | Poison:
    """Return the payload that is sealed in another, which has this subject and these sealed bytes, or a Poison."""
    tail = _tail(sealed)
    if subject is None or not payload.endswith(tail):
        return Poison("undecodable", "sealed is set, and there is no subject, or it is not the last field")
    try:
        return sealing.unseal(subject, payload[: -len(tail)], sealed)
    except key_source.ErasedError:
        return Poison("erased", f"the key of subject {subject} was deleted, and with it what this record said")
    except key_source.UnknownKeyError as exc:
        return Poison("unknown_key", f"{exc}. It is not known to be erased: check the key store of this process")
    except key_source.AlteredError:
        error = f"what is sealed for subject {subject} was made for another record, or by another key"
        return Poison("altered", f"{error}. Check what wrote it, and the key store of this process")


def decode_closed(payload: bytes | None, expected: type[E]) -> E | Poison:
    """Return the same without opening it: of a sealed event what is in clear, with `sealed` set.

    It needs no key, and tells nothing of erasures.
    """
    kind: Any = expected
    if (problem := event_sizes.excess(payload, kind)) is not None:
        return Poison("too_large", problem)
    newest = _newest(kind, ids.current())
    if payload is not None and payload[: FRAME.size] in newest.frames:
        plain = _body(payload, newest.schema, None)
    else:
        writer = _writer_schema(payload, expected)
        if isinstance(writer, Poison):
            return writer
        assert payload is not None  # noqa: S101 - _writer_schema gave a Poison for None
        plain = _body(payload, writer, None if writer.id == newest.schema.id else newest.schema)
    if isinstance(plain, Poison):
        return plain
    try:
        # Avro decoders accept integers beyond 32 bits, NaN and any text: values that cannot be written are refused
        event: E = from_plain(expected, plain)
    except EncodeError as exc:
        return Poison("contradictory", f"{exc}. Check what wrote it")
    broken = next(events.problems(event), None)
    return event if broken is None else Poison("contradictory", f"{expected.__name__}: {broken}")


class _Newest(NamedTuple):
    schema: versions.Schema
    frame: bytes
    """Frame of records to write."""
    frames: frozenset[bytes]
    """All frames that are known to mean this schema."""


@cache
def _newest(kind: Any, schema_ids: LockIds) -> _Newest:
    """Return the newest schema of this event, with its frames."""
    schema = versions.files().newest(kind)
    frames = frozenset(FRAME.pack(MAGIC, schema_id) for schema_id in schema_ids.ids_meaning(schema))
    return _Newest(schema, FRAME.pack(MAGIC, schema_ids.id_of(schema)), frames)


def _body(payload: bytes, writer: versions.Schema, reader: versions.Schema | None) -> Any:
    """Return the decoded body of a payload, or the Poison that says why it has none. Never raises."""
    body = io.BytesIO(payload)
    body.seek(FRAME.size)
    try:
        plain = fastavro.schemaless_reader(
            body, writer.fastavro_schema, None if reader is None else reader.fastavro_schema
        )
    except Exception as exc:  # fastavro's C code raises anything: EOFError, IndexError, UnicodeDecodeError, MemoryError
        return Poison(
            "undecodable",
            f"expected a {writer.event} in {len(payload)} bytes under schema id {_id_in(payload)}, and reading failed: "
            f"{type(exc).__name__}: {_without_addresses(str(exc))}. "
            "Check what wrote it: the record is cut short or not of this schema",
        )
    left = len(payload) - body.tell()
    if left:
        return Poison(
            "undecodable",
            f"{left} bytes follow the {writer.event}; expected none. Check what wrote it: the body does not match "
            f"schema id {_id_in(payload)}",
        )
    return plain


def _id_in(payload: bytes) -> int:
    """Return the schema id in a payload's frame."""
    _, schema_id = FRAME.unpack_from(payload)
    return int(schema_id)


def fields_read(payload: bytes, expected: type[Any]) -> dict[str, Any]:
    """Return the fields of a payload before the first that cannot be read, unchecked: for display only.

    They are those of the schema that its id means, of any event. Never raises for the content of a payload.
    """
    if len(payload) < FRAME.size or payload[0] != MAGIC:
        return {}
    schema = ids.current().schema_of(expected.__name__, FRAME.unpack_from(payload)[1])
    fields = [] if schema is None else schema.definition["fields"]
    for count in range(len(fields), 0, -1):
        prefix = {"type": "record", "name": "Fields", "fields": fields[:count]}
        try:
            plain: Any = fastavro.schemaless_reader(io.BytesIO(payload[FRAME.size :]), prefix, None)
        except Exception:  # noqa: S112 - as in _body; then a field fewer
            continue
        return {field["name"]: _as_lists(plain[field["name"]], field["type"]) for field in fields[:count]}
    return {}


def _as_lists(value: Any, kind: Any) -> Any:
    """Return a decoded value of this Avro type with per-token bytes as lists, or hexadecimal if they are cut short."""
    if isinstance(value, bytes):
        view = next((view for view in VIEWS if isinstance(kind, dict) and kind.get(LAYOUT) == view.LAYOUT), None)
        return value.hex() if view is None or len(value) % view.BYTES else list(view.items_of(value))
    if isinstance(value, list) and isinstance(kind, dict):
        return [_as_lists(item, kind["items"]) for item in value]
    if isinstance(value, dict) and isinstance(kind, dict) and "fields" in kind:
        return {field["name"]: _as_lists(value[field["name"]], field["type"]) for field in kind["fields"]}
    return value


def _without_addresses(text: str) -> str:
    """Return fastavro's message without addresses: the same record must give the same dead letter."""
    return re.sub(r" from <[^<>]* at 0x[0-9a-f]+>", "", text)


def _writer_schema(payload: bytes | None, expected: type[Any]) -> versions.Schema | Poison:
    if payload is None or len(payload) < FRAME.size or payload[0] != MAGIC:
        actual = "no value"
        if payload is not None:
            actual = f"{len(payload)} bytes beginning {payload[:8].hex(' ') or 'with nothing'}"
        return Poison(
            "not_avro",
            f"expected a {expected.__name__} in Confluent framing (00, schema id in 4 bytes, Avro body), got {actual}. "
            "Write with an Avro serializer and the schema files of this repository",
        )
    _, schema_id = FRAME.unpack_from(payload)
    in_use = ids.current()
    schema = in_use.schema_of(expected.__name__, schema_id)
    if schema is None:
        return Poison(
            "unknown_schema",
            f"schema id {schema_id} is not {in_use.describe()}. Update this reader, or register the schema before "
            "writing with it",
        )
    if schema.event != expected.__name__:
        return Poison(
            "wrong_event",
            f"expected a {expected.__name__}, got a {schema.event} (schema id {schema_id}). "
            "Check which topic the producer writes to",
        )
    return schema
