"""Export groups on Spark or Ray, from the archive: the same SQL, the same examples, task by task.

    archive ──► pieces ──► ReadingByTask: records of groups, responses, tasks, by bucket of their task
                       ──► Exporting: a bucket ──► DuckDB, the statement of export.py ──► lines of each group
                       ──► sorted by group ──► this process: train, test, manifest.json

A group, its responses and its task are in one bucket, so the statement sees in a bucket all that it would join in the
whole log. The files have the bytes that they have when this machine exports the archive.

Not covered: groups of one id under two tasks, which no stage writes, and of which one machine keeps one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from plugins.distributed.data_engine import DataEngine, Rows, SharedValue, as_batches
from plugins.distributed.executor import release, same_release
from plugins.distributed.node_check import check_nodes
from plugins.distributed.pieces import ArchivePiece, bucket_of, buckets_for, for_executors, pieces_of
from schemas.events import AdvantagedGroup, Coordinates, Event, SourceRange
from schemas.serde import Poison
from streams.arrow import decode
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.history import ArchiveHistory
from streams.tools.archive.segments import ArchiveReader
from streams.tools.query.examples import FORMATS, ExportOptions
from streams.tools.query.export import LABELS, Counts, line_of, rows_by_group, statement
from streams.tools.query.source import Scope
from streams.tools.query.splits import ExampleOrigin, origin_of_group
from streams.tools.query.sql_view import WHOLE
from streams.tools.query.views import columns, identifier

BATCH_RECORDS = 1000
READ = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("topic", pa.int32()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary()),
    ]
)
"""A record of LABELS that is an event."""
LINES = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("number", pa.int32()),
        pa.field("responses", pa.int32()),
        pa.field("keys", pa.list_(pa.string())),
        pa.field("question", pa.string()),
        pa.field("purpose", pa.string()),
        pa.field("parameters", pa.string()),
        pa.field("variant_of", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("line", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
"""An example of a group, which the first two columns name, with its origin, or the reason why it has none. The
responses of the group are with its first row."""
ORDER = ("partition", "offset", "number")


@dataclass(frozen=True, slots=True)
class ReadingByTask:
    """Reads a piece, and finds the task of each record."""

    settings: Settings
    pieces: SharedValue
    options: ExportOptions
    scope: Scope
    buckets: int

    def __call__(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield READ of a piece. Raises LogError, naming the segment, if it is missing or damaged."""
        yield from as_batches(self._rows(self.pieces.value[number]), READ, BATCH_RECORDS)

    def _rows(self, piece: ArchivePiece) -> Iterator[tuple[Any, ...]]:
        topic = topics(self.settings.topics)[LABELS[piece.topic]]
        for record in ArchiveReader(self.settings).range((topic.name, piece.partition), piece.segments):
            if not piece.first <= record.at.offset < piece.next:
                continue
            event = record.decode(topic.event)
            if isinstance(event, Poison) or not self._is_wanted(event, record):
                continue
            bucket = bucket_of(str(getattr(event, "task_id")).encode(), self.buckets)  # noqa: B009 - of each of them
            yield bucket, piece.topic, *record.at[1:], record.timestamp_ms, record.key, record.payload

    def _is_wanted(self, event: Event, record: Record) -> bool:
        """Return whether a record may be part of an example: of groups only those that the statement chooses."""
        if not isinstance(event, AdvantagedGroup):
            return True
        if (event.policy, event.purpose) != (self.options.policy, self.options.purpose or "train"):
            return False
        since_ms, until_ms = self.scope.since_ms, self.scope.until_ms
        if since_ms is not None and record.timestamp_ms < since_ms:
            return False
        return until_ms is None or record.timestamp_ms < until_ms


@dataclass(frozen=True, slots=True)
class Exporting:
    """Makes the examples of the groups of which it is given every record."""

    settings: Settings
    options: ExportOptions

    def __call__(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield LINES of rows of READ, in any order."""
        yield from as_batches(self._lines(rows), LINES, BATCH_RECORDS)

    def _lines(self, rows: pa.Table) -> Iterator[tuple[Any, ...]]:
        with duckdb.connect() as con:
            con.execute(f"SET TimeZone = 'UTC'; CREATE SCHEMA {WHOLE}")
            for topic, label in enumerate(LABELS):
                self._view(con, label, rows.filter(pa.compute.equal(rows["topic"], topic)))
            reader = con.sql(statement(self.options)).to_arrow_reader(BATCH_RECORDS)
            yield from self._group_lines(row for batch in reader for row in batch.to_pylist())

    def _view(self, con: duckdb.DuckDBPyConnection, label: str, rows: pa.Table) -> None:
        """Make the view of a topic, as a session has it."""
        topic = topics(self.settings.topics)[label]
        tables = [
            decode.decode_rows(topic.event, decode.side_by_side(topic.name, records)).table
            for records in decode.chunks(_records(topic.name, rows))
        ]
        schema = decode.arrow_schema(topic.event)
        con.register(f"{label} here", pa.concat_tables([schema.empty_table(), *tables]))
        name = identifier(f"{label} here")
        select = f"SELECT {columns(label, schema.names)} FROM {name}"  # noqa: S608 - names, quoted
        for view_schema in (WHOLE, "main"):
            con.execute(f"CREATE VIEW {view_schema}.{identifier(label)} AS {select}")

    def _group_lines(self, rows: Iterator[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
        for group in rows_by_group(rows):
            position, origin = (group[0]["groups_partition"], group[0]["groups_offset"]), origin_of_group(group[0])
            examples = FORMATS[self.options.format](group, self.options)
            if isinstance(examples, str):
                yield *position, 0, len(group), *origin, None, examples
                continue
            for number, example in enumerate(examples):
                yield *position, number, 0 if number else len(group), *origin, line_of(example), None


def _records(name: str, rows: pa.Table) -> Iterator[Record]:
    for batch in rows.to_batches():
        for _, _, partition, offset, timestamp_ms, key, payload in zip(*batch.to_pydict().values(), strict=True):
            yield Record(Coordinates(name, partition, offset), timestamp_ms, key, payload)


def lines(
    settings: Settings, engine: DataEngine, options: ExportOptions, scope: Scope, counts: Counts
) -> Iterator[tuple[str, ExampleOrigin]]:
    """Return the line of each example with its origin, in the order of the groups; they count as they come.

    Raises SettingsError if a node is not as this process, NotFoundError or LogError if the archive lacks something,
    LogError if an executor fails.
    """
    ranges = ranges_of(settings)
    pieces = pieces_of(settings, ranges, LABELS)
    executor_settings, topic_of = for_executors(settings), topics(settings.topics)
    names = sorted({topic_of[LABELS[piece.topic]].name for piece in pieces})
    check_nodes(engine, release(), executor_settings.archive.store, names)
    if not pieces:
        return iter(())
    buckets = buckets_for(pieces, engine.parallelism)
    reading = ReadingByTask(executor_settings, engine.share(pieces), options, scope, buckets)
    read = engine.map_numbers(len(pieces), min(len(pieces), buckets), same_release(reading), READ)
    work = same_release(Exporting(executor_settings, options))
    rows = read.map_groups("bucket", buckets, work, LINES).persist()
    return count_lines(rows, counts)


def count_lines(rows: Rows, counts: Counts) -> Iterator[tuple[str, ExampleOrigin]]:
    """Yield what `lines` returns, of rows of LINES."""
    for table in rows.sorted_by(ORDER):
        for row in table.to_pylist():
            counts.groups += not row["number"]
            counts.responses += row["responses"]
            if row["line"] is None:
                counts.left_out[row["reason"]] += 1
                continue
            counts.examples += 1
            origin = ExampleOrigin(tuple(row["keys"]), *(row[name] for name in ExampleOrigin._fields[1:]))
            yield row["line"], origin


def ranges_of(settings: Settings) -> list[SourceRange]:
    """Return what the archive holds of the topics that an export reads. Raises NotFoundError without one of them."""
    return [
        SourceRange(topic=topic, partition=partition, first=first, next=next_)
        for (topic, partition), (first, next_) in sorted(ArchiveHistory(settings).bounds(LABELS).items())
    ]
