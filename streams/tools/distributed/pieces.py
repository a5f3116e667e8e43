"""An archive in pieces: which files hold which offsets, how many pieces work at once, and what an executor gets.

ranges of topics ──► pieces_of ──► ArchivePiece: files of one range of offsets        gaps are an error
a task ──► bucket_of ──► all that is about it is worked on together
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
"""Of compressed segments, whose tasks are worked on in one call: about ten times as much in memory."""


class ArchivePiece(NamedTuple):
    """Records of one partition that lie in the same files, and the offsets of them that are wanted."""

    topic: int
    """Which of the labels that were asked for."""
    partition: int
    first: int
    next: int
    segments: tuple[Segment, ...]


def pieces_of(settings: Settings, ranges: Iterable[SourceRange], labels: Sequence[str]) -> list[ArchivePiece]:
    """Return the pieces of these ranges of the topics with these labels, in the order of labels, partitions, offsets.

    Raises LogError, naming the offsets, if the archive does not hold all of them.
    """
    named = {topics(settings.topics)[label].name: (place, label) for place, label in enumerate(labels)}
    wanted = [one for one in ranges if one.topic in named and one.first < one.next]
    archive, found = ArchiveReader(settings), []
    for one in sorted(wanted, key=lambda one: (named[one.topic][0], one.partition)):
        place, label = named[one.topic]
        expected = one.first
        for (first, next_), files in groupby(archive.segments(label, one.partition), key=lambda s: (s.first, s.next)):
            if next_ <= one.first or first >= one.next:
                continue
            if first > expected:
                raise _gap(settings, one, expected, first)
            begin, end = max(first, one.first), min(next_, one.next)
            found.append(ArchivePiece(place, one.partition, begin, end, tuple(files)))
            expected = end
        if expected < one.next:
            raise _gap(settings, one, expected, one.next)
    return found


def _gap(settings: Settings, one: SourceRange, first: int, next_: int) -> LogError:
    return LogError(
        f"{one.topic}[{one.partition}]: offsets {first} to {next_ - 1} are not in the archive in "
        f"{settings.archive.store}. Nothing was written; `streamward archive verify` names what is missing, and "
        "`streamward archive sync` archives what the log still has"
    )


def bucket_of(key: bytes, buckets: int, partition: int = 0) -> int:
    """Return the bucket of a task; with its partition, what is in another one by mistake is another task.

    >>> bucket_of(b"t1", 8) == bucket_of(b"t1", 8) < 8
    True
    """
    return crc32(key, partition) % buckets


def buckets_for(pieces: Iterable[ArchivePiece], parallelism: int) -> int:
    """Return how many buckets the tasks in these pieces are spread over."""
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
