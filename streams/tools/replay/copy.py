"""Copy what belongs to the chosen tasks into an experiment's own log, and go on where that log ends.

    tasks, responses, rewards, group-control of the source ──► those under a chosen key ──► policy renamed ──► the same
    topics, partitions, order and times of the experiment

An experiment has one writer, and it writes each partition in an order that follows from the source alone. So where a
partition ends says how far the writing came: after a stop or a kill the same records are made again, and those that are
there already are passed over.

Not covered: a record under a chosen key that cannot be read. It is counted and left behind.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from schemas.events import GroupControl, Response, Reward, RewardSource, SourceRange, Task
from schemas.serde import Poison, encode
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.record import Record, TopicPartition, murmur2
from streams.kafka.topics import Topic, topics
from streams.settings.model import Settings
from streams.tools.archive.history import History
from streams.tools.replay.selection import bounds

T = TypeVar("T")
TOLD_EVERY = 200
"""Records between two words about how far it came."""
MOST_WAITING_BYTES = 8 * 1024 * 1024
"""Payload that may wait to be acknowledged, so that memory does not grow with what is copied."""


class Stopped(Exception):
    """Somebody asked to stop; what was written stays, and running again goes on behind it."""


def _nobody(stage: str, done: int, of: int | None) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Who may stop a long piece of work, and who is told how far it came."""

    stop: threading.Event
    told: Callable[[str, int, int | None], None] = _nobody

    def over(self, stage: str, items: Iterable[T], of: int | None = None) -> Iterator[T]:
        """Yield the items and tell how many. Raises Stopped when it was asked for."""
        done = 0
        for done, item in enumerate(items, start=1):
            if self.stop.is_set():
                raise Stopped
            yield item
            if done % TOLD_EVERY == 0:
                self.told(stage, done, of)
        self.told(stage, done, of if of is not None else done)


class Writer:
    """Writes an experiment's records, each partition in an order that is always the same. Use it with its producer."""

    def __init__(self, settings: Settings, producer: Producer) -> None:
        """Find where the topics end. Raises NotFoundError without the topics, LogError without an answer."""
        self._producer = producer
        self._topics = topics(settings.topics)
        self._there = {tp: end for tp, (_, end) in admin.offsets(settings, self._topics).items()}
        self._position: Counter[TopicPartition] = Counter()
        self._waiting_bytes = 0
        self.passed: Counter[str] = Counter()
        """Records that were there already, by label."""

    def has(self, label: str, partition: int) -> bool:
        """Return whether the next record of this partition was written before; it is then passed over."""
        tp = (self._topics[label].name, partition)
        if not self._there[tp]:
            return False
        self._there[tp] -= 1
        self._position[tp] += 1
        self.passed[label] += 1
        return True

    def write(self, label: str, partition: int, key: bytes | None, payload: bytes, timestamp_ms: int) -> None:
        """Write the next record of this partition, unless it is there. Raises as `Producer.send_bytes`."""
        if not self.has(label, partition):
            name = self._topics[label].name
            self._producer.send_bytes((name, partition), key, payload, timestamp_ms=timestamp_ms)
            self._position[name, partition] += 1
            self._waiting_bytes += len(payload)
            if self._waiting_bytes > MOST_WAITING_BYTES:
                self.flush()

    def ranges(self, *labels: str) -> list[SourceRange]:
        """Return where what this writer wrote, or found written, lies; others may have written behind it since."""
        names = {self._topics[label].name for label in labels}
        return [
            SourceRange(topic=topic, partition=partition, first=0, next=count)
            for (topic, partition), count in self._position.items()
            if topic in names
        ]

    def partition_of(self, label: str, key: bytes | None) -> int:
        """Return where a key goes; the first partition for none, where any client would choose by chance."""
        return 0 if key is None else (murmur2(key) & 0x7FFFFFFF) % self._topics[label].partitions

    def flush(self) -> None:
        """Return once everything is acknowledged."""
        self._producer.flush()
        self._waiting_bytes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Renaming:
    """What is changed on the way: the policy, and with scorers who judges."""

    policy: str
    name: str
    scorers: tuple[RewardSource, ...] = ()

    def of(self, record: Record, topic: Topic) -> bytes | None:
        """Return the payload for the experiment, or None for a record that cannot be read.

        An event of another policy than the source's stays what it is: the join found a contradiction in it, and does.
        """
        event = record.decode(topic.event)
        if isinstance(event, Poison):
            return None
        if isinstance(event, GroupControl):
            return record.payload
        assert isinstance(event, (Task, Response, Reward))  # noqa: S101 - the topic's own type
        if event.policy == self.policy:
            event = replace(event, policy=self.name)
        if isinstance(event, Task) and self.scorers:
            event = replace(event, reward_sources=self.scorers)
        return encode(event)


def copied(scorers: Iterable[RewardSource]) -> tuple[str, ...]:
    """Return the labels of the topics that are copied; with scorers of its own an experiment has its own rewards."""
    every = ("tasks", "responses", "rewards", "group-control")
    return tuple(label for label in every if label != "rewards" or not tuple(scorers))


def copy(
    source: Settings,
    history: History,
    ranges: Iterable[SourceRange],
    keys: frozenset[bytes],
    renaming: Renaming,
    writer: Writer,
    watch: CopyProgress,
) -> Counter[str]:
    """Copy what lies under `keys`, and return how many records of each topic, and how many were `unreadable`.

    Raises Stopped, LogError if either log fails, EventError for a record that the experiment's topic does not take.
    """
    counts: Counter[str] = Counter()
    for label in copied(renaming.scorers):
        topic = topics(source.topics)[label]
        starts, ends = bounds(ranges, topic.name)
        of = sum(ends[tp] - starts[tp] for tp in starts)
        for record in watch.over(f"copying {label}", history.read(starts, ends), of):
            if record.key not in keys:
                continue
            payload = renaming.of(record, topic)
            if payload is None:
                counts["unreadable"] += 1
                continue
            counts[label] += 1
            writer.write(label, record.at.partition, record.key, payload, record.timestamp_ms)
    writer.flush()
    return counts


def committed(settings: Settings, groups: Mapping[str, str]) -> None:
    """Tell these consumer groups of the experiment that they are done with their topic as far as it reaches.

    What was copied was answered and scored where it came from; an agent that runs on the experiment begins behind it.
    Raises LogError if the broker refuses.
    """
    import confluent_kafka as ck

    from streams.errors import LogError
    from streams.kafka.client import client_config

    for group, label in groups.items():
        ends = admin.offsets(settings, [label])
        client = ck.Consumer({**client_config(settings.kafka), "group.id": settings.topics.prefix + group})
        try:
            client.commit(offsets=[ck.TopicPartition(*tp, end) for tp, (_, end) in ends.items()], asynchronous=False)
        except ck.KafkaException as exc:
            raise LogError(f"group {settings.topics.prefix}{group}: {exc.args[0].str()}; run the same again") from exc
        finally:
            client.close()
