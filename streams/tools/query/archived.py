"""Read segments of the archive: their columns where those are current, and their payloads where they are not.

    segments ─┬─ written with the newest schema, all events ──► read_parquet
              ├─ with records that are not events ──────────────► read_parquet, without those
              └─ written before a field existed, or sealed ───► payloads ──► decoded again, with its default, opened

Size and footer are checked first. Damage inside a page is found if it cannot be decompressed or decoded, and otherwise
by `admin archive verify`: queries do not check checksums of pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from schemas import ids as numbering, key_source, versions
from schemas.avro_schema import shapes
from schemas.events import AdvantagedGroup, Coordinates, Event
from streams.arrow import decode
from streams.arrow.decode import Bad, DecodedRows
from streams.errors import LogError
from streams.kafka.topics import Topic
from streams.tools.archive.columns import segment_schema, small
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.tables import Segment
from streams.tools.query.source import Scope
from streams.tools.query.views import literal


class Sorted(NamedTuple):
    """Segments by how they are read."""

    clean: list[Segment]
    with_bad: list[Segment]
    older: list[Segment]
    """Those that are decoded again."""


def sort(archive: ArchiveReader, event: type[Event], segments: Iterable[Segment]) -> Sorted:
    """Return the segments by how they must be read. Those of groups are opened, and others without a newest record."""
    sorted_segments = Sorted([], [], [])
    newest = versions.files().newest(event)
    ids = numbering.current().ids_meaning(newest) if newest.version > 1 else frozenset()
    kind: Any = event
    has_keys = "subject" in shapes(kind) and not isinstance(key_source.current(), key_source.NoKeys)
    for segment in segments:
        unsure = event is AdvantagedGroup or (newest.version > 1 and ids.isdisjoint(segment.schema_ids))
        if (unsure and not _has_columns(archive, event, segment)) or (has_keys and _has_subjects(archive, segment)):
            sorted_segments.older.append(segment)
        else:
            (sorted_segments.with_bad if segment.bad else sorted_segments.clean).append(segment)
    return sorted_segments


def _has_columns(archive: ArchiveReader, event: type[Event], segment: Segment) -> bool:
    try:
        with archive.store.open(f"{archive.folder(segment.label)}/{segment.name}") as source:
            schema = small(pq.read_schema(source))
    except (OSError, pa.ArrowException, LogError):
        return True  # missing or damaged: reading it raises (`ArchiveReader.sound`)
    return all(
        field.name in schema.names and schema.field(field.name).type == field.type for field in segment_schema(event)
    )


def _has_subjects(archive: ArchiveReader, segment: Segment) -> bool:
    """Return whether any row of a segment is of a subject, as its footer says."""
    try:
        with archive.store.open(f"{archive.folder(segment.label)}/{segment.name}") as source:
            footer = pq.read_metadata(source)
    except (OSError, pa.ArrowException, LogError):
        return False  # as above
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = [group.column(place) for group in groups for place in range(group.num_columns)]
    subjects = [column for column in columns if column.path_in_schema == "subject"]
    return any(column.statistics is None or column.statistics.has_min_max for column in subjects)


def selects(sorted_: Sorted, listed: Mapping[str, str], scope: Scope) -> list[str]:
    """Return the SELECTs of each kind of segment that DuckDB reads by itself; `listed`: as `archived_columns`."""
    statements = []
    for segments, is_event in ((sorted_.clean, ""), (sorted_.with_bad, "_bad IS NULL")):
        for condition, columns in listed.items():
            limits = [text for text in (is_event, condition, scope.condition()) if text]
            if segments:
                condition_sql = f" WHERE {' AND '.join(limits)}" if limits else ""
                statements.append(f"SELECT {columns} FROM {files(segments)}{condition_sql}")  # noqa: S608 - quoted
    return statements


def files(segments: Iterable[Segment]) -> str:
    """Return the segments' files as SQL reads them; the partition is in the names of their folders."""
    paths = ", ".join(literal(segment.path) for segment in segments)
    return f"read_parquet([{paths}], hive_partitioning = true, hive_types = {{'_partition': INTEGER, '_day': DATE}})"


def rows(archive: ArchiveReader, topic: Topic, segments: Iterable[Segment]) -> Iterator[DecodedRows]:
    """Yield what the segments hold, to be decoded again."""
    for segment in segments:
        tp = (topic.name, segment.partition)
        for records in decode.chunks(archive.range(tp, [segment])):
            yield decode.side_by_side(topic.name, records)


def bad(con: duckdb.DuckDBPyConnection, topic: Topic, segments: Iterable[Segment], scope: Scope) -> list[Bad]:
    """Return the records in these segments that are not events."""
    damaged = [segment for segment in segments if segment.bad]
    if not damaged:
        return []
    undecodable = con.execute(
        f"SELECT _partition, _offset, _bad FROM {files(damaged)} "  # noqa: S608 - paths as literals
        f"WHERE _bad IS NOT NULL AND {scope.condition() or 'true'}"
    ).fetchall()
    hint = "`streamward events tail` shows it, if the log still has it"
    return [Bad(Coordinates(topic.name, partition, offset), reason, hint) for partition, offset, reason in undecodable]
