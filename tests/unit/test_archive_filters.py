"""A filter on any column of an archive finds the same rows in every engine as SQL over the records themselves."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from schemas.events import Coordinates, Event, Reward
from schemas.serde import encode
from streams.kafka.record import Record
from streams.kafka.topics import SHAPES
from streams.settings.model import Settings
from streams.tools.archive.columns import FIRST_MS, LAST_MS, table_schema
from streams.tools.archive.compact import compact, expire
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.tables import PROPERTIES, SPLIT_BY
from streams.tools.archive.verify import verify
from tests.support.archive_filters import (
    Engine,
    Filter,
    add_range,
    archive,
    by_sql,
    columns_of,
    files_of,
    filters_on,
    label_of,
)
from tests.support.factories import T0, changed, one_of_each, reward
from tests.support.thoroughness import FULL

WIDE = ("_offset", "_timestamp", "value")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate({"archive": {"store": str(tmp_path / "archive")}})


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
    """Return which engine finds other offsets than SQL over the records, and both.

    In `make test` one of the engines filters by each column, in turn.
    """
    with duckdb.connect() as connection, duckdb.connect() as other_connection:
        truth, engines = by_sql(other_connection, expected), engines_over(uri, connection)
        answers = [
            (name, str(row_filter), sorted(offsets(row_filter)), sorted(truth(row_filter)))
            for number, row_filter in enumerate(filters)
            for place, (name, offsets) in enumerate(engines.items())
            if FULL or (place - number) % len(engines) == 0
        ]
    return [answer for answer in answers if answer[2] != answer[3]]


WITH_TOPIC = [event for event in one_of_each() if type(event) in {shape.event for shape in SHAPES.values()}]


@pytest.mark.parametrize("event", WITH_TOPIC, ids=lambda event: type(event).__name__)
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


def test_rows_of_a_release_whose_events_had_fewer_fields_are_found_once_the_table_has_them(settings: Settings) -> None:
    reader = ArchiveReader(settings)
    uri, columns = reader.store.uri(reader.folder("rewards")), columns_of(Reward, files_of(reward()))
    old = columns.drop_columns(["rationale", "slot"])
    Path(uri).mkdir(parents=True)
    write_deltalake(uri, old, partition_by=list(SPLIT_BY), configuration=PROPERTIES)
    reader.table("rewards").upgrade()
    without = columns.schema.empty_table().select(["rationale", "slot"])
    expected = pa.concat_tables([old, without], promote_options="default").select(columns.column_names)
    assert differences(uri, expected, filters_on(columns, "=", "IS NULL")) == []


def test_times_at_the_ends_of_what_engines_know_are_found(settings: Settings) -> None:
    payload = encode(reward())
    times = (FIRST_MS - 1, FIRST_MS, -1, 0, LAST_MS, LAST_MS + 1)
    files = [[Record(Coordinates("any", 0, offset), time, b"k", payload, ())] for offset, time in enumerate(times)]
    uri, expected = archive(settings, "rewards", files), columns_of(Reward, files)
    filters = [row_filter for row_filter in filters_on(expected, "=", ">=", values=9) if "time" in row_filter[0]]
    assert differences(uri, expected, filters) == []


def values_at(*offsets: int) -> list[Record]:
    """Return a reward at each of these offsets, a day after the other, with values that 32 bits do not hold."""
    return [
        Record(Coordinates("any", 0, offset), T0 + number * 86_400_000, b"k", _value(1e11 + 0.1 * number), ())
        for number, offset in enumerate(offsets)
    ]


def _value(value: float) -> bytes:
    return encode(changed(reward(), value=value))


def test_offsets_and_values_beyond_32_bits_and_the_whole_numbers_of_a_float_are_found(settings: Settings) -> None:
    files = [[record] for record in values_at(2**60, 2**60 + 1, 2**60 + 2)]
    uri, expected = archive(settings, "rewards", files), columns_of(Reward, files)
    filters = [row_filter for row_filter in filters_on(expected, "=", ">=", values=3) if row_filter[0] in WIDE]
    assert len(filters) == 18 and differences(uri, expected, filters) == []


def test_ranges_without_a_record_hide_none_before_and_after_compaction_and_expiry(settings: Settings) -> None:
    """A transaction leaves offsets without a record, and a range of such is a file without rows."""
    records = values_at(0, 1, 9, 15, 40)
    reader, files = ArchiveReader(settings), [records[:2], [], records[2:3], [], records[3:4]]
    reader.table("rewards").create({0: 0})
    for (first, next_), file in zip(pairwise((0, 6, 8, 12, 14, 20)), files, strict=True):
        add_range(settings, "rewards", file, first, next_)
    uri, expected = reader.store.uri(reader.folder("rewards")), columns_of(Reward, [records[:4]])
    filters = [row_filter for row_filter in filters_on(expected, "=", "IS NULL", values=5) if row_filter[0] in WIDE]
    assert differences(uri, expected, filters) == []
    compact(settings, ["rewards"])
    assert differences(uri, expected, filters) == []
    add_range(settings, "rewards", records[4:], 20, 41)
    (expired,) = expire(settings, records[4].timestamp_ms, ["rewards"])
    assert (expired.first, expired.records) == (20, 4)
    assert differences(uri, columns_of(Reward, [records[4:]]), filters) == []
    assert verify(settings, ["rewards"]).findings == ()
