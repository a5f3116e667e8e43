"""Erasures of persons: the request, and the deletion of the key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from schemas.event_types import KIB, Int, Millis

PrivacyKind = Literal["asked", "revoked", "expired", "deleted", "confirmed", "exported", "restricted"]
PSEUDONYM = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,62}\.)?p-[0-9a-f]{32}")
"""What a person is called in the log, after the tenant and a dot if there is one."""
TRAINING, RETENTION_S = "training", "retention_s"
"""What `restricted` says: on or off; and seconds without a record after which the person expires, 0: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyEvent:
    """A person's words are to be erased, their key was deleted, their use is restricted, or they were given out.

    From `asked` or `expired` on they are unreadable; until their key is deleted, `revoked` takes `asked` back.
    """

    MOST_BYTES: ClassVar[int] = 64 * KIB
    event_id: Annotated[str, "uuid5(person, kind, sequence)"]
    person: Annotated[str, "key of the record: the pseudonym, a tenant's with the tenant and a dot before it"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: PrivacyKind
    sequence: Annotated[Int, "compare and swap: how many events of the person took effect before this one"]
    actor: str
    reason: str
    due_at: Annotated[Millis | None, "asked: when the key may be deleted; null: of another kind"] = None
    restrictions: Annotated[dict[str, str], "restricted: training (on, off), retention_s, or both"] = field(
        default_factory=dict
    )


def privacy_problems(event: PrivacyEvent) -> Iterator[str]:
    """Return one sentence for each rule that an event breaks."""
    if PSEUDONYM.fullmatch(event.person) is None:
        yield f"person is {event.person[:100]!r}; expected p- and 32 hexadecimal digits, after TENANT. if any"
    if event.sequence < 0:
        yield f"sequence is {event.sequence}; expected 0 or more"
    if event.kind == "restricted":
        training, retention_s = event.restrictions.get(TRAINING, "on"), event.restrictions.get(RETENTION_S, "0")
        if training not in ("on", "off") or not retention_s.isdecimal():
            yield f"training is {training!r} and retention_s {retention_s!r}; expected on or off, and whole seconds"
    if (event.kind == "asked") != (event.due_at is not None):
        yield f"kind is {event.kind} and due_at is {event.due_at}; asked alone has one"
