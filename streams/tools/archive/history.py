"""Read records from the archive, then from the log.

    topics, coordinates ──► History ─┬─ archive, where it has the records    streams/tools/archive/segments.py
                                     └─ log, after the archive's end         streams/kafka/history.py
                            ──► bounds, read, fetch ──► Record

Tools read old records here instead of from the broker, so retention does not affect them. Archive and log are joined by
offset: nothing is read twice, and records that are in neither are an error that names them. If both have the last
archived record, the two are compared first: a recreated topic is a different log (seams.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from schemas.events import Coordinates
from streams.errors import LogError, NotFoundError
from streams.kafka.history import History, LogHistory
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.seams import check_seams
from streams.tools.archive.segments import ArchiveReader

Source = Literal["auto", "log", "archive"]


def of(settings: Settings, source: Source = "auto") -> History:
    """Return the history of a deployment.

    `log` reads only the broker, `archive` only the archive, and `auto` the archive and then the log; without an
    archive, only the log.
    """
    if source == "log":
        return LogHistory(settings)
    archived = ArchiveHistory(settings)
    return archived if source == "archive" else JoinedHistory(settings, archived, LogHistory(settings))


class ArchiveHistory:
    """What the archive holds. It needs no broker."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.archive = ArchiveReader(settings)

    def bounds(self, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (first offset, offset after the last) per partition of these topics, given by label.

        Raises NotFoundError if a topic was never archived.
        """
        bounds: dict[TopicPartition, tuple[int, int]] = {}
        for label in labels:
            topic_bounds = self.topic_bounds(label)
            if not topic_bounds:
                raise NotFoundError(
                    f"archive.store={self._settings.archive.store}: does not hold {self.archive.folder(label)}; run "
                    "`streamward admin archive sync`, or read from the log (`streamward admin archive list` shows "
                    "what there is)"
                )
            bounds |= topic_bounds
        return bounds

    def topic_bounds(self, label: str) -> dict[TopicPartition, tuple[int, int]]:
        """Return (first offset, offset after the last) of every partition of a topic that was archived."""
        state = self.archive.state(label)
        extents = {} if state is None else state.extents
        name = self.archive.folder(label)
        return {(name, partition): (extent.first, extent.next) for partition, extent in extents.items()}

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        """Yield every record from `starts` to below `ends`, merged by timestamp. Raises LogError as
        `ArchiveReader.read`."""
        return self.archive.read(starts, ends)

    def fetch(self, positions: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        """Return the records at these coordinates. Raises LogError, naming those that are gone."""
        return self.archive.fetch(positions)


class JoinedHistory:
    """The archive, and then the log after its end."""

    def __init__(self, settings: Settings, archived: ArchiveHistory, log: LogHistory) -> None:
        self._settings, self._archived, self._log = settings, archived, log
        self._checked: set[TopicPartition] = set()
        """Partitions of which log and archive are known to be one."""
        self._labels = {topic.name: label for label, topic in topics(settings.topics).items()}

    def bounds(self, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (first offset, offset after the last) per partition, archive and log together.

        Raises LogError if a partition of the log does not continue where the archive ends.
        """
        labels = list(labels)
        archived = {tp: bound for label in labels for tp, bound in self._archived.topic_bounds(label).items()}
        try:
            bounds = self._log.bounds(labels)
        except NotFoundError:  # of one of them, at least
            bounds = {tp: bound for label in labels for tp, bound in self._wherever(label).items()}
        return {tp: self._join_bounds(tp, archived.get(tp), bound) for tp, bound in bounds.items()}

    def _wherever(self, label: str) -> dict[TopicPartition, tuple[int, int]]:
        try:
            return self._log.bounds([label])
        except NotFoundError:
            if not self._archived.topic_bounds(label):
                raise
            return self._archived.bounds([label])

    def _join_bounds(
        self, tp: TopicPartition, archived: tuple[int, int] | None, log: tuple[int, int]
    ) -> tuple[int, int]:
        low, high = log
        if archived is None:
            return log
        first, next_ = archived
        if low == high and high <= next_:
            return archived  # the log is empty
        if low > next_:
            raise self._gap(tp, next_, low)
        if high < next_:
            raise LogError(
                f"{tp[0]}[{tp[1]}]: the log ends at {high}, but the archive in {self._settings.archive.store} has "
                f"offsets up to {next_ - 1}: the topic was recreated, or is being restored. Finish `streamward "
                "admin archive restore`, or read one of them with --source archive or --source log"
            )
        return min(first, low), high

    def _gap(self, tp: TopicPartition, next_: int, low: int) -> LogError:
        return LogError(
            f"{tp[0]}[{tp[1]}]: offsets {next_} to {low - 1} are neither in the archive in "
            f"{self._settings.archive.store}, which ends before them, nor in the log, where retention has deleted "
            f"them: {low - next_} records are lost. Read what there is with --source archive or --source log"
        )

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        """Yield every record from `starts` to below `ends`: what is archived first, merged by timestamp, then the log.

        Raises LogError if a part of it is nowhere, or if log and archive do not match.
        """
        old: dict[TopicPartition, tuple[int, int]] = {}
        new: dict[TopicPartition, tuple[int, int]] = {}
        for tp, start in starts.items():
            first, next_ = self._archive_bounds(tp)
            if start >= ends[tp]:
                continue
            if start < first or start >= next_:
                new[tp] = (start, ends[tp])
                continue
            old[tp] = (start, min(ends[tp], next_))
            if ends[tp] > next_:
                new[tp] = (next_, ends[tp])
        self._check_joins(starts, [tp for tp in new if tp in old])
        yield from self._archived.read(*_split(old))
        yield from self._log.read(*_split(new))

    def _archive_bounds(self, tp: TopicPartition) -> tuple[int, int]:
        extent = self._archived.archive.extent(self._labels[tp[0]], tp[1])
        return (0, 0) if extent is None else (extent.first, extent.next)

    def _check_joins(self, tps: Iterable[TopicPartition], joined: Iterable[TopicPartition]) -> None:
        """Raise LogError if a partition of the log is not the one in the archive, or begins after its end."""
        new = [tp for tp in tps if tp not in self._checked and self._archive_bounds(tp)[1]]
        names = dict.fromkeys(topic for topic, _ in (*new, *joined))
        try:
            bounds = self._log.bounds([self._labels[name] for name in names]) if names else {}
        except NotFoundError:
            return  # the archive is all there is
        for tp in joined:
            if (low := bounds[tp][0]) > (next_ := self._archive_bounds(tp)[1]):
                raise self._gap(tp, next_, low)
        check_seams(self._archived.archive, self._log, {tp: bounds[tp] for tp in new if tp in bounds})
        self._checked.update(new)

    def fetch(self, positions: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        """Return the records at these coordinates. Raises LogError, naming those that are gone."""
        old: list[Coordinates] = []
        new: list[Coordinates] = []
        for position in set(positions):
            first, next_ = self._archive_bounds((position.topic, position.partition))
            (old if first <= position.offset < next_ else new).append(position)
        return self._archived.fetch(old) | self._log.fetch(new)


def _split(
    ranges: Mapping[TopicPartition, tuple[int, int]],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    return {tp: start for tp, (start, _) in ranges.items()}, {tp: end for tp, (_, end) in ranges.items()}
