"""A filter on any column of an archive finds the same rows in every engine as SQL over the records themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Schema

from schemas.events import Coordinates, Event, Reward
from schemas.serde import encode
from streams.arrow.decode import side_by_side
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.columns import FIRST_MS, LAST_MS, days_of, store_rows, table_schema
from streams.tools.archive.compact import compact
from streams.tools.archive.segment_writer import RangeWriter
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.tables import SPLIT_BY, Change
from tests.support.factories import changed, one_of_each, reward

DAY_MS = 86_400_000
Filter = tuple[str, str, pa.Scalar | None]
"""Column, operator, value; no value for nulls."""
Engine = Callable[[Filter], list[int]]
"""Return the offsets of the rows that a filter finds."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate({"archive": {"store": str(tmp_path / "archive")}})


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
    table = reader.table(label)
    table.create({0: 0})
    for records in files:
        writer = RangeWriter(settings, reader.store, label, 0)
        writer.add(side_by_side(reader.folder(label), records))
        state, first, next_ = table.load(), records[0].at.offset, records[-1].at.offset + 1
        assert state is not None
        assert table.commit(state, Change(added=tuple(writer.write_files(first, next_)), nexts={0: next_}))
    return reader.store.uri(reader.folder(label))


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


def condition(field: Any, operator: str, value: Any) -> Any:
    """Return the filter in the words that pyarrow and Polars share."""
    match operator:
        case "=":
            return field == value
        case "<>":
            return field != value
        case "<":
            return field < value
        case ">=":
            return field >= value
        case _:
            return field.is_null() if operator == "IS NULL" else ~field.is_null()


def arrow_condition(row_filter: Filter) -> pc.Expression:
    column, operator, value = row_filter
    return condition(pc.field(column), operator, value)


def by_polars(frame: pl.LazyFrame) -> Engine:
    def offsets(row_filter: Filter) -> list[int]:
        column, operator, value = row_filter
        chosen = condition(pl.col(column), operator, None if value is None else value.as_py())
        return list(frame.filter(chosen).select("_offset").collect()["_offset"])

    return offsets


def engines_over(uri: str, connection: duckdb.DuckDBPyConnection) -> dict[str, Engine]:
    table = DeltaTable(uri)
    dataset = table.to_pyarrow_dataset()
    return {
        "pyarrow": lambda row_filter: dataset.to_table(["_offset"], arrow_condition(row_filter))["_offset"].to_pylist(),
        "DuckDB": by_sql(connection, dataset),
        "Polars": by_polars(pl.scan_delta(uri)),
        "Polars over pyarrow": by_polars(pl.scan_pyarrow_dataset(dataset)),
        "pandas": lambda row_filter: list(
            table.to_pandas(columns=["_offset"], filters=arrow_condition(row_filter))["_offset"]
        ),
    }


def differences(uri: str, expected: pa.Table, filters: Iterable[Filter]) -> list[tuple[str, str, list[int], list[int]]]:
    """Return which engine finds other offsets than SQL over the records, and both."""
    with duckdb.connect() as connection, duckdb.connect() as other_connection:
        truth, engines = by_sql(other_connection, expected), engines_over(uri, connection)
        answers = [
            (name, str(row_filter), sorted(offsets(row_filter)), sorted(truth(row_filter)))
            for row_filter in filters
            for name, offsets in engines.items()
        ]
    return [answer for answer in answers if answer[2] != answer[3]]


@pytest.mark.parametrize("event", one_of_each(), ids=lambda event: type(event).__name__)
def test_a_filter_on_any_column_finds_what_sql_over_the_records_finds(event: Event, settings: Settings) -> None:
    files, label = files_of(event), label_of(event)
    uri, expected = archive(settings, label, files), columns_of(type(event), files)
    assert differences(uri, expected, filters_on(expected, "=")) == []


def test_every_comparison_finds_the_same_before_and_after_compaction(settings: Settings) -> None:
    files = files_of(reward())
    uri, expected = archive(settings, "rewards", files), columns_of(Reward, files)
    filters = filters_on(expected, "=", "<>", "<", ">=", "IS NULL", "IS NOT NULL")
    assert differences(uri, expected, filters) == []
    (compacted,) = compact(settings, ["rewards"])
    assert compacted.after < compacted.before
    assert differences(uri, expected, filters) == []


def test_a_table_without_the_property_is_filtered_rightly_once_it_is_upgraded(settings: Settings) -> None:
    files, reader = files_of(reward()), ArchiveReader(settings)
    schema = Schema.from_arrow(table_schema(Reward))
    DeltaTable.create(reader.store.uri(reader.folder("rewards")), schema, partition_by=list(SPLIT_BY))
    uri, expected = archive(settings, "rewards", files), columns_of(Reward, files)
    filters = [row_filter for row_filter in filters_on(expected, "=", "IS NULL") if row_filter[0] == "task_id"]
    assert differences(uri, expected, filters)
    reader.table("rewards").upgrade()
    assert differences(uri, expected, filters) == []
    version = DeltaTable(uri).version()
    reader.table("rewards").upgrade()
    assert DeltaTable(uri).version() == version


def test_times_at_the_ends_of_what_engines_know_are_found(settings: Settings) -> None:
    payload = encode(reward())
    times = (FIRST_MS - 1, FIRST_MS, -1, 0, LAST_MS, LAST_MS + 1)
    files = [[Record(Coordinates("any", 0, offset), time, b"k", payload, ())] for offset, time in enumerate(times)]
    uri, expected = archive(settings, "rewards", files), columns_of(Reward, files)
    filters = [row_filter for row_filter in filters_on(expected, "=", ">=", values=9) if "time" in row_filter[0]]
    assert differences(uri, expected, filters) == []
