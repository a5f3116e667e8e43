"""Names that several events share: derived ids, numbers, bounds, the address of a record."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Annotated, Literal, NamedTuple

from schemas.tokens import Octets

NAMESPACE = uuid.UUID("b1f8a7c2-5d0e-5c1b-9a53-57e4a3d0c0de")
"""Root of every derived id. With another one, no record of any existing log would be recognised."""
_ROOT = NAMESPACE.bytes
SHA256 = re.compile("[0-9a-f]{64}")
_VARIANT = {f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)}
"""The variant digit of RFC 9562 for each hexadecimal digit that SHA-1 may give."""


def derive_id(*parts: object) -> str:
    """Return the UUIDv5 of `parts`, joined by an unprintable separator, under `NAMESPACE`.

    >>> derive_id("sampling", 0) == derive_id("sampling", 0) != derive_id("sampling", 1)
    True
    """
    # faster than uuid.uuid5: the id of every response and reward is checked when it is read
    name = "\x1f".join(map(str, parts)).encode()
    text = hashlib.sha1(_ROOT + name, usedforsecurity=False).hexdigest()
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


class Int32:
    """Marks an `int` as Avro `int`; a plain `int` is `long`."""


class Timestamp:
    """Marks an `int` as `timestamp-millis`."""


class Personal:
    """Marks a field with a person's words, or with numbers that they can be read from: it is sealed in an event that
    has a subject (schemas/sealing.py).

    What is left in clear is of the same shape: an empty text, as many zeros, the entries of metadata that the system
    made. None stays None.
    """


class PersonalJson(Personal):
    """The same, for the text of a JSON object: an empty one is left."""


Subject = Annotated[
    str | None, "pseudonym of the person whose words these are; null: of no person, and nothing is sealed"
]
Sealed = Annotated[
    Octets | None, "last field: what a subject's key opens, see docs/privacy.md; null: nothing is sealed"
]
Int = Annotated[int, Int32]
Millis = Annotated[int, Timestamp]
MAX_GROUP_SIZE = 1024
"""Most responses to one task: a group is held and written as one record."""
MAX_REWARD = 1e12
"""Largest absolute reward and weight: sums of their squares stay finite, and advantages fit into 32 bits."""
KIB, MIB = 1024, 1024 * 1024
MAX_TURNS = 1024
"""Most model calls that a task may allow in an environment."""
Purpose = Literal["train", "serve", "eval"]
TuningMethod = Literal["sft", "dpo"]
Continuity = Literal["first", "extends", "forks", "rewrites", "auxiliary"]


class Coordinates(NamedTuple):
    """The address of a record, which every message about an event has."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"
