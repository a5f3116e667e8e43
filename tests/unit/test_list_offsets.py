"""Offsets of partitions while a broker restarts: an answer without an offset is none."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import NewTopic, OffsetSpec

from streams.errors import LogError
from streams.kafka import admin, reader
from streams.kafka.reader import LATEST, PartitionReader
from streams.settings.model import Kafka, Settings


class Answers:
    """A client whose answers about one partition have these offsets, one after another."""

    def __init__(self, *offsets: int) -> None:
        self._offsets = list(offsets)

    def list_offsets(self, asked: dict[ck.TopicPartition, Any], **_: object) -> dict[ck.TopicPartition, Any]:
        offset = self._offsets.pop(0) if len(self._offsets) > 1 else self._offsets[0]
        return {tp: SimpleNamespace(result=lambda: SimpleNamespace(offset=offset)) for tp in asked}


def end(monkeypatch: pytest.MonkeyPatch, *offsets: int) -> int:
    client: Any = Answers(*offsets)
    monkeypatch.setattr(admin, "_look_again", lambda *_: client)
    settings = Settings(kafka=Kafka(request_timeout_s=0.3))
    return admin._list_offsets(settings, client, [("tasks", 0)], OffsetSpec.latest())["tasks", 0]


def test_a_partition_without_an_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for an offset, it was the end of a transaction that nobody had begun, and a place that is gone."""
    assert end(monkeypatch, ck.OFFSET_INVALID, 7) == 7
    assert end(monkeypatch, -1) == -1  # no record that late


def test_a_partition_that_is_never_answered_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LogError):
        end(monkeypatch, ck.OFFSET_INVALID)


def test_new_topics_have_more_time_than_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy node took more than kafka.request_timeout_s to list a whole log's topics, and to lead them."""
    begun = time.monotonic()
    settings = Settings(kafka=Kafka(request_timeout_s=0.05))

    def is_later(limit_s: float) -> bool:
        return time.monotonic() - begun > limit_s

    client: Any = SimpleNamespace(
        create_topics=lambda new, **_: {},
        list_offsets=lambda asked, **_: Answers(7 if is_later(0.6) else ck.OFFSET_INVALID).list_offsets(asked),
    )
    monkeypatch.setattr(admin, "connected", lambda *_: client)
    monkeypatch.setattr(admin, "_look_again", lambda *_: client)
    monkeypatch.setattr(admin, "_counts_of", lambda *_: {"tasks": 1} if is_later(0.3) else {})
    admin.create(settings, [NewTopic("tasks", num_partitions=1)])
    assert is_later(0.6)


def test_a_consumer_takes_no_missing_answer_for_an_offset() -> None:
    missing = [ck.TopicPartition("tasks", 0, ck.OFFSET_INVALID)]
    consumer: Any = SimpleNamespace(offsets_for_times=lambda *_, **__: missing)
    with pytest.raises(ck.KafkaException, match="OFFSET_NOT_AVAILABLE"):
        reader.offsets_of(consumer, [("tasks", 0)], LATEST, 1.0)
    looking = PartitionReader.__new__(PartitionReader)
    looking._consumer, looking._outage, looking._settings = consumer, None, Settings()
    with pytest.raises(LogError):
        looking.first_at(("tasks", 0), 1000)
