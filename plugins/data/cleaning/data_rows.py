"""Read rows of any file, each with its place; an unreadable row has its own fate.

    FILE.jsonl  FILE.csv  FILE.parquet  FOLDER  lines of a body ──► DataRow | why it is none

Not covered: data sets that do not fit in memory.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plugins.data.cleaning.steps import DataRow
from streams.arrow.file_rows import OF_EXAMPLES, Row, fields_of, rows
from streams.stages.tasks.column_paths import fields_from, put_field

LONGEST_ROW = 8 * 1024 * 1024
"""Bytes of a line; a log's record holds less."""
MOST_LEVELS = 100
"""Of objects and lists in each other; a conversation with tools has less than ten."""
UNREADABLE = "read"
"""The step that drops a row that cannot be read."""
_CELLS = OF_EXAMPLES | {"reward_model", "extra_info"}
"""Columns of a CSV file that are JSON."""


class UnreadableRow(NamedTuple):
    """A row that cannot be read, and why."""

    place: str
    why: str
    step: str = UNREADABLE


class DataSource(NamedTuple):
    """A file or folder as it was read."""

    name: str
    sha256: str
    rows: int


def read_source(
    path: Path, split: str | None = None, columns: Mapping[str, str] | None = None
) -> Iterator[DataRow | UnreadableRow]:
    """Yield the rows of a file or folder. Raises NotFoundError, EventError, SettingsError as `file_rows.rows`."""
    return read_rows(rows(path, split, _CELLS), path.name, columns or {})


def read_rows(
    numbered: Iterable[tuple[int, Row]], name: str, columns: Mapping[str, str] | None = None
) -> Iterator[DataRow | UnreadableRow]:
    """Yield rows with their places; `columns` are those that fields are read from, as --map names them."""
    for number, row in numbered:
        place = f"{name}:{number}"
        if isinstance(row, bytes | str) and len(row) > LONGEST_ROW:
            yield UnreadableRow(place, f"it has {len(row):,} bytes; expected at most {LONGEST_ROW:,}")
            continue
        try:
            fields = fields_of(row)
            _check_values(fields)
            yield DataRow(place, _read_columns(fields, columns) if columns else fields)
        except ValueError as exc:
            yield UnreadableRow(place, str(exc))


def _read_columns(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return a row with the fields of these columns in their place. Raises ValueError."""
    values, used = fields_from(row, columns)
    fields = {name: value for name, value in row.items() if name not in used}
    for path, value in values.items():
        put_field(fields, path, value)
    return fields


def _check_values(fields: Mapping[str, Any]) -> None:
    """Raise ValueError for values that no file of rows can have: without end, or numbers that JSON does not have."""
    values: list[tuple[str, Any]] = list(fields.items())
    for _ in range(MOST_LEVELS):
        for column, value in values:
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{column} has {value}, which is no number of JSON; write null, or leave it out")
        values = [(column, inner) for column, value in values for inner in _inner(value)]
        if not values:
            return
    raise ValueError(f"{values[0][0]} is nested deeper than {MOST_LEVELS} levels")


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict | Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def digest_of(path: Path) -> str:
    """Return the sha256 of a file; of a folder that of its files' names and digests."""
    digest = hashlib.sha256()
    if path.is_dir():
        for file in sorted(part for part in path.rglob("*") if part.is_file()):
            digest.update(f"{file.relative_to(path)}\0{digest_of(file)}\n".encode())
    else:
        with path.open("rb") as content:
            while part := content.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()
