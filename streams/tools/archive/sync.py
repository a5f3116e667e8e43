"""Put what is new in the log into the archive.

    log, from the manifest's `next` on ──► chunks ──► one Parquet file ──put──► segment ──► manifest number n + 1
                                              no event: payload kept, `_bad` says why           └─ there already:
                                                                               somebody was first; go on behind it

Every record goes in, also one that is no event. A segment is the same records whoever writes it, and its name has its
range and its sha256, so that two writers never touch one file. The manifest comes last: killed before it, a sync leaves
a file that nobody reads, and the next one sweeps it away (in a folder; an object store keeps it).

Not covered: a gap. If retention has cut what was not yet archived, nothing is archived behind it: an archive promises
every record of its range.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.events import Event
from streams.errors import LogError
from streams.files import sha256_of
from streams.kafka import admin
from streams.kafka.record import Record, TopicPartition
from streams.kafka.registry import client as schema_registry
from streams.kafka.retry import TICK_S, BrokerOutage, BrokerUnreachable, StoppedWaiting
from streams.kafka.topics import LABELS, topics
from streams.observability import metrics
from streams.observability.metrics import OFF, Meter
from streams.settings.model import Settings
from streams.tools.archive.behind import UNTOLD, Behind
from streams.tools.archive.segments import (
    ArchiveReader,
    Manifest,
    Segment,
    fingerprint,
    footer_sha256,
    manifest_bytes,
    manifest_numbers,
)
from streams.tools.arrow import bulk
from streams.tools.arrow.decode import RECORD_FIELDS, DecodedRows, arrow_schema, judge, record_columns

KEPT_MANIFESTS = 16
"""Older ones are removed: whoever reads one that old has seen a newer number since."""
BEAT_S = 10.0
"""While it waits for the next look it gives a sign of life so often."""
RAW_FIELDS = [
    pa.field("_key_bytes", pa.binary()),
    pa.field("_headers", pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))),
    pa.field("_payload", pa.binary()),
    pa.field("_bad", pa.string()),
]
"""What a record was, beside what it means: a key that is no text, and why a record is no event, else null."""

UNIQUE = ("_payload", "_offset", "_timestamp", "text", "error", "response_id", "reward_id", "group_id", "control_id")
"""Columns whose values hardly repeat: a dictionary of them would be built for nothing."""

log = logging.getLogger("streamward.archive")


class Synced(NamedTuple):
    """What became of one partition in one sync."""

    label: str
    partition: int
    first: int
    next: int
    """Archived now: from `first` to below `next`."""
    records: int
    """New in this sync, as are the following two."""
    bad: int
    segments: int


def segment_schema(event: type[Event]) -> pa.Schema:
    """Return the columns of a segment: those of a decoded table, and RAW_FIELDS."""
    return pa.schema([*arrow_schema(event), *RAW_FIELDS])


def run(settings: Settings, labels: Iterable[str], *, stop: threading.Event) -> list[Synced]:
    """Archive what comes until `stop` is set, as a process that is watched; return what the last look did.

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

    With `follow` again and again, every archive.follow_s seconds, until `stop`; then what the last look did. A broker
    that is away is waited for then, kafka.outage_s at most. Raises LogError if retention has cut what was not archived,
    or if the log is another than the one that was archived; what can be archived is, first.
    """
    stop, labels = stop or threading.Event(), list(labels)
    patience, behind = BrokerOutage(settings.kafka, stop, meter), Behind(meter)
    while True:
        try:
            done = _look(settings, labels, stop, behind)
        except BrokerUnreachable:
            if not follow:
                raise
            patience.silent("for what is new")
            stop.wait(TICK_S)
            continue
        patience.answered()
        if follow and (records := sum(each.records for each in done)):
            log.info("archived %d records in %d segments", records, sum(each.segments for each in done))
        if not follow or _pause(settings.archive.follow_s, stop, meter):
            return done


def _pause(seconds: float, stop: threading.Event, meter: Meter) -> bool:
    """Wait for the next look, and return whether it should stop."""
    meter.begin("waits for what comes")
    until = time.monotonic() + seconds
    while not stop.is_set() and (left := until - time.monotonic()) > 0:
        stop.wait(min(left, BEAT_S))
        meter.heartbeat()
    return stop.is_set()


def _look(settings: Settings, labels: list[str], stop: threading.Event, behind: Behind) -> list[Synced]:
    behind.meter.begin("archives what is new")
    bounds = admin.offsets(settings, labels)
    behind.meter.ready("kafka")
    by_name = {topic.name: label for label, topic in topics(settings.topics).items()}
    partitions = {
        tp: _Partition(settings, by_name[tp[0]], tp, sum(1 for other in bounds if other[0] == tp[0]), behind)
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
    """What the log holds does not go on where the archive ends."""


class _Partition:
    """One partition, on its way into the archive."""

    def __init__(self, settings: Settings, label: str, tp: TopicPartition, count: int, behind: Behind = UNTOLD) -> None:
        self._settings, self._label, self._tp, self._count = settings, label, tp, count
        self._behind = behind
        self._archive = ArchiveReader(settings)
        self._folder = self._archive.folder(label, tp[1])
        self._where = f"{tp[0]}[{tp[1]}]"
        self._low = 0

    def ends(self, low: int, high: int) -> None:
        """Let it be known how far the log goes."""

        def archived() -> int:
            next_ = self._archive.next_offset(self._label, self._tp[1])
            return low if next_ is None else next_

        self._behind.ends(self._label, self._tp[1], high, archived)

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
            if before is None:  # says that it was looked at, also if it is empty
                self._commit(Manifest(1, self._count, low, ()))
                continue
            if before.next >= high or stop.is_set():
                break
            for segment in self._segments(before, high, stop):
                after = Manifest(before.number + 1, self._count, before.first, (*before.segments, segment))
                if not self._commit(after):
                    break  # somebody else was first: go on behind what they archived
                before, records, bad = after, records + segment.records, bad + segment.bad
                segments += 1
        self._sweep_up(before)
        self._behind.archived(self._label, self._tp[1], before.next)
        return Synced(self._label, self._tp[1], before.first, before.next, records, bad, segments)

    def _check_bounds(self, before: Manifest | None, low: int, high: int) -> None:
        if before is None:
            return
        archive = f"the archive in {self._settings.archive.store}"
        if before.next < low:
            raise _NotThisLog(
                f"{self._where}: the first record there is has offset {low}, but {archive} ends at {before.next}: "
                f"retention has cut {low - before.next} records before they were archived. Nothing is archived behind "
                "a gap: set archive.store to another place and begin a new archive there, or put the missing records "
                "back; and sync more often than topics.retention_days"
            )
        if before.next > high:
            raise _NotThisLog(
                f"{self._where}: ends at {high}, but {archive} has offsets up to {before.next - 1}: the topic was made "
                "anew. Put the archive back into it with `streamward archive restore`, or set archive.store to another "
                "place for the new log"
            )

    def _segments(self, before: Manifest, high: int, stop: threading.Event) -> Iterator[Segment]:
        """Yield segments from where `before` ends as they are written; not yet in any manifest."""
        start = before.next
        rows_of = self._chunks(before.segments[-1] if before.segments else None, start, high)
        rows = next(rows_of, None)
        while start < high and not stop.is_set():
            self._behind.archived(self._label, self._tp[1], start, rows.timestamps[0] if rows is not None else None)
            with self._archive.store.half(self._folder) as path:
                writing = _SegmentWriter(self._settings, self._label, path)
                while rows is not None and not writing.full and not stop.is_set():
                    writing.add(rows)
                    self._behind.meter.heartbeat()
                    rows = next(rows_of, None)
                # behind the last record there may be markers of transactions, which take offsets
                next_ = high if rows is None else writing.next
                if next_ > start:
                    segment = writing.closed(self._tp[1], start, next_)
                    name = f"{start:020d}-{next_:020d}-{segment.sha256[:12]}.parquet"
                    self._archive.store.put(path, f"{self._folder}/{name}")
                    yield segment._replace(path=self._archive.store.where(f"{self._folder}/{name}"))
                start = next_

    def _chunks(self, last: Segment | None, start: int, high: int) -> Iterator[DecodedRows]:
        """Yield what the log holds from `start` on, once it is seen to go on where `last` ends."""
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
                f"{self._settings.archive.store}: the topic was made anew. Set archive.store to another place for "
                "the new log"
            )

    def _commit(self, manifest: Manifest) -> bool:
        """Write a manifest, and return whether it is the newest one, or was taken up by those that are newer."""
        name = f"{self._folder}/{manifest.number:08d}.json"
        if not self._archive.store.create(name, manifest_bytes(manifest)):
            return False
        self._archive.refresh()
        newest = self._archive.manifest(self._label, self._tp[1])
        return newest is not None and newest.segments[: len(manifest.segments)] == manifest.segments

    def _sweep_up(self, newest: Manifest) -> None:
        """Remove old manifests, and files that can never get into one: they begin where the newest has gone past."""
        store, names = self._archive.store, self._archive.store.names(self._folder)
        for number in manifest_numbers(names):
            if number <= newest.number - KEPT_MANIFESTS:
                store.remove(f"{self._folder}/{number:08d}.json")
        if store.local is None:
            return  # a driver without conditional put lets two win; nothing that either names may go
        named = {segment.path.rsplit("/", 1)[-1] for segment in newest.segments}
        for name in names:
            if name.endswith(".parquet") and name not in named and int(name[:20]) < newest.next:
                store.remove(f"{self._folder}/{name}")


def record_in(rows: DecodedRows, row: int) -> Record:
    """Return one of the rows as a record."""
    return Record(rows.at(row), rows.timestamps[row], rows.keys[row], rows.payloads[row], rows.headers[row])


# --- one file ---------------------------------------------------------------------------------------------------------


@dataclass
class _SegmentWriter:
    """A Parquet file that is being written, a row group per chunk."""

    settings: Settings
    label: str
    path: Path
    records: int = 0
    bad: int = 0
    payload_bytes: int = 0
    next: int = 0
    last_sha256: str = ""
    times: list[int] = field(default_factory=list)
    ids: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._event = topics(self.settings.topics)[self.label].event
        schema = segment_schema(self._event)
        self._writer = pq.ParquetWriter(
            self.path,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in schema.names if name not in UNIQUE],
            write_page_checksum=True,
        )

    @property
    def full(self) -> bool:
        """Whether no more records belong into this file."""
        limits = self.settings.archive
        return self.records >= limits.segment_records or self.payload_bytes >= limits.segment_bytes

    def add(self, rows: DecodedRows) -> None:
        """Write a chunk of records."""
        if not rows.offsets:
            return
        table, bad = _table(self._event, rows)
        self._writer.write_table(table, row_group_size=len(table))
        self.records += len(table)
        self.bad += bad
        self.payload_bytes += sum(map(len, filter(None, rows.payloads)))
        self.next = rows.offsets[-1] + 1
        self.last_sha256 = fingerprint(record_in(rows, -1))
        self.times = [min(rows.timestamps + self.times[:1]), max(rows.timestamps + self.times[1:])]
        self.ids.update(each for each in table["_schema_id"].unique().to_pylist() if each is not None)

    def closed(self, partition: int, first: int, next_: int) -> Segment:
        """Finish the file, and return its entry for the manifest."""
        self._writer.close()
        sha256 = sha256_of(self.path)
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            footer = footer_sha256(file, size)
        from_ms, to_ms = self.times or (0, 0)
        return Segment(
            label=self.label,
            partition=partition,
            first=first,
            next=next_,
            path=str(self.path),
            sha256=sha256,
            footer_sha256=footer,
            last_sha256=self.last_sha256,
            records=self.records,
            bad=self.bad,
            bytes=size,
            payload_bytes=self.payload_bytes,
            from_ms=from_ms,
            to_ms=to_ms,
            schema_ids=tuple(sorted(self.ids)),
        )


def _table(event: type[Event], rows: DecodedRows) -> tuple[pa.Table, int]:
    """Return the rows as a piece of a segment, and how many of them are no event."""
    judged = judge(event, rows.payloads)
    columns = record_columns(rows, judged)
    places = {field.name: number for number, field in enumerate(RECORD_FIELDS)}
    keys = columns[places["_key"]].cast(pa.binary()).to_pylist()
    odd = [raw if raw != key else None for raw, key in zip(rows.keys, keys, strict=True)]
    reasons = [None if row not in judged.wrong else judged.wrong[row].reason for row in range(len(rows.payloads))]
    arrays = [
        pa.array(odd, pa.binary()),
        _headers(rows),
        pa.array(rows.payloads, pa.binary()),
        pa.array(reasons, pa.string()),
    ]
    return pa.table([*columns, *judged.fields(event), *arrays], schema=segment_schema(event)), len(judged.wrong)


def _headers(rows: DecodedRows) -> pa.Array:
    """Return the headers as a column; a list for each of so many rows would keep the garbage collector busy."""
    pairs = [pair for each in rows.headers for pair in each]
    ends = accumulate(map(len, rows.headers), initial=0)
    inner = pa.StructArray.from_arrays(
        [pa.array([name for name, _ in pairs], pa.string()), pa.array([value for _, value in pairs], pa.binary())],
        fields=list(RAW_FIELDS[1].type.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(list(ends), pa.int32()), inner)
