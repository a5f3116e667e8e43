"""Avro bodies in one pass, for events that are just as they should be.

    event ──► wire_write ──► body             body ──► wire_read ──► event
                └─ Odd ──► plain, fastavro              └─ Odd ──► fastavro, doubtful

A body that the reader takes is one that fastavro reads to the same event, and an event that the writer takes has the
bytes that fastavro gives it. What is odd in any way (a wrong type, a number out of range, a cut record, a layout that
other writers may use) is left to `schemas.convert` and fastavro, which know what to say. So all this is for speed
alone, and without it only time would tell (`make bench BENCH=join`).

Not covered: schemas other than the newest of each event.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

FLOAT32_SURE, FLOAT64_SURE = 1e38, 1e308
"""Up to here a number fits for certain; what lies between this and the limit is odd, and looked at with care."""

DOUBLE, FLOAT = struct.Struct("<d"), struct.Struct("<f")


class Numbers(tuple[Any, ...]):
    """Numbers that were read, and their bytes: what is only passed on need not be written anew."""

    code: str
    """What kind of numbers, as in `struct`, where l and q are varints of so many bits."""
    items: bytes
    """Behind their count, and before the zero that ends the array."""


def numbers(values: Iterable[Any], code: str, items: bytes) -> Numbers:
    """Return these values as what was read from these bytes."""
    made = Numbers(values)
    made.code, made.items = code, items
    return made


def code_of(base: type, narrow: bool) -> str:
    """Return what kind of numbers these are."""
    return {int: "lq", float: "fd", bool: "??"}[base][not narrow]


class Odd(Exception):
    """Not for the quick way."""


ODD = (Odd, IndexError, OverflowError, UnicodeError, struct.error)
"""What `wire_read` and `wire_write` raise."""
