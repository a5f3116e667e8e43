"""What one stage reads, in numbers.

    took: a record ──► events in, age ──► done: its partition is done up to here
                           └──────────────────┴──► tell: lag in records, and in seconds

Lag is counted from what is done to the end of the log as the client last heard of it, so it costs no question to the
broker. In seconds it is the age of the oldest record that was taken up and is not done; where none is in work and some
wait, of the one that was taken up last, which is older than they are.

Not covered: what comes while nobody polls. While a round or a step goes on, and of partitions that are paused, the
client hears nothing new, and the lag is what it was.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from streams.kafka.topics import topics
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.settings.model import Topics

LOOK_EVERY_S = 1.0

TopicPartition = tuple[str, int]
Standing = Callable[[], Mapping[TopicPartition, tuple[int, int]]]
"""Returns, for each partition owned, the next offset that is not done, and the end of the log."""


class LagMeter:
    """The numbers of one stage's reading."""

    def __init__(self, meter: Meter, stage: str, settings: Topics, standing: Standing) -> None:
        """`tell` asks `standing`; the names of topics are told by `settings`."""
        self._meter, self._stage, self._standing = meter, stage, standing
        self._labels = {topic.name: label for label, topic in topics(settings).items()}
        self._lock = threading.Lock()
        self._undone: dict[TopicPartition, deque[tuple[int, int]]] = {}
        self._last: dict[TopicPartition, int] = {}
        """Timestamp of the record that was taken up last, ms."""
        self._told: set[str] = set()
        self._next_look = 0.0

    def took(self, tp: TopicPartition, offset: int, timestamp_ms: int) -> None:
        """Count a record that is taken up now."""
        if not self._meter.on:
            return
        label = self._labels[tp[0]]
        self._meter.add(catalog.EVENTS_IN, self._stage, label)
        self._meter.observe(catalog.EVENT_AGE, max(0.0, time.time() - timestamp_ms / 1000), self._stage, label)
        with self._lock:
            self._undone.setdefault(tp, deque()).append((offset, timestamp_ms))
            self._last[tp] = timestamp_ms

    def done(self, tp: TopicPartition, next_offset: int) -> None:
        """Take note that everything below `next_offset` is done."""
        if not self._meter.on:
            return
        with self._lock:
            undone = self._undone.get(tp)
            while undone and undone[0][0] < next_offset:
                undone.popleft()

    def revoked(self, tps: Iterable[TopicPartition]) -> None:
        """Forget partitions that somebody else reads now."""
        with self._lock:
            for tp in tps:
                self._undone.pop(tp, None)
                self._last.pop(tp, None)

    def look(self) -> None:
        """Call `tell` if the last time is a while ago. For the thread that polls: no other may ask the client."""
        if self._meter.on and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            self.tell()

    def tell(self) -> None:
        """Set the lag of each topic: the sum over its partitions, and the oldest of them."""
        now_s = time.time()
        standing = self._standing()
        with self._lock:
            oldest = self._last | {tp: undone[0][1] for tp, undone in self._undone.items() if undone}
        lags: dict[str, tuple[int, float]] = {label: (0, 0.0) for label in self._told}
        for tp, (next_offset, end) in standing.items():
            records, age_s = lags.get(self._labels[tp[0]], (0, 0.0))
            behind_s = max(0.0, now_s - oldest[tp] / 1000) if tp in oldest and end > next_offset else 0.0
            lags[self._labels[tp[0]]] = (records + max(0, end - next_offset), max(age_s, behind_s))
        self._told = set(lags)
        for label, (records, age_s) in lags.items():
            self._meter.set(catalog.LAG_RECORDS, records, self._stage, label)
            self._meter.set(catalog.LAG_SECONDS, age_s, self._stage, label)
