"""An archive in pieces: the files of each range of offsets, the buckets of tasks, and the settings of an executor.

ranges of topics ──► pieces_of ──► ArchivePiece: files of one range of offsets        gaps are an error
a task ──► bucket_of ──► all records about it are worked on together
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple
from zlib import crc32

from schemas.events import SourceRange
from streams.errors import LogError
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.tables import Segment

BUCKET_BYTES = 16 * 1024 * 1024
"""Compressed segments whose tasks are worked on in one call: about ten times as much in memory."""


class ArchivePiece(NamedTuple):
    """Records of one partition that are stored in the same files, and the offsets of them that are read."""

    topic: int
    """The index of its label among those given."""
    partition: int
    first: int
    next: int
    segments: tuple[Segment, ...]


def pieces_of(settings: Settings, ranges: Iterable[SourceRange], labels: Sequence[str]) -> list[ArchivePiece]:
    """Return the pieces of these ranges of the topics with these labels, in the order of labels, partitions, offsets.

    Raises LogError, naming the offsets, if the archive does not hold all of them.
    """
    named = {topics(settings.topics)[label].name: (place, label) for place, label in enumerate(labels)}
    nonempty = [source for source in ranges if source.topic in named and source.first < source.next]
    archive, pieces = ArchiveReader(settings), []
    for source in sorted(nonempty, key=lambda source: (named[source.topic][0], source.partition)):
        place, label = named[source.topic]
        expected = source.first
        segments = archive.segments(label, source.partition)
        for (first, next_), files in groupby(segments, key=lambda segment: (segment.first, segment.next)):
            if next_ <= source.first or first >= source.next:
                continue
            if first > expected:
                raise _gap(settings, source, expected, first)
            begin, end = max(first, source.first), min(next_, source.next)
            pieces.append(ArchivePiece(place, source.partition, begin, end, tuple(files)))
            expected = end
        if expected < source.next:
            raise _gap(settings, source, expected, source.next)
    return pieces


def _gap(settings: Settings, source: SourceRange, first: int, next_: int) -> LogError:
    return LogError(
        f"{source.topic}[{source.partition}]: offsets {first} to {next_ - 1} are not in the archive in "
        f"{settings.archive.store}. Nothing was written; `streamward admin archive verify` names what is missing, and "
        "`streamward admin archive sync` archives what the log still has"
    )


def bucket_of(key: bytes, buckets: int, partition: int = 0) -> int:
    """Return the bucket of a task. With `partition`, records of its id in a wrong partition are another task.

    >>> bucket_of(b"t1", 8) == bucket_of(b"t1", 8) < 8
    True
    """
    return crc32(key, partition) % buckets


def buckets_for(pieces: Iterable[ArchivePiece], parallelism: int) -> int:
    """Return the number of buckets for the tasks in these pieces."""
    size = sum(segment.bytes for piece in pieces for segment in piece.segments)
    return max(2 * parallelism, size // BUCKET_BYTES)


def for_executors(settings: Settings) -> Settings:
    """Return settings for an executor: what decides its work, and no address, password or key.

    The archive has a path that does not depend on where a process runs.
    """
    archive, store = settings.archive, ArchiveReader(settings).store
    if store.local is not None:
        archive = archive.model_copy(update={"store": str(store.local.absolute())})
    return Settings(topics=settings.topics, advantages=settings.advantages, archive=archive)
