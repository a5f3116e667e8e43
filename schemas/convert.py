"""Events to the plain values that an Avro encoder takes, and back from those that a decoder gives.

    event ──► checked ──► dicts, lists, numbers, text ──► doubtful ──► raised ──► event
                └─ EncodeError, with the path to the field   └─ some number is out of range: check the event

Python's types promise nothing at run time, and a decoder checks less than an encoder should: a bool in place of a
number, a NaN and a 33rd bit are caught here. Rules between fields are in `schemas.events.problems`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

from schemas.avro_schema import Shape, shapes
from schemas.wire import Numbers

_FLOAT32_MAX = 3.4028234663852886e38


class EncodeError(ValueError):
    """The event is not what its schema says; the message names the field."""


def checked(event: Any) -> dict[str, Any]:
    """Return the plain values of an event, for fastavro. Raises EncodeError: field, what is expected, what it holds."""
    kind: Any = type(event)
    try:
        return _lower_record(kind)(event)
    except _Wrong as wrong:
        raise EncodeError(f"{kind.__name__}{wrong.place}: {wrong}") from None


class _Wrong(Exception):
    """What was expected and found; `place` is the path from the event to it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.place = ""


# --- dataclass to plain, checked -------------------------------------------------------------------------------------
# One closure per type, built once: each returns the plain value for fastavro or raises _Wrong. The path to the field is
# assembled on the way out, so that it costs nothing for a valid event.


@cache
def _lower_record(event: Any) -> Callable[[Any], dict[str, Any]]:
    lowered = [(name, _lower(shape)) for name, shape in shapes(event).items()]

    def lower(value: Any) -> dict[str, Any]:
        if type(value) is not event:
            raise _Wrong(f"expected {event.__name__}, got {type(value).__name__} {value!r:.60}")
        plain = {}
        name = ""
        try:
            for name, check in lowered:
                plain[name] = check(getattr(value, name))
        except _Wrong as wrong:
            wrong.place = f".{name}{wrong.place}"
            raise
        return plain

    return lower


def _lower(shape: Shape) -> Callable[[Any], Any]:
    inner = _lower_plain(shape)
    if not shape.optional:
        return inner
    return lambda value: None if value is None else inner(value)


def _lower_plain(shape: Shape) -> Callable[[Any], Any]:
    if shape.base is int:
        return _lower_int(*_bounds(shape))
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

    def lower(value: Any) -> Any:
        if type(value) is not shape.base:
            raise _Wrong(f"expected {shape.base.__name__}, got {type(value).__name__} {value!r:.60}")
        return value

    return lower


def _bounds(shape: Shape) -> tuple[int, int]:
    """Return the smallest and the largest integer of this shape."""
    bits = 31 if shape.narrow else 63
    return -(1 << bits), (1 << bits) - 1


def _lower_text(value: Any) -> str:
    if type(value) is not str:
        raise _Wrong(f"expected str, got {type(value).__name__} {value!r:.60}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise _Wrong(f"expected text, got half a surrogate pair at character {exc.start}") from exc
    return value


def _lower_int(low: int, high: int) -> Callable[[Any], int]:
    def lower(value: Any) -> int:
        if type(value) is not int:
            raise _Wrong(f"expected int, got {type(value).__name__} {value!r:.60}")
        if not low <= value <= high:
            raise _Wrong(f"expected an integer from {low} to {high}, got {value}")
        return value

    return lower


def _lower_float(largest: float) -> Callable[[Any], float]:
    def lower(value: Any) -> float:
        if type(value) is not float and type(value) is not int:
            raise _Wrong(f"expected float, got {type(value).__name__} {value!r:.60}")
        if type(value) is int and not -(1 << 63) <= value < 1 << 63:
            raise _Wrong(f"expected a float, got an integer of {value.bit_length()} bits")
        if not math.isfinite(value):
            raise _Wrong(f"expected a finite number, got {value}")
        if abs(value) > largest:
            raise _Wrong(f"expected at most {largest:g} in size (32 bits), got {value}")
        return float(value)

    return lower


def _lower_literal(allowed: tuple[str, ...]) -> Callable[[Any], str]:
    def lower(value: Any) -> str:
        if value not in allowed:
            raise _Wrong(f"expected one of {', '.join(allowed)}, got {value!r:.60}")
        return value  # type: ignore[no-any-return]  # it is one of them

    return lower


def _lower_array(shape: Shape) -> Callable[[Any], list[Any]]:
    assert shape.item is not None  # noqa: S101 - an array's shape always has an item
    item = _lower(shape.item)
    quick = _all_good(shape.item)

    def lower(value: Any) -> list[Any]:
        if type(value) is not tuple and type(value) is not Numbers:
            raise _Wrong(f"expected tuple, got {type(value).__name__} {value!r:.60}")
        if quick(value):
            return list(value)
        plain = []
        try:
            for each in value:
                plain.append(item(each))
        except _Wrong as wrong:
            wrong.place = f"[{len(plain)}]{wrong.place}"
            raise
        return plain

    return lower


def _all_good(shape: Shape) -> Callable[[Sequence[Any]], bool]:
    """Return a test that accepts whole arrays of numbers at C speed; others are checked item by item."""
    if shape.optional or shape.base not in (int, float, bool):
        return lambda values: not values
    if shape.base is bool:
        return lambda values: set(map(type, values)) <= {bool}
    low, high = _bounds(shape)
    if shape.base is float:
        low, high = -1e38, 1e38  # type: ignore[assignment]

    def quick(values: Sequence[Any]) -> bool:
        if not values or set(map(type, values)) != {shape.base}:
            return not values
        total = sum(values)
        return bool(total == total and low <= min(values) and max(values) <= high)

    return quick


def _lower_map(shape: Shape) -> Callable[[Any], dict[str, Any]]:
    assert shape.item is not None  # noqa: S101 - and so has a map's
    item = _lower(shape.item)

    def lower(value: Any) -> dict[str, Any]:
        if type(value) is not dict or not all(type(key) is str for key in value):
            raise _Wrong(f"expected a dict with text keys, got {value!r:.60}")
        plain = {}
        # sorted, so that equal events have equal bytes
        for key in sorted(value):
            _lower_text(key)
            try:
                plain[key] = item(value[key])
            except _Wrong as wrong:
                wrong.place = f"[{key!r}]{wrong.place}"
                raise
        return plain

    return lower


# --- what a decoder may let through -----------------------------------------------------------------------------------
# fastavro returns text, numbers and booleans where the schema has them, but does not check their range. This test is
# cheap and may be wrong: `checked` then decides.


@cache
def doubtful(event: Any) -> Callable[[dict[str, Any]], bool]:
    """Return a test for the decoded values of this dataclass: True if they must be checked like an event."""
    doubts = [(name, doubt) for name, shape in shapes(event).items() if (doubt := _doubt(shape)) is not None]

    def test(plain: dict[str, Any]) -> bool:
        for name, doubt in doubts:  # noqa: SIM110 - half the time of any(), for each record that is read
            if doubt(plain[name]):
                return True
        return False

    return test


def _doubt(shape: Shape) -> Callable[[Any], bool] | None:
    """Return a test for a value that may not fit its shape, or None where a decoder gives only values that do."""
    inner = _doubt_plain(shape)
    if inner is None or not shape.optional:
        return inner
    certain = inner
    return lambda value: value is not None and certain(value)


def _doubt_plain(shape: Shape) -> Callable[[Any], bool] | None:
    if shape.base is int:
        low, high = _bounds(shape)
        return lambda value: not low <= value <= high
    if shape.base is float:
        largest = 1e38 if shape.narrow else 1e308
        return lambda value: not -largest <= value <= largest  # a NaN is not, either
    if shape.base is Literal:
        allowed = frozenset(shape.allowed)
        return lambda value: value not in allowed
    if dataclasses.is_dataclass(shape.base):
        record: Any = shape.base
        return doubtful(record)
    if shape.item is None or (item := _doubt(shape.item)) is None:
        return None
    if shape.base is dict:
        return lambda values: any(map(item, values.values()))
    if shape.item.base in (int, float) and not shape.item.optional:
        # min and max are blind to NaN; the sum is not
        extremes = (min, max) if shape.item.base is int else (min, max, sum)
        return lambda values: bool(values) and any(item(extreme(values)) for extreme in extremes)
    return lambda values: any(map(item, values))


# --- plain to dataclass ----------------------------------------------------------------------------------------------


@cache
def raised(event: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a function that builds the dataclass from decoded values, and changes those in place."""
    raisers = [(name, raiser) for name, shape in shapes(event).items() if (raiser := _raise(name, shape)) is not None]

    def raise_(plain: dict[str, Any]) -> Any:
        for name, raiser in raisers:
            value = plain[name]
            if value is not None:
                plain[name] = raiser(value)
        return event(**plain)

    return raise_


def _raise(name: str, shape: Shape) -> Callable[[Any], Any] | None:
    """Return a function that turns fastavro's value into ours, or None where they are the same."""
    if shape.base is tuple:
        item = _raise(name, shape.item) if shape.item else None
        return tuple if item is None else lambda values: tuple(map(item, values))
    if dataclasses.is_dataclass(shape.base):
        record: Any = shape.base
        return raised(record)
    return None
