"""How far the archive is behind the log, as metrics.

    where a partition ends, by each look ──┐
    where its archive ends, by each file ──┴──► Behind ──► records and seconds, by topic

The age is that of the oldest record which is not archived, by its timestamp: it grows while nothing is written, and is
known once that record was read.

Not covered: what comes between two looks, archive.follow_s apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from streams.observability import catalog
from streams.observability.metrics import OFF, Meter


@dataclass(slots=True)
class _Left:
    """What of one partition is not archived."""

    end: int
    next: int
    oldest_ms: int | None = None


class Behind:
    """One thread tells it what it sees; the meter's asks it when it is scraped."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._left: dict[tuple[str, int], _Left] = {}
        meter.collect(self._tell)

    def ends(self, label: str, partition: int, end: int, archived: Callable[[], int]) -> None:
        """A partition ends at offset `end` now; `archived` says where its archive does, if that was never told."""
        left = self._left.get((label, partition))
        if left is not None:
            left.end = end
        elif self.meter.on:
            self._left[label, partition] = _Left(end, archived())

    def archived(self, label: str, partition: int, next_: int, oldest_ms: int | None = None) -> None:
        """A partition is archived up to `next_`; the record there is of `oldest_ms`, if it was read."""
        if self.meter.on:
            end = max(next_, self._left[label, partition].end)
            self._left[label, partition] = _Left(end, next_, oldest_ms if next_ < end else None)

    def _tell(self) -> None:
        now_ms = time.time() * 1000
        records: dict[str, int] = {}
        seconds: dict[str, float] = {}
        for (label, _), left in list(self._left.items()):
            age_s = 0.0 if left.oldest_ms is None else max(now_ms - left.oldest_ms, 0) / 1000
            records[label] = records.get(label, 0) + max(left.end - left.next, 0)
            seconds[label] = max(seconds.get(label, 0.0), age_s)
        for label in records:
            self.meter.set(catalog.ARCHIVE_LAG_RECORDS, records[label], label)
            self.meter.set(catalog.ARCHIVE_LAG_SECONDS, round(seconds[label], 3), label)


UNTOLD = Behind(OFF)
"""For a sync that nobody watches; it keeps nothing, so all may share it."""
