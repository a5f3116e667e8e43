"""Copy what is new in the log into the archive.

    log, from the manifest's `next` on ──► chunks ──► one Parquet file ──put──► segment ──► manifest number n + 1
                                            not an event: payload kept, `_bad` says why         └─ exists already:
                                                                      another sync was first; continue after it

Every record is archived, also one that is not an event. The name of a segment has its range and its sha256, so two
writers never touch one file. The manifest is written last: a sync that was killed before it leaves a file that nobody
reads, and the next one removes it (in a folder; an object store keeps it).

There are no gaps. If retention has deleted what was not yet archived, nothing is archived after it: an archive promises
every record of its range.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from streams.arrow import bulk
from streams.arrow.decode import DecodedRows
from streams.errors import LogError
from streams.kafka import admin
from streams.kafka.record import TopicPartition
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import TICK_S, BrokerOutage, BrokerUnreachable, StoppedWaiting
from streams.kafka.topics import LABELS, topics
from streams.observability import metrics
from streams.observability.metrics import OFF, Meter
from streams.settings.model import Settings
from streams.tools.archive.lag import UNREPORTED, ArchiveLag
from streams.tools.archive.manifests import Manifest, Segment, manifest_bytes, manifest_numbers
from streams.tools.archive.segment_writer import SegmentWriter, record_in
from streams.tools.archive.segments import ArchiveReader, fingerprint

KEPT_MANIFESTS = 16
"""Older ones are removed: every reader has seen a newer number since."""
BEAT_S = 10.0
"""How often it reports that it is alive while it waits."""
log = logging.getLogger("streamward.archive")


class Synced(NamedTuple):
    """What one sync did to one partition."""

    label: str
    partition: int
    first: int
    next: int
    """Archived now: from `first` to below `next`."""
    records: int
    """New in this sync, as are the following two."""
    bad: int
    segments: int


def run(settings: Settings, labels: Iterable[str], *, stop: threading.Event) -> list[Synced]:
    """Archive what comes until `stop` is set, as a monitored process; return what the last round did.

    Raises as `sync`.
    """
    try:
        with metrics.served(settings, "archive") as meter:
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
    """Archive what is new in these topics, and return what became of each partition.

    With `follow` this is repeated every archive.follow_s seconds until `stop`; the last round is returned. It then
    waits for an unreachable broker, kafka.outage_s at most. Raises LogError if retention has deleted what was not
    archived, or if this is not the log that was archived; what can be archived is archived first.
    """
    stop, labels = stop or threading.Event(), list(labels)
    outage, lag = BrokerOutage(settings.kafka, stop, meter), ArchiveLag(meter)
    while True:
        try:
            done = _look(settings, labels, stop, lag)
        except BrokerUnreachable:
            if not follow:
                raise
            outage.silent("for what is new")
            stop.wait(TICK_S)
            continue
        outage.answered()
        if follow and (records := sum(each.records for each in done)):
            log.info("archived %d records in %d segments", records, sum(each.segments for each in done))
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


def _look(settings: Settings, labels: list[str], stop: threading.Event, lag: ArchiveLag) -> list[Synced]:
    lag.meter.begin("archives what is new")
    bounds = admin.offsets(settings, labels)
    lag.meter.ready("kafka")
    by_name = {topic.name: label for label, topic in topics(settings.topics).items()}
    partitions = {
        tp: _Partition(settings, by_name[tp[0]], tp, sum(1 for other in bounds if other[0] == tp[0]), lag)
        for tp in bounds
    }
    for tp, (low, high) in bounds.items():
        partitions[tp].ends(low, high)
    done, troubles = [], []
    for tp, (low, high) in bounds.items():
        if stop.is_set():
            break
        try:
            done.append(partitions[tp].archived(low, high, stop))
        except _NotThisLog as exc:
            troubles.append(str(exc))
    if troubles:
        raise LogError("\n".join(troubles))
    return done


class _NotThisLog(LogError):
    """The log does not continue where the archive ends."""


class _Partition:
    """One partition and its archive."""

    def __init__(
        self, settings: Settings, label: str, tp: TopicPartition, count: int, lag: ArchiveLag = UNREPORTED
    ) -> None:
        self._settings, self._label, self._tp, self._count = settings, label, tp, count
        self._lag = lag
        self._archive = ArchiveReader(settings)
        self._folder = self._archive.folder(label, tp[1])
        self._where = f"{tp[0]}[{tp[1]}]"
        self._low = 0

    def ends(self, low: int, high: int) -> None:
        """Report where the log ends."""

        def archived() -> int:
            next_ = self._archive.next_offset(self._label, self._tp[1])
            return low if next_ is None else next_

        self._lag.ends(self._label, self._tp[1], high, archived)

    def archived(self, low: int, high: int, stop: threading.Event) -> Synced:
        """Archive up to `high`, or until `stop`."""
        records = bad = segments = 0
        self._low = low
        self._archive.store.sweep(self._folder)
        while True:
            self._archive.refresh()
            before = self._archive.manifest(self._label, self._tp[1])
            if before is not None and before.next > high:  # another sync has seen a longer log meanwhile, or …
                low, high = admin.offsets(self._settings, [self._label])[self._tp]
            self._check_bounds(before, low, high)
            if before is None:  # records that it was read, even if it is empty
                self._commit(Manifest(1, self._count, low, ()))
                continue
            if before.next >= high or stop.is_set():
                break
            for segment in self._segments(before, high, stop):
                after = Manifest(before.number + 1, self._count, before.first, (*before.segments, segment))
                if not self._commit(after):
                    break  # another sync was first: continue after what it archived
                before, records, bad = after, records + segment.records, bad + segment.bad
                segments += 1
        self._sweep_up(before)
        self._lag.archived(self._label, self._tp[1], before.next)
        return Synced(self._label, self._tp[1], before.first, before.next, records, bad, segments)

    def _check_bounds(self, before: Manifest | None, low: int, high: int) -> None:
        if before is None:
            return
        archive = f"the archive in {self._settings.archive.store}"
        if before.next < low:
            raise _NotThisLog(
                f"{self._where}: begins at offset {low}, but {archive} ends at {before.next}: "
                f"retention has deleted {low - before.next} records before they were archived. Nothing is archived "
                f"after "
                "a gap: set archive.store to another place and begin a new archive there, or put the missing records "
                "back; and sync more often than topics.retention_days"
            )
        if before.next > high:
            raise _NotThisLog(
                f"{self._where}: ends at {high}, but {archive} has offsets up to {before.next - 1}: the topic was "
                f"recreated. "
                "Put the archive back into it with `streamward archive restore`, or set archive.store to another "
                "place for the new log"
            )

    def _segments(self, before: Manifest, high: int, stop: threading.Event) -> Iterator[Segment]:
        """Yield segments from where `before` ends as they are written; not yet in any manifest."""
        start = before.next
        rows_of = self._chunks(before.segments[-1] if before.segments else None, start, high)
        rows = next(rows_of, None)
        while start < high and not stop.is_set():
            self._lag.archived(self._label, self._tp[1], start, rows.timestamps[0] if rows is not None else None)
            with self._archive.store.half(self._folder) as path:
                writing = SegmentWriter(self._settings, self._label, path)
                while rows is not None and not writing.full and not stop.is_set():
                    writing.add(rows)
                    self._lag.meter.heartbeat()
                    rows = next(rows_of, None)
                # after the last record there may be markers of transactions, which take offsets
                next_ = high if rows is None else writing.next
                if next_ > start:
                    segment = writing.closed(self._tp[1], start, next_)
                    name = f"{start:020d}-{next_:020d}-{segment.sha256[:12]}.parquet"
                    self._archive.store.put(path, f"{self._folder}/{name}")
                    yield segment._replace(path=self._archive.store.where(f"{self._folder}/{name}"))
                start = next_

    def _chunks(self, last: Segment | None, start: int, high: int) -> Iterator[DecodedRows]:
        """Yield the log from `start` on, once it is known to continue where `last` ends."""
        look_back = last is not None and last.records > 0 and self._low < start
        begin = start - 1 if look_back else start
        limit = max(1, self._settings.archive.segment_records)
        for rows in bulk.read(self._settings, {self._tp: begin}, {self._tp: high}, headers=True):
            if look_back and last is not None:
                look_back = False
                if rows.offsets[0] < start:
                    self._check_seam(last, rows)
                    rows = rows.cut(1, len(rows.offsets))
            for first in range(0, len(rows.offsets), limit):
                yield rows.cut(first, first + limit)

    def _check_seam(self, last: Segment, rows: DecodedRows) -> None:
        if last.last_sha256 != fingerprint(record_in(rows, 0)):
            raise _NotThisLog(
                f"{self._where}@{rows.offsets[0]}: holds another record than the archive in "
                f"{self._settings.archive.store}: the topic was recreated. Set archive.store to another place for "
                "the new log"
            )

    def _commit(self, manifest: Manifest) -> bool:
        """Write a manifest; return whether it is the newest, or newer ones build on it."""
        name = f"{self._folder}/{manifest.number:08d}.json"
        if not self._archive.store.create(name, manifest_bytes(manifest)):
            return False
        self._archive.refresh()
        newest = self._archive.manifest(self._label, self._tp[1])
        return newest is not None and newest.segments[: len(manifest.segments)] == manifest.segments

    def _sweep_up(self, newest: Manifest) -> None:
        """Remove old manifests, and files that no manifest can name any more."""
        store, names = self._archive.store, self._archive.store.names(self._folder)
        for number in manifest_numbers(names):
            if number <= newest.number - KEPT_MANIFESTS:
                store.remove(f"{self._folder}/{number:08d}.json")
        if store.local is None:
            return  # a driver without conditional put may let two win; keep what either names
        named = {segment.path.rsplit("/", 1)[-1] for segment in newest.segments}
        for name in names:
            ours = name.endswith(".parquet") and name[:20].isdecimal()
            if ours and name not in named and int(name[:20]) < newest.next:
                store.remove(f"{self._folder}/{name}")
