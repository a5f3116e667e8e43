"""Copy new records of the log into the archive.

    log, from the table's next offset on ──► columns of a range ──► threads: Parquet files ──► segments ──► one commit
                            not an event: payload kept, `_bad` says why                        └─ refused: another
                                                                           sync was first; continue after it

Threads write ranges while the next is read: compression, sha256 and disk I/O release Python's lock.

Every record is archived, even one that is not an event. The name of a segment has its range and its sha256, so two
writers never write the same file. The commit is written last, for all short partitions of a topic at once: a sync that
is killed before it leaves a file that no table names, and compaction removes it after a day.

There are no gaps. If retention has deleted records before they were archived, archiving stops there: an archive
promises every record of its range.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from streams.arrow import bulk
from streams.arrow.decode import DecodedRows
from streams.errors import LogError
from streams.kafka import admin
from streams.kafka.record import Record
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import TICK_S, BrokerOutage, BrokerUnreachable, StoppedWaiting
from streams.kafka.topics import LABELS, topics
from streams.observability import metrics
from streams.observability.metrics import OFF, Meter
from streams.settings.model import Settings
from streams.tools.archive.columns import record_in
from streams.tools.archive.compact import MERGED_RANGES, compact, is_due
from streams.tools.archive.lag import UNREPORTED, ArchiveLag
from streams.tools.archive.segment_writer import RangeWriter
from streams.tools.archive.segments import ArchiveReader, fingerprint
from streams.tools.archive.tables import ArchiveExtent, Change, Segment

WRITERS = 2
"""Ranges that are written at once, each in memory: one waits for the disk while the other is compressed."""
FETCH_WAIT_MS = 1
"""All that is read is there. At a partition's end librdkafka still polls for more, and does not fetch the next
partition until the broker has answered."""
BEAT_S = 10.0
"""How often it reports that it is alive while it waits."""
log = logging.getLogger("streamward.archive")


Bounds = dict[int, tuple[int, int]]
"""First offset, and offset after the last, of each partition."""


class Synced(NamedTuple):
    """What one sync did to one partition."""

    label: str
    partition: int
    first: int
    next: int
    """Archived now: from `first` to below `next`."""
    records: int
    """New in this sync, as are the following three."""
    bad: int
    segments: int
    headers_left_out: int
    """Records with headers that were left out (streams/kafka/headers.py)."""
    holes: int = 0
    """New offsets without a record: markers and aborted records of transactions, or what compaction removed."""


def run(settings: Settings, labels: Iterable[str], *, stop: threading.Event) -> list[Synced]:
    """Archive new records until `stop` is set, as a monitored process; return what the last round did.

    Raises as `sync`.
    """
    try:
        with metrics.serve_meter(settings, "archive") as meter:
            schema_registry.wait(settings, meter, stop)
            return sync(settings, labels, stop=stop, follow=True, meter=meter)
    except StoppedWaiting as exc:
        log.warning("%s", exc)
        return []


def sync(
    settings: Settings,
    labels: Iterable[str] = LABELS,
    *,
    stop: threading.Event | None = None,
    follow: bool = False,
    meter: Meter = OFF,
) -> list[Synced]:
    """Archive the new records of these topics, and return what was done for each partition.

    With `follow` this is repeated every archive.follow_s seconds until `stop`; the last round is returned. It then
    waits for an unreachable broker, kafka.outage_s at most. Raises LogError if retention has deleted what was not
    archived, or if this is not the log that was archived; what can be archived is archived first.
    """
    stop, labels = stop or threading.Event(), list(labels)
    outage, lag, compared_ids = BrokerOutage(settings.kafka, stop, meter), ArchiveLag(meter), dict[str, str]()
    while True:
        try:
            done = _look(settings, labels, stop, lag, compared_ids)
        except BrokerUnreachable:
            if not follow:
                raise
            outage.silent("for what is new")
            stop.wait(TICK_S)
            continue
        outage.answered()
        if follow and (records := sum(result.records for result in done)):
            log.info("archived %d records in %d segments", records, sum(result.segments for result in done))
        if not follow or _pause(settings.archive.follow_s, stop, meter):
            return done


def _pause(seconds: float, stop: threading.Event, meter: Meter) -> bool:
    """Wait for the next round, and return whether to stop."""
    meter.begin("waits for what comes")
    until = time.monotonic() + seconds
    while not stop.is_set() and (left := until - time.monotonic()) > 0:
        stop.wait(min(left, BEAT_S))
        meter.heartbeat()
    return stop.is_set()


def _look(
    settings: Settings, labels: list[str], stop: threading.Event, lag: ArchiveLag, compared_ids: dict[str, str]
) -> list[Synced]:
    """Archive what is new. `compared_ids` has the ids of topics that were compared with their archive."""
    lag.meter.begin("archives what is new")
    names = [topics(settings.topics)[label].name for label in labels]
    bounds = admin.offsets(settings, labels)
    ids = admin.topic_ids(settings, names)
    lag.meter.ready("kafka")
    bounds_by_label = [{p: bound for (topic, p), bound in bounds.items() if topic == name} for name in names]
    done: list[Synced] = []
    troubles: list[str] = []
    with ThreadPoolExecutor(WRITERS, "archive") as writers:
        tables = [
            TopicSync(settings, label, writers, lag, is_known=ids[name] == compared_ids.get(name))
            for label, name in zip(labels, names, strict=True)
        ]
        for table, ranges in zip(tables, bounds_by_label, strict=True):
            table.report_ends(ranges)
        for table, ranges in zip(tables, bounds_by_label, strict=True):
            if not stop.is_set():
                done += table.archive_new(ranges, stop)
                troubles += table.troubles
                table.compact_small(stop)
    if troubles:
        raise LogError("\n".join(troubles))
    compared_ids |= ids
    return done


class _NotThisLog(LogError):
    """The log does not continue where the archive ends."""


class _NewRange(NamedTuple):
    """A range of files that are written, or being written, and not yet in the table."""

    partition: int
    first: int
    next: int
    records: int
    bad: int
    headers_left_out: int
    files: Future[tuple[tuple[Segment, str], ...]]
    full: bool


class TopicSync:
    """One topic and its archive."""

    def __init__(
        self,
        settings: Settings,
        label: str,
        writers: ThreadPoolExecutor,
        lag: ArchiveLag = UNREPORTED,
        *,
        is_known: bool = False,
    ) -> None:
        """`is_known`: the topic is the one that was archived, also where it has nothing new to tell by."""
        self._settings, self._label, self._writers, self._lag = settings, label, writers, lag
        self._archive = ArchiveReader(settings)
        self._table = self._archive.table(label)
        self._name = topics(settings.topics)[label].name
        self._done: dict[int, Synced] = {}
        self._waiting: list[_NewRange] = []
        self._reader: bulk.Bulk | None = None
        self._low = 0
        self._is_known = is_known
        self.troubles: list[str] = []
        """What keeps partitions from being archived, a sentence each."""

    def report_ends(self, bounds: Bounds) -> None:
        """Report where the log ends."""
        for partition, (low, high) in bounds.items():
            self._lag.note_end(self._label, partition, high, partial(self._archived_end, partition, low))

    def _archived_end(self, partition: int, low: int) -> int:
        next_ = self._archive.next_offset(self._label, partition)
        return low if next_ is None else next_

    def archive_new(self, bounds: Bounds, stop: threading.Event) -> list[Synced]:
        """Archive each partition up to its end, or until `stop`."""
        self._begin(bounds)
        try:
            self._archive_all(bounds, stop)
        finally:
            if self._reader is not None:
                self._reader.close()
        return [self._done[partition] for partition in bounds if partition in self._done]

    def _archive_all(self, bounds: Bounds, stop: threading.Event) -> None:
        ahead = list(bounds)
        while not stop.is_set() and ahead:
            partition = ahead.pop(0)
            try:
                for written in self._ranges(partition, *bounds[partition], stop):
                    self._waiting.append(written)
                    if written.full:
                        lost = self._commit(but=WRITERS)
                        ahead += lost
                        if partition in lost:
                            break
            except _NotThisLog as exc:
                self.troubles.append(str(exc))
            if not ahead:
                ahead += self._commit()
        self._commit()

    def compact_small(self, stop: threading.Event) -> None:
        """Merge small files if there are many."""
        state = self._archive.state(self._label)
        if state is not None and not stop.is_set() and is_due(self._settings, state):
            self._lag.meter.begin("merges small files")
            compact(self._settings, [self._label], least=MERGED_RANGES)

    def _begin(self, bounds: Bounds) -> None:
        """Create the table, or what it lacks."""
        self._archive.store.sweep(self._name)
        self._archive.refresh()
        state = self._archive.state(self._label)
        if state is None or not bounds.keys() <= state.extents.keys():
            self._table.create({partition: low for partition, (low, _) in bounds.items()})
        else:
            self._table.upgrade()
        self._archive.refresh()

    def _extent(self, partition: int) -> ArchiveExtent:
        extent = self._archive.extent(self._label, partition)
        if extent is None:
            raise LogError(
                f"{self._archive.store.location(self._name)}: the table does not have partition {partition}, which was "
                "added to it just now; another process has replaced it"
            )
        return extent

    def _ranges(self, partition: int, low: int, high: int, stop: threading.Event) -> Iterator[_NewRange]:
        """Yield ranges of a partition from where its archive ends as they are written; not yet in the table."""
        before = self._extent(partition)
        if before.next > high:  # another sync has seen a longer log meanwhile, or …
            low, high = admin.offsets(self._settings, [self._label])[self._name, partition]
        self._check_bounds(partition, before, low, high)
        self._note(partition, before)
        self._low, start = low, before.next
        rows_of = self._chunks(partition, start, high)
        rows = next(rows_of, None) if (start < high or not self._is_known) and not stop.is_set() else None
        while start < high and not stop.is_set():
            self._lag.note_archived(self._label, partition, start, rows.timestamps[0] if rows is not None else None)
            writing = RangeWriter(self._settings, self._archive.store, self._label, partition)
            while rows is not None and not writing.full and not stop.is_set():
                writing.add(rows)
                self._lag.meter.heartbeat()
                rows = next(rows_of, None)
            # after the last record there may be markers of transactions, which take offsets
            next_ = high if rows is None else writing.next
            if next_ > start:
                files = self._start_writing(writing, start, next_)
                yield _NewRange(
                    partition, start, next_, writing.records, writing.bad, writing.headers_left_out, files,
                    writing.full,
                )  # fmt: skip
            start = next_

    def _start_writing(self, writing: RangeWriter, first: int, next_: int) -> Future[tuple[tuple[Segment, str], ...]]:
        """Have a range written. Waits while WRITERS others are, so that no more are in memory."""
        for pending in self._waiting[: max(0, len(self._waiting) - WRITERS + 1)]:
            pending.files.result()
        return self._writers.submit(lambda: tuple(writing.write_files(first, next_)))

    def _note(self, partition: int, extent: ArchiveExtent, *ranges: _NewRange) -> None:
        """Note what became of a partition: where its archive ends now, and ranges that are new."""
        before = self._done.get(partition, Synced(self._label, partition, extent.first, extent.next, 0, 0, 0, 0))
        self._done[partition] = before._replace(
            first=extent.first,
            next=extent.next,
            records=before.records + sum(new_range.records for new_range in ranges),
            bad=before.bad + sum(new_range.bad for new_range in ranges),
            segments=before.segments + sum(len(new_range.files.result()) for new_range in ranges),
            headers_left_out=before.headers_left_out + sum(new_range.headers_left_out for new_range in ranges),
            holes=before.holes + sum(new_range.next - new_range.first - new_range.records for new_range in ranges),
        )
        self._lag.note_archived(self._label, partition, extent.next)

    def _check_bounds(self, partition: int, before: ArchiveExtent, low: int, high: int) -> None:
        archive = f"the archive in {self._settings.archive.store}"
        if before.next < low:
            raise _NotThisLog(
                f"{self._name}[{partition}]: begins at offset {low}, but {archive} ends at {before.next}: "
                f"retention has deleted {low - before.next} records before they were archived. Nothing is archived "
                "after a gap: set archive.store to another place and begin a new archive there, or put the missing "
                "records back; and sync more often than topics.retention_days"
            )
        if before.next > high:
            raise _NotThisLog(
                f"{self._name}[{partition}]: ends at {high}, but {archive} has offsets up to {before.next - 1}: the "
                "topic was recreated. Put the archive back into it with `streamward admin archive restore`, or set "
                "archive.store to another place for the new log"
            )

    def _chunks(self, partition: int, start: int, high: int) -> Iterator[DecodedRows]:
        """Yield the log from `start` on, once it is known to continue where the archive ends."""
        last, tp = self._archive.last(self._label, partition), (self._name, partition)
        if last is not None and last.at.offset < self._low:
            last = None
        if last is None and start == high:
            return
        limit = max(1, self._settings.archive.segment_records)
        if self._reader is None:
            self._reader = bulk.Bulk(self._settings, {}, ends={}, fetch_wait_ms=FETCH_WAIT_MS)
        self._reader.assign({tp: start if last is None else last.at.offset}, {tp: high})
        for rows in self._reader.pieces(headers=True):
            if last is not None:
                if rows.offsets[0] < start:
                    self._check_seam(last, rows)
                    rows = rows.cut(1, len(rows.offsets))
                last = None
            for first in range(0, len(rows.offsets), limit):
                yield rows.cut(first, first + limit)

    def _check_seam(self, last: Record, rows: DecodedRows) -> None:
        if fingerprint(last) != fingerprint(record_in(rows, 0)):
            raise _NotThisLog(
                f"{self._name}[{rows.partitions[0]}]@{rows.offsets[0]}: holds another record than the archive in "
                f"{self._settings.archive.store}: the topic was recreated. Set archive.store to another place for "
                "the new log"
            )

    def _commit(self, *, but: int = 0) -> list[int]:
        """Add the ranges that wait, but the last few, to the table.

        Return the partitions in which another sync was first: none of their ranges waits any more.
        """
        lost = self._drop_superseded()
        count = max(0, len(self._waiting) - but)
        later, self._waiting = self._waiting[count:], self._waiting[:count]
        lost += self._commit_waiting()
        self._waiting = [pending for pending in later if pending.partition not in lost]
        return list(dict.fromkeys(lost))

    def _commit_waiting(self) -> list[int]:
        lost: list[int] = []
        while self._waiting:
            state = self._archive.state(self._label)
            assert state is not None  # noqa: S101 - `_begin` has created it
            change = Change(
                added=tuple(file for pending in self._waiting for file in pending.files.result()),
                nexts={pending.partition: pending.next for pending in self._waiting},
            )
            committed = self._table.commit(state, change)
            self._archive.refresh()
            if committed:
                for partition in change.nexts:
                    own_ranges = [pending for pending in self._waiting if pending.partition == partition]
                    self._note(partition, self._extent(partition), *own_ranges)
                self._waiting.clear()
            else:
                lost += self._drop_superseded()
        return lost

    def _drop_superseded(self) -> list[int]:
        """Leave out the ranges that do not continue the archive as it was last seen; return their partitions.

        Their files stay until compaction removes them: the other sync may have written the same, under the same names.
        """
        waiting, self._waiting = self._waiting, []
        nexts = {pending.partition: self._extent(pending.partition).next for pending in waiting}
        lost: dict[int, None] = {}
        for pending in waiting:
            if pending.first == nexts[pending.partition] and pending.partition not in lost:
                nexts[pending.partition] = pending.next
                self._waiting.append(pending)
            else:
                lost[pending.partition] = None
        return list(lost)
