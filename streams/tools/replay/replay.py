"""What the steps of a replay share: where they read, where they write, and who may stop them.

    source, history ──► Replay ──► copy, rescore, regroup ──► Writer ──► the experiment's own log

An experiment has one writer, and the source alone decides in which order it writes each partition. So the end of a
partition says how far it came: after a stop or a kill the same records are produced again, and those that are there
already are skipped.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from schemas.events import RewardSource, SourceRange
from streams.kafka import admin
from streams.kafka.history import History
from streams.kafka.producer import Producer
from streams.kafka.record import TopicPartition, murmur2
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.replay.experiments import Experiment

T = TypeVar("T")
REPORT_EVERY = 200
"""Records between two progress reports."""
MAX_UNACKNOWLEDGED_BYTES = 8 * 1024 * 1024
"""Payload that may wait to be acknowledged, so that memory does not grow with what is copied."""

Report = Callable[[str, int, int | None], None]
"""Called with a step, how many of its items are done, and how many there are (None: unknown)."""


class Stopped(Exception):
    """Somebody asked to stop. What was written stays, and running again continues after it."""


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """Who may stop a long piece of work, and where its progress is reported."""

    stop: threading.Event
    report: Report = lambda step, done, of: None

    def over(self, step: str, items: Iterable[T], of: int | None = None) -> Iterator[T]:
        """Yield the items and report how many. Raises Stopped once `stop` is set."""
        done = 0
        for done, item in enumerate(items, start=1):
            if self.stop.is_set():
                raise Stopped
            yield item
            if done % REPORT_EVERY == 0:
                self.report(step, done, of)
        self.report(step, done, of if of is not None else done)


class Writer:
    """Writes an experiment's records, each partition in an order that is always the same."""

    def __init__(self, settings: Settings, producer: Producer) -> None:
        """Find where the topics end. Raises NotFoundError without the topics, LogError without an answer."""
        self._producer = producer
        self._topics = topics(settings.topics)
        self._there = {tp: end for tp, (_, end) in admin.offsets(settings, self._topics).items()}
        self._position: Counter[TopicPartition] = Counter()
        self._waiting_bytes = 0
        self.skipped: Counter[str] = Counter()
        """Records that were there already, by label."""

    def has(self, label: str, partition: int) -> bool:
        """Return whether the next record of this partition was written before; if so, skip it."""
        tp = (self._topics[label].name, partition)
        if not self._there[tp]:
            return False
        self._there[tp] -= 1
        self._position[tp] += 1
        self.skipped[label] += 1
        return True

    def write(self, label: str, partition: int, key: bytes | None, payload: bytes, timestamp_ms: int) -> None:
        """Write the next record of this partition, unless it is there. Raises as `Producer.send_bytes`."""
        if not self.has(label, partition):
            name = self._topics[label].name
            self._producer.send_bytes((name, partition), key, payload, timestamp_ms=timestamp_ms)
            self._position[name, partition] += 1
            self._waiting_bytes += len(payload)
            if self._waiting_bytes > MAX_UNACKNOWLEDGED_BYTES:
                self.flush()

    def ranges(self, *labels: str) -> list[SourceRange]:
        """Return the offsets that this writer wrote, or found written; others may have written after them since."""
        names = {self._topics[label].name for label in labels}
        return [
            SourceRange(topic=topic, partition=partition, first=0, next=count)
            for (topic, partition), count in self._position.items()
            if topic in names
        ]

    def partition_of(self, label: str, key: bytes | None) -> int:
        """Return the partition of a key; the first one without a key, where a client would choose at random."""
        return 0 if key is None else (murmur2(key) & 0x7FFFFFFF) % self._topics[label].partitions

    def flush(self) -> None:
        """Return once everything is acknowledged."""
        self._producer.flush()
        self._waiting_bytes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One experiment while it is written."""

    source: Settings
    """Of the log that is replayed."""
    own: Settings
    """Of the experiment's own log."""
    history: History
    """Where the source is read."""
    about: Experiment
    keys: frozenset[bytes]
    """Of the tasks that were chosen, and of all that belongs to them."""
    scorers: tuple[RewardSource, ...]
    """Score again with these; none: copy the recorded rewards."""
    folder: Path
    writer: Writer
    progress: ReplayProgress
