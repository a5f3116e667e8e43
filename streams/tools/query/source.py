"""The sources of each topic: segments of the archive, and the offsets of the log after them.

    archive's manifests ─┬─► segments ──────────────► read_parquet
    log's bounds ────────┴─► first and next offset ─► Live         cut on offset: nothing twice, nothing missing

The archive is read first, so records that are archived meanwhile are read from the log. Records that are in neither,
because retention was faster than the archive, are reported as a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from schemas.events import Coordinates
from streams.arrow.decode import DecodedRows
from streams.errors import NotFoundError
from streams.kafka import admin
from streams.kafka.record import TopicPartition
from streams.kafka.topics import Topic, topics
from streams.settings.model import Settings
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.tables import Segment


@dataclass(frozen=True, slots=True)
class Scope:
    """Which records a view shows; None is no limit."""

    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""
    first: int | None = None
    next: int | None = None
    """Exclusive."""
    partition: int | None = None
    key: str | None = None

    @property
    def whole(self) -> bool:
        """Whether it is unlimited."""
        return self == Scope()

    def condition(self) -> str:
        """Return the limits as SQL over the columns of every view; empty without any."""
        limits = (
            ("_timestamp >= make_timestamptz({} * 1000)", self.since_ms),
            ("_timestamp < make_timestamptz({} * 1000)", self.until_ms),
            ("_offset >= {}", self.first),
            ("_offset < {}", self.next),
            ("_partition = {}", self.partition),
            ("_key = {}", None if self.key is None else "'" + self.key.replace("'", "''") + "'"),
        )
        return " AND ".join(text.format(value) for text, value in limits if value is not None)

    def choose(self, rows: DecodedRows) -> DecodedRows:
        """Return the records within the limits, before they are decoded."""
        if self.whole:
            return rows
        low = -math.inf if self.since_ms is None else self.since_ms
        high = math.inf if self.until_ms is None else self.until_ms
        first, end = self.first or 0, math.inf if self.next is None else self.next
        keep = [
            number
            for number, (at_ms, offset, key) in enumerate(zip(rows.timestamps, rows.offsets, rows.keys, strict=True))
            if low <= at_ms < high and first <= offset < end and self._has_key(key)
        ]
        return DecodedRows(
            rows.topic,
            [rows.partitions[number] for number in keep],
            [rows.offsets[number] for number in keep],
            [rows.timestamps[number] for number in keep],
            [rows.keys[number] for number in keep],
            [rows.payloads[number] for number in keep],
            [],
        )

    def _has_key(self, key: bytes | None) -> bool:
        return self.key is None or (key is not None and key.decode(errors="replace") == self.key)

    def reaches(self, segment: Segment) -> bool:
        """Return whether a segment may hold such records."""
        return not (
            (self.partition is not None and segment.partition != self.partition)
            or (self.first is not None and segment.next <= self.first)
            or (self.next is not None and segment.first >= self.next)
            or (self.since_ms is not None and segment.to_ms < self.since_ms)
            or (self.until_ms is not None and segment.from_ms >= self.until_ms)
        )


class Gap(NamedTuple):
    """Records that are neither in the archive nor in the log."""

    start: Coordinates
    reason: str


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the records of a topic are."""

    topic: Topic
    segments: tuple[Segment, ...] = ()
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    """First offset to be read from the log."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    bounds: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """First and next offset of each partition in the log."""
    missing: bool = False
    """Whether the log was read, and does not have the topic."""

    def within(self, scope: Scope) -> Parts:
        """Return the parts that can hold records of a scope."""
        low, high = scope.first or 0, scope.next
        partitions = [tp for tp in self.starts if scope.partition in (None, tp[1])]
        return replace(
            self,
            segments=tuple(segment for segment in self.segments if scope.reaches(segment)),
            starts={tp: max(self.starts[tp], low) for tp in partitions},
            ends={tp: self.ends[tp] if high is None else min(self.ends[tp], high) for tp in partitions},
        )

    @property
    def live(self) -> bool:
        """Whether anything is to be read from the log."""
        return any(self.starts[tp] < end for tp, end in self.ends.items())


def snapshot(settings: Settings, archive: ArchiveReader | None, *, log: bool) -> dict[str, Parts]:
    """Return the sources of every topic, by label: in the archive if there is one, and in the log if `log`.

    Raises LogError if the broker or the archive does not answer.
    """
    by_label = topics(settings.topics)
    segments = {label: _segments(archive, topic) for label, topic in by_label.items()}
    if not log:
        return {label: Parts(topic, segments[label]) for label, topic in by_label.items()}
    bounds = _bounds(settings, by_label)
    return {label: _cut(topic, segments[label], bounds) for label, topic in by_label.items()}


def newest(settings: Settings, topic: Topic) -> Parts:
    """Return what the log holds of one topic now. Raises LogError if the broker does not answer."""
    return _cut(topic, (), admin.offsets(settings, [topic.label]))


def seek(settings: Settings, parts: Parts, since_ms: int) -> Parts:
    """Return the parts without what the log recorded before a time. Raises LogError if the broker does not answer."""
    if not parts.live:
        return parts
    offsets = admin.offsets_at(settings, [parts.topic.label], since_ms)
    starts = {tp: parts.ends[tp] if offsets.get(tp, -1) < 0 else offsets[tp] for tp in parts.starts}
    return replace(parts, starts={tp: max(start, starts[tp]) for tp, start in parts.starts.items()})


def _segments(archive: ArchiveReader | None, topic: Topic) -> tuple[Segment, ...]:
    if archive is None:
        return ()
    return tuple(
        segment for partition in archive.partitions(topic.label) for segment in archive.segments(topic.label, partition)
    )


def _bounds(settings: Settings, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
    """Return first and next offset per partition of the topics that exist."""
    try:
        return admin.offsets(settings, labels)
    except NotFoundError:
        existing = admin.describe(settings)
        by_label = topics(settings.topics)
        return admin.offsets(settings, [label for label in labels if by_label[label].name in existing])


def _cut(topic: Topic, segments: tuple[Segment, ...], bounds: dict[TopicPartition, tuple[int, int]]) -> Parts:
    """Return where the archive ends and the log continues, partition by partition."""
    archived: dict[int, int] = {}
    for segment in segments:
        archived[segment.partition] = max(archived.get(segment.partition, 0), segment.next)
    own_bounds = {tp: bound for tp, bound in bounds.items() if tp[0] == topic.name}
    gaps, starts, ends = [], {}, {}
    for tp, (low, high) in own_bounds.items():
        begin = archived.get(tp[1], low)
        starts[tp], ends[tp] = max(begin, low), max(high, begin, low)
        position = Coordinates(topic.name, tp[1], begin)
        if low > begin:
            gaps.append(
                Gap(position, f"{low - begin} records are neither in the archive nor in the log: retention was faster")
            )
        elif 0 < high < begin:
            reason = f"the log ends at {high}, before the archive's {begin}: the topic was recreated, and is not read"
            gaps.append(Gap(position, reason))
    return Parts(topic, segments, starts, ends, tuple(gaps), own_bounds, missing=not own_bounds)
