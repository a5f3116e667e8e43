"""The Delta table of a topic: which files hold its records, and how far each partition is archived.

    added, removed files, next offsets ──► commit ──► STORE/TOPIC/_delta_log/00000000000000000007.json
                                              └─ another writer was first in one of these partitions: False
    the log's newest state ──► ArchiveTable.load ──► TableState ──► ArchiveExtent of each partition ──► Segment

A partition's next offset is the version of its own application transaction, so Delta refuses the second of two syncs
that continue from the same offset, and accepts both if they write different partitions. A commit that rewrites files
has a transaction, too. File names carry the range of offsets and the sha256, for which Delta has no field.

Each value of the log is checked: any program with access to the store can write a log that Delta accepts.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from streams import files
from streams.errors import LogError
from streams.tools.archive.store import Store, message_of

MOST_PARTITIONS = 1_000_000
"""Kafka takes far fewer of one topic."""
SPLIT_BY = ("_partition", "_day")
"""The columns that a table is partitioned by; their values are in the log and in the names of folders, not in files."""
KEPT_HOURS = 24
"""A file that is no longer part of its table is removed after so long: a reader may have begun before it was."""
COUNTED = ("_offset", "_timestamp", "_schema_id", "_bad")
"""The columns that have statistics in the log, by which queries leave files out."""
PROPERTIES = {
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hours",
    "delta.dataSkippingStatsColumns": ",".join(COUNTED),
}
"""Of each table. Without the second, Delta's driver takes a column without statistics for one without values, and a
filter on it leaves out every file."""
FOOTER_DIGITS = 16
"""Of the sha256 of a Parquet file's footer, in its name: a quick look compares it."""
_NAME = re.compile(
    r"_partition=(\d{1,7})/_day=(\d{4}-\d\d-\d\d)/(\d{20})-(\d{20})-([0-9a-f]{64})-([0-9a-f]{16})\.parquet", re.ASCII
)
_REWRITTEN = "streamward/rewritten"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Segment(NamedTuple):
    """One file of an archive: the records of one day in a range of offsets of a partition."""

    label: str
    partition: int
    day: str
    """In UTC, as ISO 8601 has it."""
    first: int
    next: int
    """The offset after the last of the range. Files of other days may have the same range, and share its records."""
    name: str
    """Relative to the table."""
    path: str
    """A file's path, or its URL in an object store."""
    sha256: str
    footer: str
    """The first FOOTER_DIGITS of the sha256 of its footer."""
    records: int
    bad: int
    """Records that are not events: `_bad` has the reason, and their event columns are null."""
    bytes: int
    from_ms: int
    to_ms: int
    """Smallest and largest record timestamp."""
    schema_ids: tuple[int, ...]
    """The smallest and the largest, or the only one; none if no record has one."""


class ArchiveExtent(NamedTuple):
    """The archived range of a partition."""

    first: int
    """The first offset."""
    next: int
    """The offset after the last."""
    segments: tuple[Segment, ...]
    """None if the partition was empty. Without gaps; those of one range follow each other, by day."""


class TableState(NamedTuple):
    """The archived ranges of a topic."""

    version: int
    """Of the Delta table."""
    extents: dict[int, ArchiveExtent]
    """By partition."""
    rewritten: int
    """How often files were replaced or removed."""


class Change(NamedTuple):
    """What a commit does to a table."""

    added: tuple[tuple[Segment, str], ...] = ()
    """With their statistics, as JSON."""
    removed: tuple[Segment, ...] = ()
    nexts: Mapping[int, int] = {}
    """By partition."""
    keeps_rows: bool = False
    """Whether the table holds the same rows afterwards."""


class ArchiveTable:
    """The Delta table of one topic. Every method raises LogError if the store does not do what it should."""

    def __init__(self, store: Store, folder: str, label: str, schema: pa.Schema) -> None:
        """`folder`: of the topic, in the store. `schema`: the columns of its newest events."""
        self._store, self._folder, self._label = store, folder, label
        self._schema = Schema.from_arrow(schema)
        self._table: DeltaTable | None = None

    def load(self) -> TableState | None:
        """Return the newest state, or None if the topic was never archived."""
        with self._translate_errors("its Delta log cannot be read"):
            try:
                if self._table is None:
                    self._table = DeltaTable(self._store.uri(self._folder), storage_options=self._store.options)
                else:
                    self._table.update_incremental()
            except TableNotFoundError:
                return None
            return self._state(self._table)

    def create(self, firsts: Mapping[int, int]) -> None:
        """Create the table if it does not exist, and record where new partitions begin."""
        if self.load() is None:
            with self._translate_errors("it cannot be written"):
                if self._store.local is not None:
                    (self._store.local / self._folder).mkdir(parents=True, exist_ok=True)
                uri, options = self._store.uri(self._folder), self._store.options
                try:
                    self._table = DeltaTable.create(
                        uri, self._schema, partition_by=list(SPLIT_BY), mode="ignore", name=self._folder,
                        configuration=PROPERTIES, storage_options=options,
                    )  # fmt: skip
                except DeltaError:
                    if not DeltaTable.is_deltatable(uri, options):
                        raise
                    self._table = None  # another process has created it meanwhile
        while state := self.load():
            new = {partition: first for partition, first in firsts.items() if partition not in state.extents}
            if not new or self.commit(state, Change(nexts=new)):
                return

    def upgrade(self) -> None:
        """Add the fields that events have gained since the table was written last, and the properties that it lacks."""
        with self._translate_errors("it cannot be written"):
            table = self._open()
            fields = {field.name: field for field in table.schema().fields}
            has_fields = all(fields.get(field.name) == field for field in self._schema.fields)
            has_properties = PROPERTIES.items() <= table.metadata().configuration.items()
            with contextlib.suppress(CommitFailedError):  # another process did it meanwhile
                if not has_fields:
                    table.alter.add_columns(list(self._schema.fields))
                if not has_properties:
                    table.alter.set_table_properties(PROPERTIES)
            if not (has_fields and has_properties):
                self._table = None

    def commit(self, state: TableState, change: Change) -> bool:
        """Write the next version; return False if another writer has changed the same since `state` was loaded."""
        now_ms = int(time.time() * 1000)
        changes_rows = not change.keeps_rows
        actions: list[AddAction | RemoveAction] = []
        for segment, stats in change.added:
            actions.append(AddAction(segment.name, segment.bytes, _values(segment), now_ms, changes_rows, stats))
        for segment in change.removed:
            actions.append(RemoveAction(segment.name, changes_rows, now_ms, segment.bytes, _values(segment)))
        transactions = [Transaction(_transaction(p), next_, now_ms) for p, next_ in sorted(change.nexts.items())]
        if change.removed:
            transactions.append(Transaction(_REWRITTEN, state.rewritten + 1, now_ms))
        with self._translate_errors("it cannot be written"):
            table = self._open(state.version)
            try:
                table.create_write_transaction(
                    actions, "append", table.schema(), list(SPLIT_BY),
                    commit_properties=CommitProperties(app_transactions=transactions),
                )  # fmt: skip
            except CommitFailedError:
                self._table = None
                if self._open().version() == state.version:
                    raise  # no other writer has written anything
                return False
            self._table = table
            table.update_incremental()
            self._sync(state.version + 1, table.version())
        return True

    def vacuum(self, kept_hours: int = KEPT_HOURS) -> int:
        """Remove files that have not been part of the table for so long, or never were; return how many."""
        self.load()  # what is part of it by now must stay
        with self._translate_errors("it cannot be written"):
            removed = self._open().vacuum(kept_hours, dry_run=False, enforce_retention_duration=False, full=True)
            return len(removed)

    def _open(self, version: int | None = None) -> DeltaTable:
        if self._table is None or version not in (None, self._table.version()):
            return DeltaTable(self._store.uri(self._folder), version, storage_options=self._store.options)
        return self._table

    def _state(self, table: DeltaTable) -> TableState:
        location = self._store.location(self._folder)
        by_partition: dict[int, list[Segment]] = {}
        if tuple(table.metadata().partition_columns) != SPLIT_BY:
            raise LogError(f"{location}: a Delta table that no archive wrote; set archive.store to another place")
        try:
            for row in _rows(table):
                segment = self._segment(row)
                by_partition.setdefault(segment.partition, []).append(segment)
            extents = dict(self._extents(table, by_partition))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as exc:
            raise LogError(
                f"{location}: its Delta log is not as an archive writes it: {exc}. Nothing else may write to it; "
                "restore it from a copy of the archive"
            ) from exc
        if strange := by_partition.keys() - extents.keys():
            raise LogError(f"{location}: has files of partition {min(strange)}, of which no sync is noted")
        return TableState(table.version(), extents, table.transaction_version(_REWRITTEN) or 0)

    def _extents(self, table: DeltaTable, segments: Mapping[int, list[Segment]]) -> Iterator[tuple[int, ArchiveExtent]]:
        for partition in range(MOST_PARTITIONS):
            next_ = table.transaction_version(_transaction(partition))
            if next_ is None:
                return
            ordered = sorted(segments.get(partition, ()), key=attrgetter("first", "next", "day"))
            yield partition, ArchiveExtent(ordered[0].first if ordered else next_, next_, tuple(ordered))

    def _segment(self, row: Mapping[str, Any]) -> Segment:
        match = _NAME.fullmatch(row["path"])
        if match is None:
            raise ValueError(f"it names {row['path']!r}, which is no segment's file")
        records = row["num_records"]
        ids = {row["min._schema_id"], row["max._schema_id"]} - {None}
        return Segment(
            label=self._label,
            partition=int(match[1]),
            day=match[2],
            first=int(match[3]),
            next=int(match[4]),
            name=row["path"],
            path=self._store.location(f"{self._folder}/{row['path']}"),
            sha256=match[5],
            footer=match[6],
            records=records,
            bad=records - row["null_count._bad"],
            bytes=row["size_bytes"],
            from_ms=_ms(row["min._timestamp"]),
            to_ms=_ms(row["max._timestamp"]),
            schema_ids=tuple(sorted(ids)),
        )

    def _sync(self, first: int, last: int) -> None:
        """Wait until the log's files are on disk, if it is a folder."""
        if self._store.local is None:
            return
        folder = self._store.local / self._folder / "_delta_log"
        for path in (*(folder / f"{number:020d}.json" for number in range(first, last + 1)), folder):
            with contextlib.suppress(FileNotFoundError):  # cleaned up meanwhile
                files.sync(path)

    @contextlib.contextmanager
    def _translate_errors(self, failure: str) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError, pa.ArrowException) as exc:
            raise LogError(
                f"{self._store.location(self._folder)}: {failure}: {message_of(exc)}; `streamward admin archive "
                "verify` names what is missing or damaged, and archive.store must be a place that can be read and "
                "written"
            ) from exc


def segment_name(partition: int, day: str, offsets: tuple[int, int], sha256: str, footer: str) -> str:
    """Return the name of a segment's file, relative to its table; `offsets` is its range."""
    first, next_ = offsets
    return f"_partition={partition}/_day={day}/{first:020d}-{next_:020d}-{sha256}-{footer[:FOOTER_DIGITS]}.parquet"


def _transaction(partition: int) -> str:
    return f"streamward/partition/{partition}"


def _values(segment: Segment) -> dict[str, str | None]:
    return {"_partition": str(segment.partition), "_day": segment.day}


def _rows(table: DeltaTable) -> list[dict[str, Any]]:
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = ("path", "size_bytes", "num_records", "null_count._bad", "min._timestamp", "max._timestamp",
              "min._schema_id", "max._schema_id")  # fmt: skip
    rows: list[dict[str, Any]] = actions.select([name for name in columns if name in actions.column_names]).to_pylist()
    return rows


def _ms(moment: datetime | None) -> int:
    return 0 if moment is None else (moment - _EPOCH) // timedelta(milliseconds=1)


def stats_json(records: int, smallest: Mapping[str, Any], largest: Mapping[str, Any], nulls: Mapping[str, int]) -> str:
    """Return a file's statistics as Delta writes them; times are datetimes in UTC."""
    bounds = {
        "minValues": {name: _stats_value(value) for name, value in smallest.items()},
        "maxValues": {name: _stats_value(value) for name, value in largest.items()},
    }
    return json.dumps({"numRecords": records, **bounds, "nullCount": dict(nulls)})


def _stats_value(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
