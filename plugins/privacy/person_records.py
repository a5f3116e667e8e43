"""The records of a person: every topic with a subject ──► those of the person, opened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from schemas.avro_schema import shapes
from schemas.events import RequestEvent
from schemas.key_source import MORE_PERSONS, PERSONS_READ
from schemas.serde import Poison
from streams.kafka.admin import read_topic
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings


class PersonRecord(NamedTuple):
    """A record about a person."""

    label: str
    record: Record
    event: Any


def records_of(settings: Settings, subject: str) -> Iterator[PersonRecord]:
    """Yield every record of a person, topic by topic; of an erased one what is in clear. Raises LogError."""
    for label, topic in topics(settings.topics).items():
        kind: Any = topic.event
        if "subject" not in shapes(kind):
            continue
        for record in read_topic(settings, label):
            if subject.encode() not in (record.payload or b""):  # much quicker than decoding each
                continue
            event: Any = record.decode_either(kind)
            if not isinstance(event, Poison) and event.subject == subject:
                yield PersonRecord(label, record, event)


def reads_of(settings: Settings, subject: str) -> Iterator[tuple[RequestEvent, bool]]:
    """Yield requests and commands that opened words of a person, and whether each names it. Raises LogError."""
    for record in read_topic(settings, "requests") if "requests" in topics(settings.topics) else ():
        event = record.decode(RequestEvent)
        if isinstance(event, Poison):
            continue
        is_named = subject in event.metadata.get(PERSONS_READ, "").split()
        if is_named or MORE_PERSONS in event.metadata:
            yield event, is_named
