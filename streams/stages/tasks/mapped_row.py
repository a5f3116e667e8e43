"""The fields of a row: columns under the names of a task's fields, as --map says, and defaults for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from schemas.faults import nearest
from streams.arrow.file_rows import Row, fields_of
from streams.errors import SettingsError
from streams.stages.tasks.column_paths import fields_from, map_options, put_field
from streams.stages.tasks.task_line import TaskLine


def map_row(row: Row, names: Mapping[str, str], defaults: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, None]]:
    """Return the fields of a row under their own names, with the defaults, and its unused columns.

    `names` has the column of a field or its path; if there is one, columns that are no field's are unused.
    """
    columns = fields_of(row)
    empty = empty_columns(row)
    values, used = fields_from(columns, names)
    line = {name: value for name, value in columns.items() if name not in empty and name not in used}
    unused = {name: None for name in line if names and name not in TaskLine.model_fields}
    line = {name: value for name, value in line.items() if name not in unused}
    for path, value in values.items():
        if names[path] not in empty:
            put_field(line, path, value)
    for path, value in defaults.items():
        if path != "system" or "messages" not in line:
            put_field(line, path, value, unless_there=True)
    return line, unused


def columns_by_field(names: Iterable[str]) -> dict[str, str]:
    """Return the column of each field, of FIELD=COLUMN as --map takes them. Raises SettingsError."""
    columns: dict[str, str] = {}
    for text in names:
        path, equals, column = text.partition("=")
        field = path.partition(".")[0]
        if not (path and equals and column):
            raise SettingsError(f"--map {text}: expected FIELD=COLUMN, e.g. --map prompt=question")
        if field not in TaskLine.model_fields:
            swapped = f"did you mean {map_options({column: path})}?" if column in TaskLine.model_fields else ""
            raise SettingsError(
                f"--map {text}: a task has no field {field}; {swapped or nearest(field, TaskLine.model_fields)}"
            )
        if path in columns:
            raise SettingsError(f"--map {text}: {path} is already read from {columns[path]}")
        columns[path] = column
    return columns


def empty_columns(row: Row) -> list[str]:
    """Return the columns without a value in this row of a table."""
    return [name for name, value in row.items() if value is None] if isinstance(row, Mapping) else []
