"""Write an event as a program of somebody else may: whatever its fields say, and in any partition."""

from __future__ import annotations

from typing import Any

from schemas.events import Event
from streams.kafka.producer import Producer
from streams.kafka.record import key_of, partition_of
from streams.kafka.topics import topic_of
from streams.settings.model import Settings
from tests.support.processes import by_another_writer


def write_unchecked(settings: Settings, event: Event, *, misplaced: bool = False, **changes: Any) -> None:
    """Write an event that our own writers refuse, or put it where another partitioner would."""
    topic = topic_of(type(event), settings.topics)
    own = partition_of(getattr(event, topic.key), topic.partitions)
    place = topic.name, (own + misplaced) % topic.partitions
    with Producer(settings, linger_ms=0) as producer:
        producer.send_bytes(place, key_of(event, topic), by_another_writer(event, **changes))
