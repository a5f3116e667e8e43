"""Convert events to the plain values for an Avro encoder, and back from those of a decoder.

    event ──► checked ──► dicts, lists, numbers, text, bytes ──► raised ──► event
                └─ EncodeError, with the path to the field         └─ the same, for values that a decoder accepts

Python's types guarantee nothing at run time, and a decoder checks less than an encoder should: a bool instead of a
number, a NaN, a 33rd bit and half a token are caught here. Rules between fields are in `schemas.events.problems`.

Each dataclass has two functions, one for each way. Their code is generated from its fields, as `dataclasses` generates
`__init__`, since every record passes one of them: the usual value of a field is recognised in place, any other is given
to the careful function of its type. Only if that refuses it, the path to the field is determined.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from schemas.avro_schema import Shape, shapes
from schemas.tokens import VIEWS


class EncodeError(ValueError):
    """A value does not match its schema; the message names the field."""


class _Wrong(Exception):
    """The expected and the actual value, without the path."""


def to_plain(event: Any) -> dict[str, Any]:
    """Return the plain values of an event, for fastavro. Raises EncodeError with the field, the expected and the actual
    value."""
    kind: Any = type(event)
    try:
        return _lowering(kind)(event)
    except _Wrong:
        _explain(Shape(kind), event, kind.__name__, reading=False)
        raise  # never: the explanation raises for the same value


def from_plain(kind: Any, plain: dict[str, Any]) -> Any:
    """Return the event of this dataclass with these decoded values. Raises EncodeError as `to_plain` does."""
    try:
        return _raising(kind)(plain)
    except (_Wrong, ValueError):
        _explain(Shape(kind), plain, kind.__name__, reading=True)
        raise  # never, as above


# --- what a value may be ----------------------------------------------------------------------------------------------


@cache
def _careful(shape: Shape) -> Callable[[Any], Any]:
    """Return a function that returns the plain value of a scalar or a map, or raises _Wrong."""
    if shape.base is int:
        return _careful_int(*_bounds(shape))
    if shape.base is Literal:
        return _careful_literal(shape.allowed)
    if shape.base is dict:
        return _careful_map(shape)
    return {str: _careful_text, float: _careful_float, bool: _careful_bool}[shape.base]


def _bounds(shape: Shape) -> tuple[int, int]:
    """Return the smallest and the largest integer of this shape."""
    bits = 31 if shape.narrow else 63
    return -(1 << bits), (1 << bits) - 1


def _describe(value: Any) -> str:
    return f"got {type(value).__name__} {value!r:.60}"


def _careful_text(value: Any) -> str:
    if type(value) is not str:
        raise _Wrong(f"expected str, {_describe(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise _Wrong(f"expected text, got half a surrogate pair at character {exc.start}") from exc
    return value


def _careful_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _Wrong(f"expected bool, {_describe(value)}")
    return value


def _careful_int(low: int, high: int) -> Callable[[Any], int]:
    def careful(value: Any) -> int:
        if type(value) is not int:
            raise _Wrong(f"expected int, {_describe(value)}")
        if not low <= value <= high:
            raise _Wrong(f"expected an integer from {low} to {high}, got {value}")
        return value

    return careful


def _careful_float(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise _Wrong(f"expected float, {_describe(value)}")
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        raise _Wrong(f"expected a float, got an integer of {value.bit_length()} bits")
    if not math.isfinite(value):
        raise _Wrong(f"expected a finite number, got {value}")
    return float(value)


def _careful_literal(allowed: tuple[str, ...]) -> Callable[[Any], str]:
    def careful(value: Any) -> str:
        if value not in allowed:
            raise _Wrong(f"expected one of {', '.join(allowed)}, got {value!r:.60}")
        return value  # type: ignore[no-any-return]  # it is one of them

    return careful


def _careful_map(shape: Shape) -> Callable[[Any], dict[str, Any]]:
    assert shape.item is not None  # noqa: S101 - a map's shape always has an item
    item = _careful(shape.item)

    def careful(value: Any) -> dict[str, Any]:
        if type(value) is not dict or not all(type(key) is str for key in value):
            raise _Wrong(f"expected a dict with text keys, got {value!r:.60}")
        # sorted, so that equal events have equal bytes
        return {_careful_text(key): item(value[key]) for key in sorted(value)}

    return careful


def _explain(shape: Shape, value: Any, path: str, *, reading: bool) -> None:
    """Raise EncodeError for the first value at or below this one that does not fit."""
    base: Any = shape.base
    if shape.optional and value is None:
        return
    try:
        if base in VIEWS:
            _explain_view(base, value, path, reading=reading)
        elif base is tuple:
            if type(value) is not (list if reading else tuple):
                raise _Wrong(f"expected tuple, {_describe(value)}")
            for number, item in enumerate(value):
                _explain(_item(shape), item, f"{path}[{number}]", reading=reading)
        elif _is_record(base):
            if type(value) is not (dict if reading else base):
                raise _Wrong(f"expected {base.__name__}, {_describe(value)}")
            for name, inner in shapes(base).items():
                content = value[name] if reading else getattr(value, name)
                _explain(inner, content, f"{path}.{name}", reading=reading)
        else:
            for key, item in value.items() if base is dict and type(value) is dict else ():
                _explain(_item(shape), item, f"{path}[{key!r}]", reading=reading)
            _careful(shape)(value)
    except _Wrong as wrong:
        raise EncodeError(f"{path}: {wrong}") from None


def _explain_view(base: Any, value: Any, path: str, *, reading: bool) -> None:
    if not reading and type(value) is not base:
        raise _Wrong(f"expected {base.__name__}, {_describe(value)}")
    try:
        base(value if reading else value.data)
    except ValueError as exc:
        raise EncodeError(f"{path}{str(exc).removeprefix(base.__name__)}") from None


def _is_record(base: Any) -> bool:
    return dataclasses.is_dataclass(base)


def _item(shape: Shape) -> Shape:
    assert shape.item is not None  # noqa: S101 - an array's shape and a map's always have one
    return shape.item


# --- the usual values, recognised in place ----------------------------------------------------------------------------


class _Source:
    """The body of a generated function, and the objects that it names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}

    def name(self, value: Any) -> str:
        """Return a name for an object."""
        name = f"_{len(self.names)}"
        self.names[name] = value
        return name

    def function(self, argument: str) -> Any:
        """Return the function."""
        code = "\n    ".join((f"def made({argument}):", *self.lines))
        exec(code, self.names)  # noqa: S102 - made here of nothing but the fields of our own dataclasses
        return self.names["made"]


@cache
def _lowering(kind: Any) -> Callable[[Any], dict[str, Any]]:
    """Return a function that returns the plain values of an event of this dataclass, or raises _Wrong."""
    source = _Source()
    source.lines += [f"if type(event) is not {source.name(kind)}: raise {source.name(_Wrong)}"]
    source.lines += [f"v{number} = event.{name}" for number, name in enumerate(shapes(kind))]
    values = (_lower(shape, f"v{number}", source) for number, shape in enumerate(shapes(kind).values()))
    pairs = ", ".join(f"{name!r}: {value}" for name, value in zip(shapes(kind), values, strict=True))
    source.lines.append(f"return {{{pairs}}}")
    function: Callable[[Any], dict[str, Any]] = source.function("event")
    return function


def _lower(shape: Shape, value: str, source: _Source) -> str:
    """Return an expression for the plain value of a variable."""
    inner = _lower_plain(shape, value, source)
    return f"(None if {value} is None else {inner})" if shape.optional else inner


def _lower_plain(shape: Shape, value: str, source: _Source) -> str:
    base: Any = shape.base
    if base in VIEWS:
        return f"({value}.data if type({value}) is {source.name(base)} else {source.name(_refuse)}())"
    if base is tuple:
        items = f"[{_lower(_item(shape), 'item', source)} for item in {value}]"
        return f"({items} if type({value}) is tuple else {source.name(_refuse)}())"
    if _is_record(base):
        return f"{source.name(_lowering(base))}({value})"
    usual = {
        str: f"{value}.isascii()",
        int: f"{_bounds(shape)[0]} <= {value} <= {_bounds(shape)[1]}",
        float: f"{-SURE!r} <= {value} <= {SURE!r}",
        bool: "True",
        dict: f"not {value}",
    }
    careful = f"{source.name(_careful(shape))}({value})"
    if base is Literal:
        allowed = source.name(frozenset(shape.allowed))
        return f"({value} if type({value}) is str and {value} in {allowed} else {careful})"
    return f"({value} if type({value}) is {base.__name__} and {usual[base]} else {careful})"


def _refuse() -> None:
    raise _Wrong


SURE = 1e308
"""A float of at most this is certainly finite, and a NaN fails this comparison."""


@cache
def _raising(kind: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a function that returns the event of decoded values, or raises _Wrong or ValueError."""
    source = _Source()
    # straight into the slots: `__init__` of a frozen dataclass looks up each setter again
    source.lines.append(f"event = {source.name(object.__new__)}({source.name(kind)})")
    for name, shape in shapes(kind).items():
        value = f"plain[{name!r}]"
        if (raised := _raise(shape, "v", source)) != "v":
            source.lines.append(f"v = {value}")
            value = raised
        source.lines.append(f"{source.name(getattr(kind, name).__set__)}(event, {value})")
    source.lines.append("return event")
    function: Callable[[dict[str, Any]], Any] = source.function("plain")
    return function


def _raise(shape: Shape, value: str, source: _Source) -> str:
    """Return an expression for the event's value of a decoded variable: the variable, where they are the same."""
    inner = _raise_plain(shape, value, source)
    return f"(None if {value} is None else {inner})" if shape.optional and inner != value else inner


def _raise_plain(shape: Shape, value: str, source: _Source) -> str:
    base: Any = shape.base
    if base in VIEWS:
        return f"{source.name(base)}({value})"
    if base is tuple:
        item = _raise(_item(shape), "item", source)
        return f"tuple({value})" if item == "item" else f"tuple([{item} for item in {value}])"
    if _is_record(base):
        return f"{source.name(_raising(base))}({value})"
    if base in (str, bool) or (base is dict and _item(shape).base is str):
        return value  # a decoder gives no other value
    usual = {
        int: f"{_bounds(shape)[0]} <= {value} <= {_bounds(shape)[1]}",
        float: f"{-SURE!r} <= {value} <= {SURE!r}",
        dict: f"not {value}",
    }
    likely = f"{value} in {source.name(frozenset(shape.allowed))}" if base is Literal else usual[base]
    return f"({value} if {likely} else {source.name(_careful(shape))}({value}))"
