"""Size limits of records that are kept for ever and that every process folds: MOST_BYTES of their event.

    writers ──► streams/kafka/topics.py: never longer          readers ──► serde.decode ──► Poison(too_large): skipped

One record would otherwise take the time of every process that starts, for ever. The broker's own limit is that of all
topics, since it counts batches of records.

Not covered: jobs, threads, adapters and experiments, which hold users' content; topics.max_record_bytes limits those.
"""

from __future__ import annotations

from typing import Any


def most_bytes(kind: Any) -> int | None:
    """Return the maximum size of a record of this event; None: as large as a topic's settings allow."""
    return getattr(kind, "MOST_BYTES", None)


def excess(payload: bytes | None, kind: Any) -> str | None:
    """Return why a payload is too large for its kind, or None."""
    most = most_bytes(kind)
    if most is None or payload is None or len(payload) <= most:
        return None
    return f"the record has {len(payload):,} bytes, and a {kind.__name__} has at most {most:,}. Check what wrote it"
