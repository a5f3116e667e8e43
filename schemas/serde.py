"""Events to bytes and back, in Confluent framing.

    event ──► checked ──► 0x00 | schema id, 4 bytes big-endian | Avro body ──► event, or Poison

Writing is strict: a wrong type, an integer out of range, a NaN reward or a bool where a number belongs is an error at
the producer. Reading never raises: bytes that cannot be used come back as `Poison`, with a short reason and a sentence,
and the reader decides (Streamward sends them to `dead-letters`).

Not covered: compression and encryption, which are Kafka's.
"""

from __future__ import annotations

import dataclasses
import io
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

import fastavro

from schemas import events, registry
from schemas.avsc import Shape, shapes

MAGIC = 0
_HEADER = struct.Struct(">bI")
_FLOAT32_MAX = 3.4028234663852886e38
E = TypeVar("E", bound=events.Event)


class EncodeError(ValueError):
    """The event is not what its schema says; the message names the field."""


@dataclass(frozen=True, slots=True)
class Poison:
    """Bytes that are no event."""

    reason: str
    """not_avro, unknown_schema, wrong_event, undecodable or contradictory."""
    error: str
    """What was expected, what came, and what to do."""


def encode(event: events.Event) -> bytes:
    """Return the framed bytes of `event` under the newest schema of its type.

    Raises EncodeError, naming the field, what is expected and what it holds.
    """
    kind: Any = type(event)
    plain = _lower_record(kind)(event, kind.__name__)
    broken = next(events.problems(event), None)
    if broken is not None:
        raise EncodeError(f"{type(event).__name__}: {broken}")
    schema = registry.files().newest(type(event))
    out = io.BytesIO()
    out.write(_HEADER.pack(MAGIC, schema.id))
    fastavro.schemaless_writer(out, schema.parsed, plain)
    return out.getvalue()


def decode(payload: bytes | None, expected: type[E]) -> E | Poison:
    """Return the event in `payload`, read as the newest version of `expected`, or a Poison. Never raises."""
    schema = _writer_schema(payload, expected)
    if isinstance(schema, Poison):
        return schema
    assert payload is not None  # noqa: S101 - _writer_schema gave a Poison for None
    newest = registry.files().newest(expected)
    body = io.BytesIO(payload)
    body.seek(_HEADER.size)
    try:
        reader_schema = None if schema.id == newest.id else newest.parsed
        plain: Any = fastavro.schemaless_reader(body, schema.parsed, reader_schema)
    except Exception as exc:
        # fastavro raises whatever its C code meets: EOFError, IndexError, UnicodeDecodeError, MemoryError...
        return Poison(
            "undecodable",
            f"expected a {expected.__name__} in {len(payload)} bytes under schema id {schema.id}, and reading failed: "
            f"{type(exc).__name__}: {exc}. Check what wrote it: the record is cut short or not of this schema",
        )
    if (left := len(payload) - body.tell()) != 0:
        return Poison(
            "undecodable",
            f"{left} bytes follow the {expected.__name__}; expected none. Check what wrote it: the body does not "
            f"match schema id {schema.id}",
        )
    kind: Any = expected
    event: E = _raise_record(kind)(plain)
    try:
        # Avro's own decoders pass integers beyond 32 bits, NaN and any text: what could not be written is not read
        _lower_record(kind)(event, kind.__name__)
    except EncodeError as exc:
        return Poison("contradictory", f"{exc}. Check what wrote it")
    broken = next(events.problems(event), None)
    return event if broken is None else Poison("contradictory", f"{expected.__name__}: {broken}")


def _writer_schema(payload: bytes | None, expected: type[Any]) -> registry.Schema | Poison:
    if payload is None or len(payload) < _HEADER.size or payload[0] != MAGIC:
        got = (
            "no value"
            if payload is None
            else f"{len(payload)} bytes beginning {payload[:8].hex(' ') or 'with nothing'}"
        )
        return Poison(
            "not_avro",
            f"expected a {expected.__name__} in Confluent framing (00, schema id in 4 bytes, Avro body), got {got}. "
            "Write with an Avro serializer and the schema files of this repository",
        )
    _, schema_id = _HEADER.unpack_from(payload)
    schema = registry.files().by_id(schema_id)
    if schema is None:
        return Poison(
            "unknown_schema",
            f"schema id {schema_id} is not in schemas/lock.json (known: 1 to {len(registry.files().schemas)}). "
            "Update this reader, or register the schema before writing with it",
        )
    if schema.event != expected.__name__:
        return Poison(
            "wrong_event",
            f"expected a {expected.__name__}, got a {schema.event} (schema id {schema_id}). "
            "Check which topic the producer writes to",
        )
    return schema


# --- dataclass to plain, checked -------------------------------------------------------------------------------------
# One closure a type, built once: each returns the plain value for fastavro or raises EncodeError with the field's path.


@cache
def _lower_record(event: Any) -> Callable[[Any, str], dict[str, Any]]:
    lowered = [(name, _lower(shape)) for name, shape in shapes(event).items()]

    def lower(value: Any, path: str) -> dict[str, Any]:
        if type(value) is not event:
            raise EncodeError(f"{path}: expected {event.__name__}, got {type(value).__name__} {value!r:.60}")
        return {name: check(getattr(value, name), f"{path}.{name}") for name, check in lowered}

    return lower


def _lower(shape: Shape) -> Callable[[Any, str], Any]:
    inner = _lower_plain(shape)
    if not shape.optional:
        return inner
    return lambda value, path: None if value is None else inner(value, path)


def _lower_plain(shape: Shape) -> Callable[[Any, str], Any]:
    if shape.base is int:
        bits = 31 if shape.narrow else 63
        return _lower_int(-(1 << bits), (1 << bits) - 1)
    if shape.base is float:
        return _lower_float(_FLOAT32_MAX if shape.narrow else math.inf)
    if shape.base is Literal:
        return _lower_literal(shape.allowed)
    if shape.base is tuple:
        return _lower_array(shape)
    if shape.base is dict:
        return _lower_map(shape)
    if dataclasses.is_dataclass(shape.base):
        record: Any = shape.base
        return _lower_record(record)
    if shape.base is str:
        return _lower_text

    def lower(value: Any, path: str) -> Any:
        if type(value) is not shape.base:
            raise EncodeError(f"{path}: expected {shape.base.__name__}, got {type(value).__name__} {value!r:.60}")
        return value

    return lower


def _lower_text(value: Any, path: str) -> str:
    if type(value) is not str:
        raise EncodeError(f"{path}: expected str, got {type(value).__name__} {value!r:.60}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise EncodeError(f"{path}: expected text, got half a surrogate pair at character {exc.start}") from exc
    return value


def _lower_int(low: int, high: int) -> Callable[[Any, str], int]:
    def lower(value: Any, path: str) -> int:
        if type(value) is not int:
            raise EncodeError(f"{path}: expected int, got {type(value).__name__} {value!r:.60}")
        if not low <= value <= high:
            raise EncodeError(f"{path}: expected an integer from {low} to {high}, got {value}")
        return value

    return lower


def _lower_float(largest: float) -> Callable[[Any, str], float]:
    def lower(value: Any, path: str) -> float:
        if type(value) is not float and type(value) is not int:
            raise EncodeError(f"{path}: expected float, got {type(value).__name__} {value!r:.60}")
        if type(value) is int and not -(1 << 63) <= value < 1 << 63:
            raise EncodeError(f"{path}: expected a float, got an integer of {value.bit_length()} bits")
        if not math.isfinite(value):
            raise EncodeError(f"{path}: expected a finite number, got {value}")
        if abs(value) > largest:
            raise EncodeError(f"{path}: expected at most {largest:g} in size (32 bits), got {value}")
        return float(value)

    return lower


def _lower_literal(allowed: tuple[str, ...]) -> Callable[[Any, str], str]:
    def lower(value: Any, path: str) -> str:
        if value not in allowed:
            raise EncodeError(f"{path}: expected one of {', '.join(allowed)}, got {value!r:.60}")
        return value  # type: ignore[no-any-return]  # it is one of them

    return lower


def _lower_array(shape: Shape) -> Callable[[Any, str], list[Any]]:
    assert shape.item is not None  # noqa: S101 - an array's shape always has an item
    item = _lower(shape.item)
    quick = _all_good(shape.item)

    def lower(value: Any, path: str) -> list[Any]:
        if type(value) is not tuple:
            raise EncodeError(f"{path}: expected tuple, got {type(value).__name__} {value!r:.60}")
        if quick(value):
            return list(value)
        return [item(each, f"{path}[{index}]") for index, each in enumerate(value)]

    return lower


def _all_good(shape: Shape) -> Callable[[tuple[Any, ...]], bool]:
    """Return a test that passes whole arrays of numbers at C speed; what it does not pass is looked at one by one."""
    if shape.optional or shape.base not in (int, float, bool):
        return lambda values: not values
    if shape.base is bool:
        return lambda values: set(map(type, values)) <= {bool}
    low, high = (-(1 << 31), (1 << 31) - 1) if shape.narrow else (-(1 << 63), (1 << 63) - 1)
    if shape.base is float:
        low, high = -1e38, 1e38  # type: ignore[assignment]

    def quick(values: tuple[Any, ...]) -> bool:
        if not values or set(map(type, values)) != {shape.base}:
            return not values
        total = sum(values)
        return bool(total == total and low <= min(values) and max(values) <= high)

    return quick


def _lower_map(shape: Shape) -> Callable[[Any, str], dict[str, Any]]:
    assert shape.item is not None  # noqa: S101 - and so has a map's
    item = _lower(shape.item)

    def lower(value: Any, path: str) -> dict[str, Any]:
        if type(value) is not dict or not all(type(key) is str for key in value):
            raise EncodeError(f"{path}: expected a dict with text keys, got {value!r:.60}")
        # sorted, so that the same facts are the same bytes
        return {_lower_text(key, path): item(value[key], f"{path}[{key!r}]") for key in sorted(value)}

    return lower


# --- plain to dataclass ----------------------------------------------------------------------------------------------


@cache
def _raise_record(event: Any) -> Callable[[dict[str, Any]], Any]:
    raisers = [(name, raiser) for name, shape in shapes(event).items() if (raiser := _raise(name, shape)) is not None]

    def raise_(plain: dict[str, Any]) -> Any:
        for name, raiser in raisers:
            value = plain[name]
            if value is not None:
                plain[name] = raiser(value)
        return event(**plain)

    return raise_


def _raise(name: str, shape: Shape) -> Callable[[Any], Any] | None:
    """Return what turns fastavro's value into ours, or None where they are the same."""
    if shape.base is tuple:
        item = _raise(name, shape.item) if shape.item else None
        return tuple if item is None else lambda values: tuple(map(item, values))
    if dataclasses.is_dataclass(shape.base):
        record: Any = shape.base
        return _raise_record(record)
    return None
