"""Verify an archive: every file exists, and equals what the table's log records, byte for byte.

    Delta log ──► ranges without gaps ──► each file's sha256, records, offsets, payloads ──► findings, by file

Nothing is repaired. Restore a file from a copy of the archive, or, while the log still has its records, remove the
folder of the topic and sync.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from streams.errors import LogError
from streams.kafka.topics import LABELS
from streams.settings.model import Settings
from streams.tools.archive.columns import payloads_of
from streams.tools.archive.segments import ArchiveReader, schema_of
from streams.tools.archive.store import HALF
from streams.tools.archive.tables import ArchiveExtent, Segment


class ArchiveFinding(NamedTuple):
    """A file that is missing or damaged."""

    label: str
    partition: int | None
    """None: of the whole topic."""
    file: str
    what: str


class Verified(NamedTuple):
    """What was verified, and what is wrong."""

    segments: int
    records: int
    bad: int
    """Archived records that are not events, which is not an error of the archive."""
    findings: tuple[ArchiveFinding, ...]


def verify(settings: Settings, labels: Iterable[str] = LABELS) -> Verified:
    """Return what is wrong with the archive of these topics; reads every byte of it. Raises LogError if it cannot."""
    archive = ArchiveReader(settings)
    segments: list[Segment] = []
    findings: list[ArchiveFinding] = []
    for label in labels:
        try:
            state = archive.state(label)
        except LogError as exc:
            findings.append(_topic(archive, label, str(exc)))
            continue
        if state is None:
            if strays := [name for name in archive.store.names(archive.folder(label)) if not name.startswith(HALF)]:
                findings.append(_topic(archive, label, f"holds {', '.join(strays)}, and no Delta log"))
            continue
        for partition, extent in sorted(state.extents.items()):
            segments += extent.segments
            findings += _partition(archive, label, partition, extent)
    records, bad = sum(segment.records for segment in segments), sum(segment.bad for segment in segments)
    return Verified(len(segments), records, bad, tuple(findings))


def _partition(archive: ArchiveReader, label: str, partition: int, extent: ArchiveExtent) -> Iterator[ArchiveFinding]:
    expected = extent.first
    for (first, next_), files in groupby(extent.segments, key=lambda part: (part.first, part.next)):
        for segment in files:
            if first != expected:
                yield _finding(segment, f"begins at offset {first}, expected {expected}")
            try:
                archive.check(segment)
                archive.sound(segment)
                yield from _segment(archive, segment)
            except LogError as exc:
                yield _finding(segment, str(exc).removeprefix(f"{segment.path}: "))
        expected = next_
    if expected != extent.next:
        problem = f"partition {partition} is archived up to offset {extent.next}, but its files end at {expected}"
        yield ArchiveFinding(label, partition, archive.store.location(archive.folder(label)), problem)


def _segment(archive: ArchiveReader, segment: Segment) -> Iterator[ArchiveFinding]:
    offsets: list[int] = []
    with archive.open_segment(segment) as file:
        schema = schema_of(file)
        for group in range(file.metadata.num_row_groups):
            table = file.read_row_group(group, use_threads=False)
            offsets += map(int, table["_offset"].to_pylist())
            payloads_of(schema, table)  # each can be made again
    if len(offsets) != segment.records:
        yield _finding(segment, f"has {len(offsets)} records, expected {segment.records}")
    if offsets != sorted(set(offsets)) or (offsets and not segment.first <= offsets[0] <= offsets[-1] < segment.next):
        yield _finding(segment, f"has offsets outside {segment.first} to {segment.next - 1}, or twice")


def _topic(archive: ArchiveReader, label: str, problem: str) -> ArchiveFinding:
    return ArchiveFinding(label, None, archive.store.location(archive.folder(label)), problem)


def _finding(segment: Segment, problem: str) -> ArchiveFinding:
    return ArchiveFinding(segment.label, segment.partition, segment.path, problem)
