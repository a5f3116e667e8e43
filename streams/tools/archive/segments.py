"""The log kept in files: segments of a partition, and the manifest that names them.

    STORE/TOPIC/PARTITION/ ─┬─ 00000007.json                     the manifest with the highest number counts
                            └─ FIRST-NEXT-SHA.parquet ...        segments, without gaps from the first to `next`

    ArchiveReader ──► segments, next_offset ──► files for a query      ──► read, fetch ──► Record, exactly as it was

A manifest names every segment of its partition with range, sha256, bytes, records, times and schema ids, and has a
sha256 of itself; the next one has the next number. Each is complete, and a file that no manifest names does not count.
So a sync may be killed anywhere, and of two at once the one that creates a number first wins it; the other reads that
manifest and continues after it. A segment is never changed.

Before the first record of a segment is returned, its sha256 is computed over the whole file, once per reader. Queries
read columns instead, after `sound`, which checks the file's size and the sha256 of its footer, where all statistics
are; Parquet has a checksum of each page.

Not covered: merging small segments, and deleting old ones.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.events import Coordinates
from streams.errors import LogError
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.manifests import Manifest, Segment, manifest_numbers, parsed, partition_numbers
from streams.tools.archive.store import Store

RAW = ["_offset", "_timestamp", "_key", "_key_bytes", "_headers", "_payload"]
"""The columns that hold the record; the others hold its event."""
MERGED_RECORDS = 512
"""Records of each partition in memory while several are read at once."""
KEPT_GROUPS = 8
"""Row groups that stay in memory for the next `fetch`."""
FOOTER_BYTES = 8
"""What ends a Parquet file: the length of its footer, and PAR1."""


def fingerprint(record: Record) -> str:
    """Return a sha256 over a record's partition, offset, time, key, payload and headers, without its topic."""
    digest = hashlib.sha256(f"{record.at.partition} {record.at.offset} {record.timestamp_ms}".encode())
    for part in (record.key, record.payload, repr(record.headers).encode()):
        digest.update(b"-" if part is None else b"%d " % len(part) + part)
    return digest.hexdigest()


class ArchiveReader:
    """The archive of a deployment's topics. Reads only; `streams/tools/archive/sync.py` writes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.store = Store(settings.archive.store)
        self._manifests: dict[tuple[str, int], Manifest | None] = {}
        self._verified: set[str] = set()
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()

    def refresh(self) -> None:
        """Read the manifests again at the next call: a sync may have continued."""
        self._manifests.clear()

    def folder(self, label: str, partition: int | None = None) -> str:
        """Return the folder of a topic or a partition, relative to the store."""
        name = topics(self._settings.topics)[label].name
        return name if partition is None else f"{name}/{partition}"

    def partitions(self, label: str) -> list[int]:
        """Return the partitions that were archived, empty or not."""
        found = partition_numbers(self.store.names(self.folder(label)))
        return [partition for partition in found if self.manifest(label, partition) is not None]

    def manifest(self, label: str, partition: int) -> Manifest | None:
        """Return the newest manifest of a partition, or None if it was never archived.

        Raises LogError if it is damaged.
        """
        key = (label, partition)
        if key not in self._manifests:
            self._manifests[key] = self._newest(label, partition)
        return self._manifests[key]

    def segments(self, label: str, partition: int) -> list[Segment]:
        """Return the segments of a partition, in order, without gaps."""
        manifest = self.manifest(label, partition)
        return [] if manifest is None else list(manifest.segments)

    def next_offset(self, label: str, partition: int) -> int | None:
        """Return the offset after the last that is archived, or None if the partition never was."""
        manifest = self.manifest(label, partition)
        return None if manifest is None else manifest.next

    def _newest(self, label: str, partition: int) -> Manifest | None:
        folder = self.folder(label, partition)
        for _ in range(3):  # the newest may be an old one by now, and removed
            numbers = manifest_numbers(self.store.names(folder))
            if not numbers:
                return None
            name = f"{folder}/{numbers[-1]:08d}.json"
            data = self.store.read(name)
            if data is not None:
                manifest = parsed(label, partition, self.store, name, data)
                if manifest.number != numbers[-1]:
                    raise LogError(
                        f"{self.store.where(name)}: is the manifest with number {manifest.number}; remove it"
                    )
                return manifest
        raise LogError(f"{self.store.where(folder)}: its manifests were removed while they were read; try again")

    # --- reading ------------------------------------------------------------------------------------------------------

    def check(self, segment: Segment) -> None:
        """Return if a segment is, byte for byte, what its manifest records; reads it once. Raises LogError."""
        if segment.path in self._verified:
            return
        try:
            got = self.store.sha256(self._name(segment))
        except FileNotFoundError:
            raise _missing(segment) from None
        if got != segment.sha256:
            raise _damaged(segment, f"has sha256 {got[:12]}, expected {segment.sha256[:12]}")
        self._verified.add(segment.path)

    def sound(self, segment: Segment) -> None:
        """Return if a segment is there, with the size and the footer it should have: quick. Raises LogError."""
        try:
            with self.store.open(self._name(segment)) as file:
                size = file.seek(0, 2)
                if size != segment.bytes:
                    raise _damaged(segment, f"has {size} bytes, expected {segment.bytes}")
                if footer_sha256(file, size) != segment.footer_sha256:
                    raise _damaged(segment, "has another footer")
        except FileNotFoundError:
            raise _missing(segment) from None

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        """Yield every record from `starts` to below `ends`, several partitions merged by timestamp.

        Each partition comes in the order of its offsets. Raises LogError, naming the segment, if one is missing or
        damaged, and if a range is not archived.
        """
        labels = {topic.name: label for label, topic in topics(self._settings.topics).items()}
        parts = [
            self._partition(labels[tp[0]], tp, start, ends[tp]) for tp, start in starts.items() if start < ends[tp]
        ]
        return heapq.merge(*parts, key=lambda record: record.timestamp_ms) if len(parts) > 1 else iter_of(parts)

    def fetch(self, wanted: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        """Return the records at these coordinates. Raises LogError, naming those that are not there."""
        labels = {topic.name: label for label, topic in topics(self._settings.topics).items()}
        found: dict[Coordinates, Record] = {}
        for at in sorted(set(wanted)):
            segment = self._segment_of(labels[at.topic], at)
            table, offsets = self._group_of(segment, at)
            place = bisect.bisect_left(offsets, at.offset)
            if place == len(offsets) or offsets[place] != at.offset:
                raise LogError(f"{at}: no such record; {segment.path} has none at this offset")
            with _readable(segment):
                (found[at],) = records_of(at.topic, at.partition, table.slice(place, 1))
        return found

    def _segment_of(self, label: str, at: Coordinates) -> Segment:
        for segment in self.segments(label, at.partition):
            if segment.first <= at.offset < segment.next and segment.records:
                return segment
        raise self._not_archived(label, at.partition, at.offset, at.offset + 1)

    def _not_archived(self, label: str, partition: int, start: int, end: int) -> LogError:
        manifest = self.manifest(label, partition)
        held = "nothing" if manifest is None or not manifest.segments else f"{manifest.first} to {manifest.next - 1}"
        return LogError(
            f"{self.folder(label)}[{partition}]: offsets {start} to {end - 1} were asked for, but the archive in "
            f"{self._settings.archive.store} holds {held} of this partition; run `streamward archive sync`, or ask for "
            "what is there (`streamward archive list`)"
        )

    def _partition(self, label: str, tp: TopicPartition, start: int, end: int) -> Iterator[Record]:
        manifest = self.manifest(label, tp[1])
        if manifest is None or start < manifest.first or end > manifest.next:
            raise self._not_archived(label, tp[1], start, end)
        for segment in manifest.segments:
            if segment.next <= start or segment.first >= end:
                continue
            with self.opened(segment) as file:
                for batch in file.iter_batches(batch_size=MERGED_RECORDS, columns=RAW, use_threads=False):
                    yield from (record for record in records_of(*tp, batch) if start <= record.at.offset < end)

    @contextlib.contextmanager
    def opened(self, segment: Segment) -> Iterator[pq.ParquetFile]:
        """Open a segment, whose sha256 is right, while the block runs. Raises LogError, also for what it holds.

        Read it with `use_threads=False`, as it is opened without `pre_buffer`: a thread of Arrow's that still gives
        back a buffer of Python's while the process ends aborts it (Arrow issue 34314).
        """
        self.check(segment)
        with (
            _readable(segment),
            self.store.open(self._name(segment)) as source,
            pq.ParquetFile(source, pre_buffer=False) as file,
        ):
            yield file

    def _group_of(self, segment: Segment, at: Coordinates) -> tuple[pa.Table, list[int]]:
        """Return the row group that holds an offset, and the offsets in it; the last few stay in memory."""
        with self.opened(segment) as file:
            column = file.schema_arrow.names.index("_offset")
            lasts = [
                file.metadata.row_group(i).column(column).statistics.max for i in range(file.metadata.num_row_groups)
            ]
            number = min(bisect.bisect_left(lasts, at.offset), len(lasts) - 1)
            key = (segment.path, number)
            if key not in self._groups:
                self._groups[key] = file.read_row_group(number, columns=RAW, use_threads=False)
                if len(self._groups) > KEPT_GROUPS:
                    self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        return self._groups[key], self._groups[key]["_offset"].to_pylist()

    def _name(self, segment: Segment) -> str:
        return f"{self.folder(segment.label, segment.partition)}/{segment.path.rsplit('/', 1)[-1]}"


def iter_of(parts: list[Iterator[Record]]) -> Iterator[Record]:
    """Yield what the parts hold, one after the other."""
    for part in parts:
        yield from part


def records_of(topic: str, partition: int, batch: Any) -> Iterator[Record]:
    """Yield the records of a piece of a segment, as they were in the log."""
    offsets, times, keys, odd_keys, headers, payloads = (batch.column(name) for name in RAW)
    rows = zip(
        offsets.to_pylist(),
        times.cast(pa.int64()).to_pylist(),
        keys.cast(pa.binary()).to_pylist(),
        odd_keys.to_pylist(),
        headers.to_pylist(),
        payloads.to_pylist(),
        strict=True,
    )
    for offset, timestamp_ms, key, odd_key, pairs, payload in rows:
        yield Record(
            Coordinates(topic, partition, offset),
            timestamp_ms,
            key if odd_key is None else odd_key,
            payload,
            tuple((pair["name"].decode(errors="surrogateescape"), pair["value"]) for pair in pairs),
        )


def footer_sha256(file: Any, size: int) -> str:
    """Return the sha256 of a Parquet file's footer."""
    file.seek(max(0, size - FOOTER_BYTES))
    end = file.read(FOOTER_BYTES)
    length = min(int.from_bytes(end[:4], "little"), size)
    file.seek(max(0, size - FOOTER_BYTES - length))
    return hashlib.sha256(file.read(length) + end).hexdigest()


@contextlib.contextmanager
def _readable(segment: Segment) -> Iterator[None]:
    """Raise LogError for what Parquet makes of a file that no archive wrote, though its sha256 is right."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError) as exc:
        raise _damaged(segment, f"holds no records of a topic ({exc!r})") from exc


def _missing(segment: Segment) -> LogError:
    return LogError(
        f"{segment.path}: this segment is missing, and with it {segment.records} records of {segment.label}"
        f"[{segment.partition}], offsets {segment.first} to {segment.next - 1}. Restore the file from a copy of the "
        "archive; `streamward archive verify` names all that is wrong"
    )


def _damaged(segment: Segment, what: str) -> LogError:
    return LogError(
        f"{segment.path}: {what}: it was changed since it was written. It holds {segment.label}"
        f"[{segment.partition}], offsets {segment.first} to {segment.next - 1}. Restore the file from a copy of the "
        "archive; `streamward archive verify` names all that is wrong"
    )
