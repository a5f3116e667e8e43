"""Records that could not be used, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from schemas.event_types import Int, Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that could not be used, with the reason: whole, or if it is too large, by its digests."""

    dead_letter_id: Annotated[str, "uuid5(stage, source topic, partition, offset)"]
    created_at: Millis
    stage: str
    reason: Annotated[str, "a short word to group by"]
    error: Annotated[str, "where, what, expected and got, and what to do"]
    source_topic: str
    source_partition: Int
    source_offset: int
    source_timestamp: Millis
    key: Annotated[str | None, "base64"] = None
    payload: Annotated[str | None, "base64; null for a tombstone"] = None
    key_sha256: Annotated[str | None, "hex; set if the record is too large for a dead letter and has a key"] = None
    payload_sha256: Annotated[str | None, "hex; set if the record is too large for a dead letter"] = None
    payload_bytes: Annotated[int | None, "set beside payload_sha256: the size of the payload"] = None
    headers: Annotated[dict[str, str], "base64 values"] = field(default_factory=dict)
