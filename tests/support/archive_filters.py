"""An archive of events and of what is none, in several files; filters on every column; what SQL over the records says.

event ──► files_of ──► records ──► archive ──► a Delta table
                          └──► columns_of ──► a table in memory ──► by_sql: what each filter has to find
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa

from schemas.events import Coordinates, Event
from schemas.serde import encode
from streams.arrow.decode import side_by_side
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.columns import days_of, store_rows
from streams.tools.archive.segment_writer import RangeWriter
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.tables import Change
from tests.support.factories import changed

DAY_MS = 86_400_000
Filter = tuple[str, str, pa.Scalar | None]
"""Column, operator, value; no value for nulls."""
Engine = Callable[[Filter], list[int]]
"""Return the offsets of the rows that a filter finds."""


def label_of(event: Event) -> str:
    return next(label for label, topic in topics(Settings().topics).items() if topic.event is type(event))


def files_of(event: Event) -> list[list[Record]]:
    """Return the records of four files: events, events and what is none, what is none, and events of another day."""
    later = changed(event, created_at=event.created_at + 1)
    payloads = [[event, event], [later, b"junk", later], [b"", None], [event, later]]
    files: list[list[Record]] = []
    for number, file in enumerate(payloads):
        begin, day = sum(map(len, files)), 20_000 + number // 3
        files.append([_record(begin + row, day, payload) for row, payload in enumerate(file)])
    return files


def _record(offset: int, day: int, payload: Event | bytes | None) -> Record:
    encoded = encode(payload) if isinstance(payload, Event) else payload
    key = None if offset % 3 else b"\xff"
    return Record(Coordinates("any", 0, offset), day * DAY_MS + offset, key, encoded, ())


def archive(settings: Settings, label: str, files: list[list[Record]]) -> str:
    """Archive the records, each list as a file; return where the table is."""
    reader = ArchiveReader(settings)
    reader.table(label).create({0: files[0][0].at.offset})
    for records in files:
        add_range(settings, label, records, records[0].at.offset, records[-1].at.offset + 1)
    return reader.store.uri(reader.folder(label))


def add_range(settings: Settings, label: str, records: list[Record], first: int, next_: int) -> None:
    """Archive the records of a range of offsets, which may have holes."""
    reader = ArchiveReader(settings)
    writer, table = RangeWriter(settings, reader.store, label, 0), reader.table(label)
    if records:
        writer.add(side_by_side(reader.folder(label), records))
    state = table.load()
    assert state is not None
    assert table.commit(state, Change(added=tuple(writer.write_files(first, next_)), nexts={0: next_}))


def columns_of(event: type[Event], files: list[list[Record]]) -> pa.Table:
    """Return the records as columns that no file has held."""
    records = [record for file in files for record in file]
    table = store_rows(event, side_by_side("any", records)).table
    days = pa.array(days_of([record.timestamp_ms for record in records])).cast(pa.date32())
    partitions = pa.array([record.at.partition for record in records], pa.int32())
    return table.append_column("_day", days).append_column("_partition", partitions)


def filters_on(table: pa.Table, *operators: str, values: int = 1) -> list[Filter]:
    """Return filters on every column with these operators; what is nested is only null or not."""
    filters: list[Filter] = []
    for column in table.schema:
        filters += [(column.name, operator, None) for operator in operators if "NULL" in operator]
        if not pa.types.is_nested(column.type):
            compared = table[column.name].drop_null().unique()[:values]
            filters += [(column.name, op, value) for value in compared for op in operators if "NULL" not in op]
    return filters


def by_sql(connection: duckdb.DuckDBPyConnection, source: Any) -> Engine:
    def offsets(row_filter: Filter) -> list[int]:
        column, operator, value = row_filter
        placeholder, values = ("", []) if value is None else ("?", [value.as_py()])
        statement = f'SELECT _offset FROM source WHERE "{column}" {operator} {placeholder}'  # noqa: S608 - our names
        return [row[0] for row in connection.execute(statement, values).fetchall()]

    connection.register("source", source)
    return offsets
