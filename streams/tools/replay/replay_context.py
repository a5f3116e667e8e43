"""The context of a replay's steps: the log they read, the writer, the progress, and the request to stop.

    source, history ──► Replay ──► copy, rescore, regroup ──► Writer ──► the experiment's own log

An experiment has one writer, and the source alone determines the order in which it writes each partition. So the end of
a partition tells its progress: after a stop or a kill the same records are produced again, and those already written
are skipped.
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
"""Payload that may wait to be acknowledged, so that memory does not grow with the records."""

Report = Callable[[str, int, int | None], None]
"""Called with a step, the number of its items that are done, and their total (None: unknown)."""


class Stopped(Exception):
    """A stop was requested. The records written stay, and the next run continues after them."""


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The request to stop a long piece of work, and the function that its progress is reported to."""

    stop: threading.Event
    report: Report = lambda step, done, total: None

    def track(self, step: str, items: Iterable[T], total: int | None = None) -> Iterator[T]:
        """Yield the items and report their number. Raises Stopped once `stop` is set."""
        done = 0
        for done, item in enumerate(items, start=1):
            if self.stop.is_set():
                raise Stopped
            yield item
            if done % REPORT_EVERY == 0:
                self.report(step, done, total)
        self.report(step, done, total if total is not None else done)


class Writer:
    """Writes an experiment's records, each partition in an order that is always the same."""

    def __init__(self, settings: Settings, producer: Producer) -> None:
        """Find where the topics end. Raises NotFoundError without the topics, LogError without an answer."""
        self._producer = producer
        self._topics = topics(settings.topics)
        self._unskipped = {tp: end for tp, (_, end) in admin.offsets(settings, self._topics).items()}
        self._position: Counter[TopicPartition] = Counter()
        self._waiting_bytes = 0
        self.skipped: Counter[str] = Counter()
        """Records that were written before, by label."""

    def skip_written(self, label: str, partition: int) -> bool:
        """Return whether the next record of this partition was written before, which then counts as written."""
        tp = (self._topics[label].name, partition)
        if not self._unskipped[tp]:
            return False
        self._unskipped[tp] -= 1
        self._position[tp] += 1
        self.skipped[label] += 1
        return True

    def write(self, label: str, partition: int, key: bytes | None, payload: bytes, timestamp_ms: int) -> None:
        """Write the next record of this partition, unless it was written before. Raises as `Producer.send_bytes`."""
        if not self.skip_written(label, partition):
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
    settings: Settings
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
