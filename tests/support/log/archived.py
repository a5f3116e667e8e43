"""A log that is archived, for tests: written with what a topic may hold, cut, and read again."""

from __future__ import annotations

import struct
import time
from typing import Any

import confluent_kafka as ck
import pytest
from click.testing import Result
from confluent_kafka import admin

from schemas.serde import encode
from streams.kafka import admin as cluster
from streams.kafka.client import client_config
from streams.kafka.history import History
from streams.kafka.producer import Producer
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive import history
from tests.support.commands import invoke
from tests.support.factories import reward, task

ONE = 1
"""The partition most of these records lie in."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings of few partitions: each costs time to create, and to look at."""
    shapes = settings.topics.model_copy(update={"partitions": 3, "policy_partitions": 1})
    return settings.model_copy(update={"topics": shapes})


def name(settings: Settings, label: str = "rewards") -> str:
    return topics(settings.topics)[label].name


def write(settings: Settings, count: int, *, first: int = 0, partition: int = ONE) -> None:
    """Write rewards with rising values, the newest an hour old."""
    begin_ms = _an_hour_ago()
    with Producer(settings) as producer:
        for number in range(first, first + count):
            event = reward(task_id=f"t{number}", value=float(number))
            producer.send_bytes(
                (name(settings), partition), event.task_id.encode(), encode(event), timestamp_ms=begin_ms + number,
                headers=[("n", b"%d" % number)],
            )  # fmt: skip


def _an_hour_ago() -> int:
    return int(time.time() * 1000) - 3_600_000


def write_odd(settings: Settings) -> int:
    """Write what a topic may hold besides events of ours; return how many records that is."""
    odd: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (None, encode(reward()), []),
        (b"", encode(reward()), [("twice", b"1"), ("twice", b"2"), ("none", None), ("empty", b"")]),
        (b"\xff\xfe key", encode(reward()), []),
        (b"k", None, []),
        (b"k", b"", []),
        (b"k", b'{"not": "avro"}', []),
        (b"k", encode(task()), []),
        (b"k", encode(reward()) + b"x", []),
        (b"k", struct.pack(">bI", 0, 4_000_000_000) + b"x", []),
    ]
    with Producer(settings) as producer:
        for key, payload, headers in odd:
            producer.send_bytes((name(settings), ONE), key, payload, headers=headers, timestamp_ms=_an_hour_ago())
    return len(odd)


def cut(settings: Settings, before: int, partition: int = ONE, label: str = "rewards") -> None:
    """Delete every record before an offset, as retention does."""
    client = admin.AdminClient(client_config(settings.kafka))
    for future in client.delete_records([ck.TopicPartition(name(settings, label), partition, before)]).values():
        future.result()


def deleted(settings: Settings, label: str = "rewards") -> None:
    """Delete the topic, and wait until it is gone."""
    client = admin.AdminClient(client_config(settings.kafka))
    for future in client.delete_topics([name(settings, label)]).values():
        future.result()
    deadline = time.monotonic() + 300
    while name(settings, label) in cluster.describe(settings):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def in_the_log(settings: Settings, label: str = "rewards") -> list[Record]:
    return sorted(cluster.read_topic(settings, label), key=lambda record: record.at)


def held(source: History, label: str = "rewards") -> list[Record]:
    """Return every record of a history."""
    bounds = source.bounds([label])
    starts, ends = {tp: low for tp, (low, _) in bounds.items()}, {tp: high for tp, (_, high) in bounds.items()}
    return sorted(source.read(starts, ends), key=lambda record: record.at)


def small(settings: Settings, records: int = 10) -> Settings:
    """Return the settings with small segments."""
    return settings.model_copy(update={"archive": settings.archive.model_copy(update={"segment_records": records})})


def of(settings: Settings, source: Any = "archive") -> History:
    return history.of(settings, source)


def run(settings: Settings, *arguments: str) -> Result:
    return invoke(settings, "admin", "archive", *arguments)


def elsewhere(settings: Settings) -> Settings:
    """Return settings with other topics."""
    shapes = settings.topics.model_copy(update={"prefix": settings.topics.prefix + "again."})
    return settings.model_copy(update={"topics": shapes})


def renamed(records: list[Record], settings: Settings) -> list[Record]:
    return [record._replace(at=record.at._replace(topic=name(settings))) for record in records]
