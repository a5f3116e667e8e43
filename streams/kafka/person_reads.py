"""The event of a command that opened sealed words of persons: who read what, next to the requests of the server."""

from __future__ import annotations

import uuid
from collections.abc import Collection

from schemas import key_source
from schemas.events import RequestEvent, derive_id
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.settings.model import Settings


def record_reads(settings: Settings, persons: Collection[str], *, user: str, command: str) -> None:
    """Write that a command of a user opened the words of these persons, if there is a topic for it. Raises LogError."""
    if not persons or "requests" not in topics(settings.topics):
        return
    event = RequestEvent(
        event_id=derive_id("command", uuid.uuid4().hex),
        subject_id=user,
        created_at=times.now_ms(),
        metadata=key_source.reads_metadata(persons),
        role="admin",
        action="log.query",
        method="COMMAND",
        resource=command,
        allowed=True,
        reason="the key store is here",
        status=200,
        duration_ms=0,
    )
    with Producer(settings) as producer:
        producer.send(event)
        producer.flush()
