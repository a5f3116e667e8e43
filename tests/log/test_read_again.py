"""A log that is read again from its start: time acts where it acted, although the topics are read side by side."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from schemas.events import AdvantagedGroup
from schemas.serde import encode
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.record import key_of
from streams.kafka.topics import topic_of
from streams.settings.model import Settings
from tests.support.factories import control, response, reward, task
from tests.support.processes import read, running, until

pytestmark = pytest.mark.kafka

BEFORE = 1500
"""Rewards that lie before those of the task; the worker takes a second to read them."""


def test_a_group_that_was_whole_before_it_expired_is_whole_when_it_is_read_again(
    settings: Settings, tmp_path: Path
) -> None:
    settings = settings.model_copy(update={"topics": settings.topics.model_copy(update={"partitions": 1})})
    admin.apply_topics(settings)
    slots = [response(slot=slot) for slot in range(4)]
    controls = [control(task_id=f"other-{number}") for number in range(50)]  # task and slots are read before the last
    strangers = [reward(response(task_id=f"other-{number}")) for number in range(BEFORE)]
    begun_ms = int(time.time() * 1000) - 10_000
    with Producer(settings) as producer:
        for number, event in enumerate([task(), *slots, *strangers, *map(reward, slots), *controls, control()]):
            topic = topic_of(type(event), settings.topics)
            producer.send_bytes(topic.name, key_of(event, topic), encode(event), timestamp_ms=begun_ms + number)
    with running(settings, tmp_path, "streams"):
        until(lambda: bool(read(settings, AdvantagedGroup)), "the group", folder=tmp_path)
    ((_, group),) = read(settings, AdvantagedGroup)
    assert group.complete
    assert [member.slot for member in group.responses] == [0, 1, 2, 3]
