"""Spark finds by a filter on any column of an archive what SQL over the records finds."""

from __future__ import annotations

import os
from datetime import date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from schemas.events import AdvantagedGroup, Event, Response, Reward, Task
from streams.settings.model import Settings
from streams.tools.archive.compact import compact
from tests.skips import needs
from tests.support.archive_filters import Filter, archive, by_sql, columns_of, files_of, filters_on, label_of
from tests.support.factories import one_of_each
from tests.support.spark import environment
from tests.support.spark.environment import Question

pytestmark = pytest.mark.spark
SPARK_PROMISED = "TEST_SPARK"
OPERATORS = ("=", "<>", "<", ">=", "IS NULL", "IS NOT NULL")
NESTED = {
    Task: "exists(messages, m -> m.role = 'user')",
    Response: "usage IS NULL OR size(prompt_token_ids) >= 0",
    AdvantagedGroup: "exists(_members, m -> m.slot = 0) AND exists(responses, r -> r.slot = 0)",
}


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


def found(uri: str, filters: list[Filter], versions: list[int], scratch: Path) -> list[list[int]]:
    """Return the offsets that Spark finds by each filter, in each version of the table."""
    questions = [
        Question(condition(row_filter), ("_offset",), version) for version in versions for row_filter in filters
    ]
    try:
        answers = environment.answers(uri, questions, scratch)
    except environment.NoSpark as exc:
        assert os.environ.get(SPARK_PROMISED) != "1", f"Spark was promised, but there is no {exc}"
        pytest.skip(needs(str(exc), "make setup-spark && make test-spark"))
    return [sorted(offset for (offset,) in rows) for rows in answers]


def expected(columns: pa.Table, filters: list[Filter]) -> list[list[int]]:
    with duckdb.connect() as connection:
        truth = by_sql(connection, columns)
        return [sorted(truth(row_filter)) for row_filter in filters]


@pytest.mark.parametrize(
    "event", [event for event in one_of_each() if isinstance(event, Task | Response | Reward | AdvantagedGroup)],
    ids=lambda event: type(event).__name__,
)  # fmt: skip
def test_a_filter_on_any_column_finds_its_rows_before_and_after_compaction(event: Event, tmp_path: Path) -> None:
    settings = Settings.model_validate({"archive": {"store": str(tmp_path / "archive")}})
    files, label = files_of(event), label_of(event)
    uri, columns = archive(settings, label, files), columns_of(type(event), files)
    before = DeltaTable(uri).version()
    compact(settings, [label])
    filters = filters_on(columns, *(OPERATORS if isinstance(event, Reward) else ("=", "IS NULL")))
    answers = found(uri, filters, [before, DeltaTable(uri).version()], tmp_path)
    truth = expected(columns, filters) * 2
    names = [str(row_filter) for row_filter in filters] * 2
    assert [row for row in zip(names, answers, truth, strict=True) if row[1] != row[2]] == []
