"""Compact an archive: merge small ranges, and remove old ones.

    compact   adjacent small ranges ──► their records, written as one range ──► one commit: the same rows
    expire    ranges before the first that has a newer record ──► one commit: they are not part of the table any more

Files that are no longer part of a table stay for a day, for readers that began earlier, and are then removed. Several
processes may compact at once, also during a sync: if two replace files of one table, Delta accepts the first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from streams.arrow import decode
from streams.kafka.topics import LABELS, topics
from streams.settings.model import Settings
from streams.tools.archive.segment_writer import RangeWriter
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.tables import ArchiveExtent, Change, Segment, TableState

MERGED_RANGES = 16
"""Adjacent small ranges that a sync merges."""
SMALL = 0.5
"""A range below this share of its largest size is small."""

log = logging.getLogger("streamward.archive")


class Compacted(NamedTuple):
    """What became of one topic's files."""

    label: str
    before: int
    after: int
    """Files that are part of the table."""
    removed: int
    """Files that were not part of it any more, and are gone now."""


class Expired(NamedTuple):
    """What is left of one partition."""

    label: str
    partition: int
    first: int
    """The first offset that is kept."""
    records: int
    """That are not part of the archive any more, as are the following two."""
    segments: int
    bytes: int


class _OffsetRange(NamedTuple):
    """One range, and its files."""

    first: int
    next: int
    files: tuple[Segment, ...]

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def compact(settings: Settings, labels: Iterable[str] = LABELS, *, least: int = 2) -> list[Compacted]:
    """Merge small ranges, where `least` of them are adjacent, and remove files that were replaced long ago.

    Raises LogError if a file is missing or damaged, or cannot be written.
    """
    done = []
    for label in labels:
        archive = ArchiveReader(settings)
        state = archive.state(label)
        if state is None:
            continue
        before = sum(len(extent.segments) for extent in state.extents.values())
        for partition, extent in sorted(state.extents.items()):
            for spans in _mergeable(settings, extent, least):
                _merge(settings, archive, label, partition, spans)
        removed = archive.table(label).vacuum()
        state = archive.state(label)
        after = 0 if state is None else sum(len(extent.segments) for extent in state.extents.values())
        done.append(Compacted(label, before, after, removed))
    return done


def expire(
    settings: Settings, before_ms: int, labels: Iterable[str] = LABELS, *, dry_run: bool = False
) -> list[Expired]:
    """Remove the ranges at the beginning of each partition that have no record from `before_ms` or later.

    With `dry_run` only return what would be. Raises LogError if the archive cannot be read or written.
    """
    done = []
    for label in labels:
        archive = ArchiveReader(settings)
        while (state := archive.state(label)) is not None:
            old = {partition: _old(extent, before_ms) for partition, extent in sorted(state.extents.items())}
            expired = tuple(segment for spans in old.values() for span in spans for segment in span.files)
            if dry_run or not expired or archive.table(label).commit(state, Change(removed=expired)):
                done += [_expiry(label, partition, spans) for partition, spans in old.items() if spans]
                break
            archive.refresh()
        if not dry_run and state is not None:
            archive.table(label).vacuum()
    return done


def is_due(settings: Settings, state: TableState) -> bool:
    """Return whether a topic has so many adjacent small files that a sync should merge them."""
    return any(True for extent in state.extents.values() for _ in _mergeable(settings, extent, MERGED_RANGES))


def _expiry(label: str, partition: int, spans: list[_OffsetRange]) -> Expired:
    files = [file for span in spans for file in span.files]
    records, size = sum(span.records for span in spans), sum(span.bytes for span in spans)
    return Expired(label, partition, spans[-1].next, records, len(files), size)


def _spans(extent: ArchiveExtent) -> Iterator[_OffsetRange]:
    for (first, next_), files in groupby(extent.segments, key=lambda segment: (segment.first, segment.next)):
        yield _OffsetRange(first, next_, tuple(files))


def _old(extent: ArchiveExtent, before_ms: int) -> list[_OffsetRange]:
    """Return the ranges before the first that is too new: what is left has no gap."""
    old = []
    for span in _spans(extent):
        if any(file.records and file.to_ms >= before_ms for file in span.files):
            break
        old.append(span)
    return old


def _mergeable(settings: Settings, extent: ArchiveExtent, least: int) -> Iterator[list[_OffsetRange]]:
    """Yield lists of adjacent small ranges, at least `least`, that fit into one."""
    limits = settings.archive
    adjacent: list[_OffsetRange] = []
    for span in _spans(extent):
        is_small = span.records < limits.segment_records * SMALL and span.bytes < limits.segment_bytes * SMALL
        fits = sum(chosen.records for chosen in adjacent) + span.records <= limits.segment_records
        fits = fits and sum(chosen.bytes for chosen in adjacent) + span.bytes <= limits.segment_bytes * SMALL
        if is_small and fits:
            adjacent.append(span)
            continue
        if len(adjacent) >= least:
            yield adjacent
        adjacent = [span] if is_small else []
    if len(adjacent) >= least:
        yield adjacent


def _merge(settings: Settings, archive: ArchiveReader, label: str, partition: int, spans: list[_OffsetRange]) -> None:
    """Write the ranges as one, in the newest columns, and put it in their place unless another process was first."""
    name = topics(settings.topics)[label].name
    removed = tuple(file for span in spans for file in span.files)
    archive.table(label).upgrade()
    archive.refresh()
    state = archive.state(label)
    if state is None or not set(removed) <= set(state.extents[partition].segments):
        return  # another process has replaced them since they were chosen
    writing = RangeWriter(settings, archive.store, label, partition)
    records = (record for span in spans for record in archive.range((name, partition), span.files))
    for records_chunk in decode.chunks(records):
        writing.add(decode.side_by_side(name, records_chunk))
    added = tuple(writing.write_files(spans[0].first, spans[-1].next))
    if not archive.table(label).commit(state, Change(added=added, removed=removed, keeps_rows=True)):
        # the new files stay until `vacuum` removes them: the other process may have written the same, by the same names
        log.info("%s[%d]: its files were replaced by another process meanwhile", name, partition)
    archive.refresh()
