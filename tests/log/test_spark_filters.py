"""Spark finds by a filter on any column of an archive what SQL over the records finds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from schemas.events import Reward
from streams.settings.model import Settings
from streams.tools.archive.compact import compact
from tests.support.archive_filters import Filter, archive, by_sql, columns_of, files_of, filters_on, label_of
from tests.support.factories import one_of_each
from tests.support.spark import environment
from tests.support.spark.environment import Filters

pytestmark = pytest.mark.spark
OPERATORS = ("=", "<>", "<", ">=", "IS NULL", "IS NOT NULL")


def literal(value: Any) -> str:
    """Return a value as Spark's SQL has it."""
    match value:
        case bool():
            return str(value).upper()
        case bytes():
            return f"X'{value.hex()}'"
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case datetime():
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value}'"
        case float():
            return f"{value!r}D"
        case _:
            return str(value)


def condition(row_filter: Filter) -> str:
    column, operator, value = row_filter
    return f"`{column}` {operator}" + ("" if value is None else f" {literal(value.as_py())}")


def expected(columns: pa.Table, filters: list[Filter]) -> list[list[int]]:
    with duckdb.connect() as connection:
        truth = by_sql(connection, columns)
        return [sorted(truth(row_filter)) for row_filter in filters]


@pytest.fixture
def ask(tmp_path: Path) -> Callable[[list[Filters]], list[list[list[int]]]]:
    """Return the offsets that Spark finds by each condition of each question."""
    with environment.promised():  # before anything is archived for it
        environment.variables(tmp_path)

    def offsets(questions: list[Filters]) -> list[list[list[int]]]:
        with environment.promised():
            answers = environment.answers(questions, tmp_path)
        return [[sorted(offset for (offset,) in rows) for rows in answer] for answer in answers]

    return offsets


def test_a_filter_on_any_column_finds_its_rows_before_and_after_compaction(
    tmp_path: Path, ask: Callable[[list[Filters]], list[list[list[int]]]]
) -> None:
    settings = Settings.model_validate({"archive": {"store": str(tmp_path / "archive")}})
    questions, names, truth = [], [], []
    for event in one_of_each():
        files, label = files_of(event), label_of(event)
        uri, columns = archive(settings, label, files), columns_of(type(event), files)
        filters = filters_on(columns, *(OPERATORS if isinstance(event, Reward) else ("=",)))
        conditions = tuple(condition(row_filter) for row_filter in filters)
        before = DeltaTable(uri).version()
        compact(settings, [label])
        for version in (before, DeltaTable(uri).version()):
            questions.append(Filters(uri, ("_offset",), conditions, version))
            names.append([f"{label}, version {version}: {text}" for text in conditions])
            truth.append(expected(columns, filters))
    found = zip(chain(*names), chain(*ask(questions)), chain(*truth), strict=True)
    assert [row for row in found if row[1] != row[2]] == []
