"""Meter what one stage reads: events in, their age, and how far it lags.

    took: a record ──► events in, age ──► done: its partition is done up to here
                           └──────────────────┴──► report: lag in records, and in seconds

Lag is counted from the first offset that is not done to the end of the log as the client last heard of it, without a
request to the broker. In seconds it is the age of the oldest record that was read and is not done; if none is in
work and some wait, the age of the last one read, which is older than they are.

The client hears of new records only when it polls: during a round or a step, and on paused partitions, lag does not
change.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from streams.kafka.record import TopicPartition
from streams.kafka.topics import topics
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.settings.model import Topics

LOOK_EVERY_S = 1.0

Positions = Callable[[], Mapping[TopicPartition, tuple[int, int]]]
"""Returns, for each partition owned, the first offset that is not done, and the end of the log."""


class LagMeter:
    """Meters the records that one stage reads."""

    def __init__(self, meter: Meter, stage: str, settings: Topics, positions: Positions) -> None:
        """`report` calls `positions`; `settings` has the names of the topics."""
        self._meter, self._stage, self._positions = meter, stage, positions
        self._labels = {topic.name: label for label, topic in topics(settings).items()}
        self._lock = threading.Lock()
        self._undone: dict[TopicPartition, deque[tuple[int, int]]] = {}
        self._last: dict[TopicPartition, int] = {}
        """Timestamp of the last record read, ms."""
        self._reported: set[str] = set()
        self._next_look = 0.0

    def took(self, tp: TopicPartition, offset: int, timestamp_ms: int) -> None:
        """Count a record that is being read now."""
        if not self._meter.on:
            return
        label = self._labels[tp[0]]
        self._meter.add(catalog.EVENTS_IN, self._stage, label)
        self._meter.observe(catalog.EVENT_AGE, max(0.0, time.time() - timestamp_ms / 1000), self._stage, label)
        with self._lock:
            self._undone.setdefault(tp, deque()).append((offset, timestamp_ms))
            self._last[tp] = timestamp_ms

    def done(self, tp: TopicPartition, next_offset: int) -> None:
        """Mark everything below `next_offset` as done."""
        if not self._meter.on:
            return
        with self._lock:
            undone = self._undone.get(tp)
            while undone and undone[0][0] < next_offset:
                undone.popleft()

    def revoked(self, tps: Iterable[TopicPartition]) -> None:
        """Forget partitions that another member reads now."""
        with self._lock:
            for tp in tps:
                self._undone.pop(tp, None)
                self._last.pop(tp, None)

    def look(self) -> None:
        """Call `report` once a second. For the polling thread: no other may use the client."""
        if self._meter.on and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            self.report()

    def report(self) -> None:
        """Set the lag of each topic: in records summed over its partitions, in seconds of the oldest."""
        now_s = time.time()
        positions = self._positions()
        with self._lock:
            oldest = self._last | {tp: undone[0][1] for tp, undone in self._undone.items() if undone}
        lags: dict[str, tuple[int, float]] = {label: (0, 0.0) for label in self._reported}
        for tp, (next_offset, end) in positions.items():
            records, age_s = lags.get(self._labels[tp[0]], (0, 0.0))
            behind_s = max(0.0, now_s - oldest[tp] / 1000) if tp in oldest and end > next_offset else 0.0
            lags[self._labels[tp[0]]] = (records + max(0, end - next_offset), max(age_s, behind_s))
        self._reported = set(lags)
        for label, (records, age_s) in lags.items():
            self._meter.set(catalog.LAG_RECORDS, records, self._stage, label)
            self._meter.set(catalog.LAG_SECONDS, age_s, self._stage, label)
