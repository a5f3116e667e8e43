"""How long a record may be of the kinds that are kept for ever and that every process folds: MOST_BYTES of their event.

    writers ──► streams/kafka/topics.py: never longer          readers ──► serde.decode ──► Poison(too_large): skipped

One record would otherwise take the time of every process that starts, for ever. The broker's own limit is that of all
topics, since it counts batches of records.

Not covered: jobs, threads, adapters and experiments, whose events hold what users send; topics.max_record_bytes does.
"""

from __future__ import annotations

from typing import Any


def most_bytes(kind: Any) -> int | None:
    """Return how long a record of this event may be; None: as long as a topic's settings allow."""
    return getattr(kind, "MOST_BYTES", None)


def excess(payload: bytes | None, kind: Any) -> str | None:
    """Return why a payload is too long for its kind; None if it is not."""
    most = most_bytes(kind)
    if most is None or payload is None or len(payload) <= most:
        return None
    return f"the record has {len(payload):,} bytes, and a {kind.__name__} has at most {most:,}. Check what wrote it"
