"""The sources of a data set: ranges of offsets, which can be read again later.

    History ──► ranges_now ──► SourceRange of each partition ──► RangedHistory: the same records, whatever came since

Verdicts are written after the runs that they are about, so the ends of `curation` are taken first: every verdict in
its range is about a run that is in the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from schemas.events import Coordinates, SourceRange
from streams.errors import RefusedError
from streams.kafka.history import History
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.query.finished import LABELS

READ = ("curation", *LABELS, "adapters", "agents")
"""In this order."""


def ranges_now(history: History) -> tuple[SourceRange, ...]:
    """Return what is there now, without partitions that are empty. Raises LogError."""
    return tuple(
        SourceRange(topic=topic, partition=partition, first=first, next=end)
        for label in READ
        for (topic, partition), (first, end) in sorted(history.bounds([label]).items())
        if first < end
    )


def check_ranges(ranges: Iterable[SourceRange], history: History) -> None:
    """Raise RefusedError, naming the first, if records in these ranges are not there."""
    bounds = history.bounds(READ)
    for part in ranges:
        first, end = bounds.get((part.topic, part.partition), (0, 0))
        if part.first < first or part.next > end:
            raise RefusedError(
                f"{part.topic}[{part.partition}]: offsets {part.first} to {part.next} were read, and {first} to {end} "
                "are there: retention has deleted records, or it is another log. Read an archive that has them "
                "(--source archive)"
            )


class RangedHistory:
    """A history of which no more is seen than these ranges."""

    def __init__(self, settings: Settings, history: History, ranges: Sequence[SourceRange]) -> None:
        self._topics, self._history = topics(settings.topics), history
        self._bounds = {(part.topic, part.partition): (part.first, part.next) for part in ranges}

    def bounds(self, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the range of each partition of these topics, given by label."""
        named = [self._topics[label] for label in labels]
        partitions = ((topic.name, number) for topic in named for number in range(topic.partitions))
        return {tp: self._bounds.get(tp, (0, 0)) for tp in partitions}

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        """Yield records as the history does."""
        return self._history.read(starts, ends)

    def fetch(self, places: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        """Return records as the history does."""
        return self._history.fetch(places)

    def records(self, label: str) -> Iterator[Record]:
        """Yield every record of a topic, partition after partition."""
        for tp, (first, end) in self.bounds([label]).items():
            if first < end:
                yield from self._history.read({tp: first}, {tp: end})
