"""A fast path for Avro bodies: one pass, for well-formed events.

    event ──► wire_write ──► body             body ──► wire_read ──► event
                └─ Odd ──► plain, fastavro              └─ Odd ──► fastavro, doubtful

A body that the reader takes is one that fastavro reads to the same event, and an event that the writer takes has the
bytes that fastavro gives it. Anything odd (a wrong type, a number out of range, a truncated record, a layout that other
writers may use) is left to `schemas.convert` and fastavro, which explain what is wrong. This exists for speed alone
(`make bench BENCH=join`).

Not covered: schemas other than the newest of each event.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

FLOAT32_SURE, FLOAT64_SURE = 1e38, 1e308
"""Up to here a number certainly fits; between this and the limit it is odd, and the slow path decides."""

DOUBLE, FLOAT = struct.Struct("<d"), struct.Struct("<f")


class Numbers(tuple[Any, ...]):
    """Numbers that were read, with their bytes, so that passing them on needs no encoding."""

    code: str
    """What kind of numbers, as in `struct`, where l and q are varints of so many bits."""
    items: bytes
    """Between their count and the zero that ends the array."""


def numbers(values: Iterable[Any], code: str, items: bytes) -> Numbers:
    """Return these values together with the bytes they were read from."""
    made = Numbers(values)
    made.code, made.items = code, items
    return made


def code_of(base: type, narrow: bool) -> str:
    """Return what kind of numbers these are."""
    return {int: "lq", float: "fd", bool: "??"}[base][not narrow]


class Odd(Exception):
    """Not for the fast path."""


ODD = (Odd, IndexError, OverflowError, UnicodeError, struct.error)
"""What `wire_read` and `wire_write` raise."""
