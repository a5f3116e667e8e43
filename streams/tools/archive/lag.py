"""Lag of the archive, as metrics.

    where a partition ends, each round ──┐
    where its archive ends, each file ───┴──► ArchiveLag ──► records and seconds, by topic

The age is that of the oldest record that is not archived, by its timestamp: it grows while nothing is archived, and is
known once that record has been read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from streams.observability import catalog
from streams.observability.metrics import OFF, Meter


@dataclass(slots=True)
class _Left:
    """The part of one partition that is not archived."""

    end: int
    next: int
    oldest_ms: int | None = None


class ArchiveLag:
    """Fed by the sync's thread, read by the meter's when it is scraped."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._left: dict[tuple[str, int], _Left] = {}
        meter.collect(self._report)

    def note_end(self, label: str, partition: int, end: int, archived: Callable[[], int]) -> None:
        """Note the end of a partition; `archived` returns that of its archive, if it is not known."""
        left = self._left.get((label, partition))
        if left is not None:
            left.end = end
        elif self.meter.on:
            self._left[label, partition] = _Left(end, archived())

    def note_archived(self, label: str, partition: int, next_: int, oldest_ms: int | None = None) -> None:
        """Note how far a partition is archived; `oldest_ms` is the time of the record there, if it was read."""
        if self.meter.on:
            end = max(next_, self._left[label, partition].end)
            self._left[label, partition] = _Left(end, next_, oldest_ms if next_ < end else None)

    def _report(self) -> None:
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


UNREPORTED = ArchiveLag(OFF)
"""For a sync without metrics; it keeps nothing, so all may share it."""
