"""One reader of one topic in a loop worker: decides which of its records are handled now and which wait.

records ──► those of other topics from before them are read? ──► handle, as many as came
                  └── not yet: they wait, in order, and nothing after them is committed
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from streams.kafka.lag_meter import LagMeter, Positions
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import Topic
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.settings.model import Topics

HandleRecords = Callable[[Sequence[Record]], None]
"""Handles records of one topic, each partition's in order. Any error ends the worker."""
MOST_WAITING = 1000
"""Maximum number of waiting records of a partition; above it, reading pauses."""


@dataclass(frozen=True, slots=True)
class TopicReading:
    """An input of a stage: the topic, its name, and the topics read before it."""

    topic: Topic
    name: str
    after: Sequence[Topic] = ()

    @property
    def stage(self) -> str:
        """The name under which its records are counted, without the topic's."""
        return self.name.removesuffix(f".{self.topic.label}")


class LoopAgent:
    """Handles the records of one topic, and counts them on `meter`."""

    def __init__(self, reading: TopicReading, handle: HandleRecords, meter: Meter) -> None:
        self.reading = reading
        self._handle, self._meter = handle, meter
        self._waiting: dict[int, deque[Record]] = defaultdict(deque)
        self._lag: LagMeter | None = None

    def measure(self, settings: Topics, positions: Positions) -> None:
        """Meter the lag by these positions."""
        self._lag = LagMeter(self._meter, self.reading.stage, settings, positions)

    def take(self, records: Sequence[Record]) -> None:
        """Handle records, or have them wait."""
        if self._lag is not None and self._meter.on:
            for record in records:
                self._lag.took((record.at.topic, record.at.partition), record.at.offset, record.timestamp_ms)
        if not self.reading.after:
            self._now(records)
            return
        for record in records:
            self._waiting[record.at.partition].append(record)

    def take_waiting(self, is_read: Callable[[TopicPartition, int], bool]) -> bool:
        """Handle records that no longer wait for another topic; return whether any were handled.

        `is_read` says whether a partition is read up to a time in ms.
        """
        ready = [record for waiting in self._waiting.values() for record in self._ready(waiting, is_read)]
        if ready:
            self._now(ready)
        return bool(ready)

    def _ready(self, waiting: deque[Record], is_read: Callable[[TopicPartition, int], bool]) -> Iterator[Record]:
        while waiting:
            number, time_ms = waiting[0].at.partition, waiting[0].timestamp_ms
            if not all(is_read((topic.name, number), time_ms) for topic in self.reading.after):
                return
            yield waiting.popleft()

    def _now(self, records: Sequence[Record]) -> None:
        started = time.perf_counter()
        try:
            self._handle(records)
        except Exception as exc:  # any bug of a handler: it is raised again, with the coordinates
            exc.add_note(f"{records[0].at}, or one of {len(records) - 1} others: not processed, and the worker ends")
            raise
        if self._meter.on:
            each_s = (time.perf_counter() - started) / len(records)
            for record in records:
                self._meter.observe(catalog.PROCESSING, each_s, self.reading.stage)
                if self._lag is not None:
                    self._lag.done((record.at.topic, record.at.partition), record.at.offset + 1)

    # --- what waits ---------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether any record waits."""
        return any(self._waiting.values())

    def first_waiting(self, number: int) -> int | None:
        """Return the offset of the first record of a partition that waits, or None."""
        waiting = self._waiting.get(number)
        return waiting[0].at.offset if waiting else None

    def full(self) -> set[int]:
        """Return the partitions to pause."""
        return {number for number, waiting in self._waiting.items() if len(waiting) >= MOST_WAITING}

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget waiting records of lost partitions."""
        for number in numbers:
            self._waiting.pop(number, None)

    def report(self, revoked: Iterable[TopicPartition] = ()) -> None:
        """Set the lag; forget that of lost partitions."""
        if self._lag is not None:
            self._lag.revoked(revoked)
            self._lag.report()
