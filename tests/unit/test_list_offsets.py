"""Offsets of partitions while a broker restarts: an answer without an offset is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import OffsetSpec

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


def test_a_consumer_takes_no_missing_answer_for_an_offset() -> None:
    missing = [ck.TopicPartition("tasks", 0, ck.OFFSET_INVALID)]
    consumer: Any = SimpleNamespace(offsets_for_times=lambda *_, **__: missing)
    with pytest.raises(ck.KafkaException, match="OFFSET_NOT_AVAILABLE"):
        reader.offsets_of(consumer, [("tasks", 0)], LATEST, 1.0)
    looking = PartitionReader.__new__(PartitionReader)
    looking._consumer, looking._outage, looking._settings = consumer, None, Settings()
    with pytest.raises(LogError):
        looking.first_at(("tasks", 0), 1000)
