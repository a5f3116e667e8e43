"""Read an Avro body in one pass.

    body, position ──► reader of the dataclass ──► event, the position after it

Each reader takes the body and a position in it, and returns a value and the position after it. Slices do not notice the
end of the body; the caller compares the last position with its length. Anything odd: see schemas/wire.py.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal

from schemas.avro_schema import Shape, shapes
from schemas.wire import DOUBLE, FLOAT, FLOAT32_SURE, FLOAT64_SURE, Numbers, Odd, code_of, numbers

Read = Callable[[bytes, int], tuple[Any, int]]


@cache
def reader(event: Any) -> Read:
    """Return what reads this dataclass. It raises one of ODD."""
    # straight into the slots: every field is read, and `__init__` of a frozen dataclass looks up each setter again
    fields = [(getattr(event, name).__set__, _reader(shape)) for name, shape in shapes(event).items()]

    def read(body: bytes, at: int) -> tuple[Any, int]:
        made = object.__new__(event)
        for put, field in fields:
            value, at = field(body, at)
            put(made, value)
        return made, at

    return read


def _reader(shape: Shape) -> Read:
    inner = _reader_plain(shape)
    if not shape.optional:
        return inner

    def read(body: bytes, at: int) -> tuple[Any, int]:
        branch = body[at]
        if branch == 0:
            return None, at + 1
        if branch != 2:
            raise Odd
        return inner(body, at + 1)

    return read


def _reader_plain(shape: Shape) -> Read:
    if shape.base is str:
        return _read_text
    if shape.base is int:
        return _read_int32 if shape.narrow else _read_varint
    if shape.base is float:
        return _reader_float(shape)
    if shape.base is bool:
        return _read_bool
    if shape.base is Literal:
        return _reader_literal(shape)
    if shape.base is dict:
        return _reader_map(shape)
    if shape.base is tuple:
        return _reader_array(shape)
    record: Any = shape.base
    return _again(reader(record)) if _unchanging(record) else reader(record)


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Return an Avro long, of at most nine bytes."""
    byte = body[at]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift = byte & 127, 7
    for byte in body[at + 1 : at + 9]:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            if not byte:
                raise Odd  # longer than it need be
            return (value >> 1) ^ -(value & 1), at + shift // 7
    raise Odd


def _read_int32(body: bytes, at: int) -> tuple[int, int]:
    byte = body[at]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, at = _read_varint(body, at)
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        raise Odd
    return value, at


def _read_size(body: bytes, at: int) -> tuple[int, int]:
    """Return a length or a count; a block that also says its size in bytes has a negative one."""
    byte = body[at]
    size, at = (byte >> 1, at + 1) if byte < 128 and not byte & 1 else _read_varint(body, at)
    if size < 0:
        raise Odd
    return size, at


def _read_items(body: bytes, at: int) -> tuple[int, int]:
    """Return the count of a block that is there. A zero in more bytes than one would end the blocks, too."""
    count, at = _read_size(body, at)
    if not count:
        raise Odd
    return count, at


def _read_text(body: bytes, at: int) -> tuple[str, int]:
    byte = body[at]
    if byte < 128 and not byte & 1:
        end = at + 1 + (byte >> 1)
        return body[at + 1 : end].decode(), end
    size, at = _read_size(body, at)
    return body[at : at + size].decode(), at + size


def _read_bool(body: bytes, at: int) -> tuple[bool, int]:
    byte = body[at]
    if byte > 1:
        raise Odd
    return byte == 1, at + 1


def _reader_float(shape: Shape) -> Read:
    form, sure = (FLOAT, FLOAT32_SURE) if shape.narrow else (DOUBLE, FLOAT64_SURE)

    def read(body: bytes, at: int) -> tuple[float, int]:
        (value,) = form.unpack_from(body, at)
        if not -sure <= value <= sure:  # and a NaN is not
            raise Odd
        return value, at + form.size

    return read


def _reader_literal(shape: Shape) -> Read:
    allowed = frozenset(shape.allowed)

    def read(body: bytes, at: int) -> tuple[str, int]:
        value, at = _read_text(body, at)
        if value not in allowed:
            raise Odd
        return value, at

    return read


def _reader_map(shape: Shape) -> Read:
    assert shape.item is not None  # noqa: S101 - a map's shape always has an item
    item = _reader(shape.item)

    def read(body: bytes, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        while body[at]:
            count, at = _read_items(body, at)
            for _ in range(count):
                key, at = _read_text(body, at)
                values[key], at = item(body, at)
        return values, at + 1

    return read


def _reader_array(shape: Shape) -> Read:
    assert shape.item is not None  # noqa: S101 - and so has an array's
    if not shape.item.optional:
        if shape.item.base is float:
            return _reader_floats(shape.item)
        if shape.item.base is bool:
            return _read_bools
        if shape.item.base is int:
            return _again(_reader_ints(_reader(shape.item), code_of(int, shape.item.narrow)))
    item = _reader(shape.item)

    def read(body: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        values = []
        while body[at]:
            count, at = _read_items(body, at)
            for _ in range(count):
                value, at = item(body, at)
                values.append(value)
        return tuple(values), at + 1

    return read


def _one_block(body: bytes, at: int, item_bytes: int) -> tuple[int, int, int]:
    """Return where the items of an array begin, how many there are, and the place behind the array."""
    count, at = _read_size(body, at)
    if not count:
        return at, 0, at
    end = at + count * item_bytes
    if body[end]:
        raise Odd
    return at, count, end + 1


def _reader_floats(item: Shape) -> Read:
    code = code_of(float, item.narrow)
    size = struct.calcsize(f"<{code}")

    def read(body: bytes, at: int) -> tuple[Numbers, int]:
        at, count, end = _one_block(body, at, size)
        items = body[at : at + count * size]
        values = struct.unpack(f"<{count}{code}", items)
        if not math.isfinite(sum(values)):  # what came out of these bytes is in range unless it is no number at all
            raise Odd
        return numbers(values, code, items), end

    return read


def _read_bools(body: bytes, at: int) -> tuple[Numbers, int]:
    at, count, end = _one_block(body, at, 1)
    return _bools(body[at : at + count]), end


@lru_cache(maxsize=256)  # a mask of nothing but true is the rule, and one object stands for all that are equal
def _bools(data: bytes) -> Numbers:
    return numbers(map((False, True).__getitem__, data), code_of(bool, False), data)


def _reader_ints(item: Read, code: str) -> Read:
    def read(body: bytes, at: int) -> tuple[Numbers, int]:
        values: list[int] = []
        add = values.append
        count, at = _read_size(body, at)
        first = at
        for _ in range(count):
            low = body[at]
            if low < 128 and not low & 1:
                add(low >> 1)
                at += 1
                continue
            middle = body[at + 1]
            if low & 1 or low < 128:
                value, at = item(body, at)
                add(value)
            elif 0 < middle < 128:
                add((low & 127 | middle << 7) >> 1)
                at += 2
            elif middle and 0 < (high := body[at + 2]) < 128:
                add((low & 127 | (middle & 127) << 7 | high << 14) >> 1)
                at += 3
            else:
                value, at = item(body, at)
                add(value)
        items = body[first:at]
        if count:
            if body[at]:
                raise Odd
            at += 1
        return numbers(values, code, items), at

    return read


def _unchanging(record: Any) -> bool:
    """Return whether one object of this dataclass can stand for all that are equal: it holds no dict."""
    return not any(
        shape.base is dict
        or (shape.item is not None and shape.item.base not in (str, int, float, bool))
        or dataclasses.is_dataclass(shape.base)
        for shape in shapes(record).values()
    )


def _again(read: Read) -> Read:
    """Return `read` with a memory for the last value: the slots of a sampling share prompt and sampling.

    A value says itself where it ends, so the same bytes at the beginning are the same value.
    """
    last: tuple[bytes, Any] | None = None

    def read_again(body: bytes, at: int) -> tuple[Any, int]:
        nonlocal last
        known = last
        if known is not None and body.startswith(known[0], at):
            return known[1], at + len(known[0])
        value, end = read(body, at)
        if end <= len(body):
            last = body[at:end], value
        return value, end

    return read_again
