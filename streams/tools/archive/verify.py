"""Verify an archive: is every file there, and byte for byte what its manifest records?

    manifests ──► ranges without gaps ──► each segment's sha256, records, offsets ──► findings, by file

Nothing is repaired. Restore a segment from a copy of the archive, or, while the log still has its records, remove the
folder of the partition and sync.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from streams.errors import LogError
from streams.kafka.topics import LABELS
from streams.settings.model import Settings
from streams.tools.archive.manifests import Manifest, Segment, partition_numbers
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.store import HALF


class ArchiveFinding(NamedTuple):
    """A file that is missing or damaged."""

    label: str
    partition: int
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
        there = set(partition_numbers(archive.store.names(archive.folder(label))))
        count = max(there, default=-1) + 1
        for partition in sorted(there):
            try:
                manifest = archive.manifest(label, partition)
            except LogError as exc:
                findings.append(_folder(archive, label, partition, str(exc)))
                continue
            if manifest is None:
                findings += _left_over(archive, label, partition)
                continue
            count = max(count, manifest.partitions)
            segments += manifest.segments
            findings += _partition(archive, manifest)
        what = "this partition is missing: its folder is gone, or a first sync was killed; sync again"
        findings += [_folder(archive, label, partition, what) for partition in sorted(set(range(count)) - there)]
    records, bad = sum(each.records for each in segments), sum(each.bad for each in segments)
    return Verified(len(segments), records, bad, tuple(findings))


def _partition(archive: ArchiveReader, manifest: Manifest) -> Iterator[ArchiveFinding]:
    expected = manifest.first
    for segment in manifest.segments:
        if segment.first != expected:
            yield _finding(segment, f"begins at offset {segment.first}, expected {expected}")
        expected = segment.next
        try:
            archive.check(segment)
            archive.sound(segment)
            yield from _segment(archive, segment)
        except LogError as exc:
            yield _finding(segment, str(exc).removeprefix(f"{segment.path}: "))


def _segment(archive: ArchiveReader, segment: Segment) -> Iterator[ArchiveFinding]:
    with archive.opened(segment) as file:
        offsets = list(map(int, file.read(columns=["_offset"], use_threads=False)["_offset"].to_pylist()))
    if len(offsets) != segment.records:
        yield _finding(segment, f"has {len(offsets)} records, expected {segment.records}")
    if offsets != sorted(set(offsets)) or (offsets and not segment.first <= offsets[0] <= offsets[-1] < segment.next):
        yield _finding(segment, f"has offsets outside {segment.first} to {segment.next - 1}, or twice")


def _left_over(archive: ArchiveReader, label: str, partition: int) -> Iterator[ArchiveFinding]:
    """Yield a finding if there are segments and no manifest; files of a running sync do not count."""
    names = archive.store.names(archive.folder(label, partition))
    if kept := [name for name in names if not name.startswith(HALF)]:
        yield _folder(archive, label, partition, f"holds {len(kept)} segments, but its manifest is gone")


def _folder(archive: ArchiveReader, label: str, partition: int, what: str) -> ArchiveFinding:
    return ArchiveFinding(label, partition, archive.store.where(archive.folder(label, partition)), what)


def _finding(segment: Segment, what: str) -> ArchiveFinding:
    return ArchiveFinding(segment.label, segment.partition, segment.path, what)
