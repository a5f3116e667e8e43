"""Write an Avro body in one pass.

    event ──► writer of the dataclass ──► bytes appended to a buffer

Anything odd: see schemas/wire.py.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from schemas.avro_schema import Shape, shapes
from schemas.wire import DOUBLE, FLOAT, FLOAT32_SURE, FLOAT64_SURE, Numbers, Odd, code_of

Write = Callable[[Any, bytearray], None]


@cache
def writer(event: Any) -> Write:
    """Return a function that appends an event of this dataclass to a buffer. It raises one of ODD."""
    fields = [(name, _writer(shape)) for name, shape in shapes(event).items()]

    def write(value: Any, out: bytearray) -> None:
        if type(value) is not event:
            raise Odd
        for name, field in fields:
            field(getattr(value, name), out)

    return write


def _writer(shape: Shape) -> Write:
    inner = _writer_plain(shape)
    if not shape.optional:
        return inner

    def write(value: Any, out: bytearray) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(2)
            inner(value, out)

    return write


def _writer_plain(shape: Shape) -> Write:
    if shape.base is str:
        return _write_text
    if shape.base is int:
        return _writer_int(_varints32 if shape.narrow else _varints)
    if shape.base is float:
        return _writer_float(shape)
    if shape.base is bool:
        return _write_bool
    if shape.base is Literal:
        return _writer_literal(shape)
    if shape.base is dict:
        return _writer_map(shape)
    if shape.base is tuple:
        return _writer_array(shape)
    record: Any = shape.base
    return writer(record)


def _varint(value: int) -> bytes:
    """Return an Avro long: zigzag, seven bits a byte, low bits first."""
    left = value << 1 if value >= 0 else ~value << 1 | 1
    out = bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    out.append(left)
    return bytes(out)


class _Varints(dict[int, bytes]):
    """Varints of so many bits by value. Of small numbers many are kept: token ids come again and again."""

    KEPT, LARGEST = 1 << 16, 1 << 18

    def __init__(self, bits: int) -> None:
        self._limit = 1 << (bits - 1)

    def __missing__(self, value: int) -> bytes:
        if not -self._limit <= value < self._limit:
            raise Odd
        written = _varint(value)
        if 0 <= value < self.LARGEST and len(self) < self.KEPT:
            self[value] = written
        return written


_varints, _varints32 = _Varints(64), _Varints(32)


def _write_text(value: Any, out: bytearray) -> None:
    if type(value) is not str:
        raise Odd
    data = value.encode()
    out += _varints[len(data)]
    out += data


def _writer_int(varints: _Varints) -> Write:
    def write(value: Any, out: bytearray) -> None:
        if type(value) is not int:
            raise Odd
        out += varints[value]

    return write


def _writer_float(shape: Shape) -> Write:
    form, sure = (FLOAT, FLOAT32_SURE) if shape.narrow else (DOUBLE, FLOAT64_SURE)

    def write(value: Any, out: bytearray) -> None:
        if type(value) is not float or not -sure <= value <= sure:
            raise Odd
        out += form.pack(value)

    return write


def _write_bool(value: Any, out: bytearray) -> None:
    if type(value) is not bool:
        raise Odd
    out.append(value)


def _writer_literal(shape: Shape) -> Write:
    allowed = frozenset(shape.allowed)

    def write(value: Any, out: bytearray) -> None:
        if type(value) is not str or value not in allowed:
            raise Odd
        _write_text(value, out)

    return write


def _writer_map(shape: Shape) -> Write:
    assert shape.item is not None  # noqa: S101 - a map's shape always has an item
    item = _writer(shape.item)

    def write(value: Any, out: bytearray) -> None:
        if type(value) is not dict:
            raise Odd
        if value:
            if set(map(type, value)) != {str}:
                raise Odd
            out += _varints[len(value)]
            for key in sorted(value):
                _write_text(key, out)
                item(value[key], out)
        out.append(0)

    return write


def _writer_array(shape: Shape) -> Write:
    assert shape.item is not None  # noqa: S101 - and so has an array's
    items = _writer_items(shape.item)

    def write(value: Any, out: bytearray) -> None:
        if type(value) is not tuple and type(value) is not Numbers:
            raise Odd
        if value:
            out += _varints[len(value)]
            items(value, out)
        out.append(0)

    return write


def _writer_items(item: Shape) -> Write:
    """Return what writes the items of an array that is not empty: numbers at C speed."""
    if item.optional or item.base not in (int, float, bool):
        one = _writer(item)

        def write(values: Any, out: bytearray) -> None:
            for value in values:
                one(value, out)

        return write
    varint = (_varints32 if item.narrow else _varints).__getitem__
    code, sure = code_of(item.base, item.narrow), FLOAT32_SURE if item.narrow else FLOAT64_SURE

    def write_numbers(values: Any, out: bytearray) -> None:
        if type(values) is Numbers and values.code == code:
            out += values.items
        elif set(map(type, values)) != {item.base}:
            raise Odd
        elif item.base is bool:
            out += bytes(values)
        elif item.base is float:
            if not math.hypot(*values) <= sure:  # then none is larger; and a NaN is not
                raise Odd
            out += struct.pack(f"<{len(values)}{code}", *values)
        else:
            out += b"".join(map(varint, values))

    return write_numbers
