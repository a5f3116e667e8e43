"""Confluent's own client of a registry, and events as its serializers take and return them."""

from __future__ import annotations

from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.serialization import MessageField, SerializationContext

from schemas.events import Event
from streams.kafka.topics import topic_of
from streams.settings.model import Topics
from tests.support import factories

ANSWER_S = 20.0
SUBJECTS = {"subject.name.strategy.type": "TOPIC"}
"""For a serializer or deserializer. By default they ask `associations/...` first, a path that only Confluent's own
registry serves. Apicurio 3.3.3 never answers about one in 2,000 requests for a path that it does not serve."""


def registry_client(url: str, answer_s: float = ANSWER_S) -> SchemaRegistryClient:
    """Return a client that waits for an answer no longer than `answer_s`. Without `timeout` it waits forever."""
    return SchemaRegistryClient({"url": url, "timeout": answer_s, "max.retries": 0})


def where(event: Event, topics: Topics) -> SerializationContext:
    """Return what they are told of a record's place."""
    return SerializationContext(topic_of(type(event), topics).name, MessageField.VALUE)


def plain(event: Event) -> Any:
    """Return the dict that they write."""
    return factories.plain(event)


def with_millis(read: Any) -> Any:
    """Turn the datetimes that they make of timestamp-millis back into what lies on the wire."""
    if isinstance(read, dict):
        return {key: with_millis(value) for key, value in read.items()}
    if isinstance(read, list):
        return [with_millis(value) for value in read]
    return round(read.timestamp() * 1000) if hasattr(read, "timestamp") else read
