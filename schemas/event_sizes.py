"""How long a record may be of the kinds that are kept for ever and that every process folds.

    writers ──► streams/kafka/topics.py: never longer          readers ──► serde.decode ──► Poison(too_large): skipped

One record would otherwise take the time of every process that starts, for ever. The broker's own limit is that of all
topics, since it counts batches of records.

Not covered: jobs, threads, adapters and experiments, whose events hold what users send; topics.max_record_bytes does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas import events

KIB, MIB = 1024, 1024 * 1024
MOST_BYTES: Mapping[Any, int] = {
    events.AccessEvent: 64 * KIB,
    events.QueueEvent: 64 * KIB,
    events.PromptEvent: 256 * KIB,
    events.TriggerEvent: 256 * KIB,
    events.CurationEvent: MIB,
    events.ToolEvent: MIB,
    events.AgentEvent: 2 * MIB,
    events.DatasetEvent: 2 * MIB,
    events.MemoryEvent: 2 * MIB,
}
"""By event type."""


def excess(payload: bytes | None, kind: Any) -> str | None:
    """Return why a payload is too long for its kind; None if it is not."""
    most = MOST_BYTES.get(kind)
    if most is None or payload is None or len(payload) <= most:
        return None
    return f"the record has {len(payload):,} bytes, and a {kind.__name__} has at most {most:,}. Check what wrote it"
