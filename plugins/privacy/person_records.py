"""The records of a person, and the versions that learnt from them.

    every topic with a subject ──► records of the person, opened
    groups of the person ──► batches and tunings with them ──► versions that learnt, and those that descend from them

The second needs no key: an erased person's groups say in clear that they were theirs.

Not covered: policies that a listed version was imported into, and copies outside the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from schemas.avro_schema import shapes
from schemas.events import AdapterEvent, AdvantagedGroup, Batch
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


@dataclass(frozen=True, slots=True)
class LearntVersion:
    """A version with something of a person in it."""

    policy: str
    version: int
    how: Literal["learnt", "descends"]
    """learnt: groups of the person were trained on; descends: it was made from such a version."""
    groups: int
    """Of the person, that it was trained on itself."""
    created_at: int


def versions_of(settings: Settings, subject: str) -> list[LearntVersion]:
    """Return the versions that learnt from a person or descend from one that did, by policy. Raises LogError."""
    places = {
        (record.at.partition, record.at.offset)
        for record in read_topic(settings, "groups")
        if subject.encode() in (record.payload or b"")
        and isinstance(group := record.decode_closed(AdvantagedGroup), AdvantagedGroup)
        and group.subject == subject
    }
    batches = _batches(settings, places)
    versions: dict[tuple[str, int], LearntVersion] = {}
    events = [record.decode(AdapterEvent) for record in read_topic(settings, "adapters")]
    trained = [event for event in events if isinstance(event, AdapterEvent) and event.kind == "trained"]
    for event in sorted(trained, key=lambda event: event.created_at):
        count = batches.get((event.policy, event.last_batch), 0)
        parent = event.policy, event.parent_version
        if (tuning := event.tuning) is not None:
            count = sum((tuning.groups_partition, group.offset) in places for group in tuning.groups)
            parent = tuning.start_policy or event.policy, tuning.start_version
        if count or parent in versions:
            how: Literal["learnt", "descends"] = "learnt" if count else "descends"
            learnt = LearntVersion(event.policy, event.version, how, count, event.created_at)
            versions[event.policy, event.version] = learnt
    return sorted(versions.values(), key=lambda version: (version.policy, version.version))


def _batches(settings: Settings, places: set[tuple[int, int]]) -> dict[tuple[str, int | None], int]:
    """Return how many of these groups each batch has, by policy and sequence."""
    counts: dict[tuple[str, int | None], int] = {}
    for record in read_topic(settings, "batches") if places else ():
        batch = record.decode(Batch)
        if not isinstance(batch, Poison):
            count = sum((batch.groups_partition, offset) in places for offset in batch.groups_offsets)
            counts.setdefault((batch.policy, batch.sequence), count)
    return counts
