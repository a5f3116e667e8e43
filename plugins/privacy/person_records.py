"""The records of a person: every topic with a subject ──► those of the person, opened; the newest record of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from schemas.avro_schema import shapes
from schemas.events import RequestEvent
from schemas.key_source import MORE_PERSONS, PERSONS_READ
from schemas.serde import Poison
from streams.kafka.admin import read_topic
from streams.kafka.history import History
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings


class PersonRecord(NamedTuple):
    """A record about a person."""

    label: str
    record: Record
    event: Any


def records_of(settings: Settings, *subjects: str) -> Iterator[PersonRecord]:
    """Yield every record of a person, topic by topic; of an erased one what is in clear. Raises LogError."""
    for label, kind in _kinds(settings):
        for record in read_topic(settings, label):
            if not any(subject.encode() in (record.payload or b"") for subject in subjects):  # quicker than decoding
                continue
            event: Any = record.decode_either(kind)
            if not isinstance(event, Poison) and event.subject in subjects:
                yield PersonRecord(label, record, event)


def newest_records(settings: Settings, history: History) -> dict[str, int]:
    """Return the time of the newest record of each person, ms since 1970. It needs no key. Raises LogError."""
    newest_ms: dict[str, int] = {}
    for label, kind in _kinds(settings):
        bounds = history.bounds([label])
        starts, ends = {tp: first for tp, (first, _) in bounds.items()}, {tp: end for tp, (_, end) in bounds.items()}
        for record in history.read(starts, ends):
            event: Any = record.decode_closed(kind)
            if not isinstance(event, Poison) and event.subject is not None:
                newest_ms[event.subject] = max(newest_ms.get(event.subject, 0), record.timestamp_ms)
    return newest_ms


def _kinds(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield the label and the event of each topic whose records may be of a person."""
    for label, topic in topics(settings.topics).items():
        kind: Any = topic.event
        if "subject" in shapes(kind):
            yield label, kind


def reads_of(settings: Settings, *subjects: str) -> Iterator[tuple[RequestEvent, bool]]:
    """Yield requests and commands that opened words of a person, and whether each names it. Raises LogError."""
    for record in read_topic(settings, "requests") if "requests" in topics(settings.topics) else ():
        event = record.decode(RequestEvent)
        if isinstance(event, Poison):
            continue
        is_named = not set(subjects).isdisjoint(event.metadata.get(PERSONS_READ, "").split())
        if is_named or MORE_PERSONS in event.metadata:
            yield event, is_named
