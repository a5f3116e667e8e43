"""Avro bodies in one pass, for events that are just as they should be.

    event ──► wire_write ──► body             body ──► wire_read ──► event
                └─ Odd ──► plain, fastavro              └─ Odd ──► fastavro, doubtful

A body that the reader takes is one that fastavro reads to the same event, and an event that the writer takes has the
bytes that fastavro gives it. What is odd in any way (a wrong type, a number out of range, a cut record, a layout that
other writers may use) is left to `schemas.plain` and fastavro, which know what to say. So the three files may
be deleted, and only time would tell (`make bench BENCH=join`).

Not covered: schemas other than the newest of each event.
"""

from __future__ import annotations

import struct

FLOAT32_SURE, FLOAT64_SURE = 1e38, 1e308
"""Up to here a number fits for certain; what lies between this and the limit is odd, and looked at with care."""

DOUBLE, FLOAT = struct.Struct("<d"), struct.Struct("<f")


class Odd(Exception):
    """Not for the quick way."""


ODD = (Odd, IndexError, OverflowError, UnicodeError, struct.error)
"""What `wire_read` and `wire_write` raise."""
