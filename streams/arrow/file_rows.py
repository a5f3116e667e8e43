"""Read the rows of a file, whatever its format: JSON lines, CSV, Parquet, or the folder of a Hugging Face data set.

    FILE.jsonl  FILE.csv  FILE.parquet  FOLDER ──► (number, row), (number, row), …     tasks, questions, examples

A row of JSON lines is its text, and the others are mappings, in which an empty cell is None. All cells of a CSV file
are text, and JSON in the columns that the caller names; a column without a name, as pandas writes its index, is left
out. Nulls inside the cells of a Parquet file are removed: Arrow writes one for each key of another row. Floats of a
column that are all whole are integers (cell_forms.py). Numbers count from 1 and are those of the line in which a row
begins, if a file has lines. An unreadable row is returned as its error, and does not hide the others.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas import json_text
from schemas.faults import in_quotes, names_in_quotes, nearest
from schemas.file_text import FileTextError, json_object, open_table, stray_byte_of, text_lines
from streams.errors import EventError, JobRequestError, NotFoundError, SettingsError, StreamwardError

Row = Mapping[str, Any] | bytes | str | ValueError
"""One row: its fields, or the text of a JSON object; an error if it cannot be read."""
SEPARATED = (".csv", ".tsv")
"""Files of cells with a header as their first line."""
SEPARATOR_LINE = re.compile(r"sep=(.)\s*", re.IGNORECASE)
"""The line that some programs write before the header for Excel."""
TABLES = (*SEPARATED, ".parquet")
LONGEST_CELL = 2**31 - 1
"""Maximum characters of a cell; the size of the record is checked when the task is made."""
OF_TASKS = frozenset(
    {
        *("metadata", "group_size", "created_at", "deadline_at", "adapter_version", "sampling", "verifier"),
        *("messages", "tools", "environment", "max_turns", "reward_sources"),
    }
)
"""Fields of a task whose cells in a CSV file are JSON."""
OF_EXAMPLES = frozenset(
    {
        *("messages", "tools", "prompt", "chosen", "rejected", "input", "preferred_output", "non_preferred_output"),
        *("input_ids", "assistant_masks"),
    }
)
"""Fields of an example to tune on whose cells are JSON."""


def rows(path: Path, split: str | None = None, json_columns: Collection[str] = OF_TASKS) -> Iterator[tuple[int, Row]]:
    """Yield (number, row). `split` is the part of a data set's folder to read; `json_columns` are those of CSV files.

    Raises NotFoundError for a missing file or split, EventError if its content does not match its name.
    """
    if split is not None and not path.is_dir():
        raise SettingsError(f"--split {split}: {path} is not the folder of a data set, and only those have splits")
    try:
        if path.is_dir():
            yield from enumerate(_data_set(path, split), 1)
        elif path.suffix.lower() == ".parquet":
            yield from enumerate(_parquet(path), 1)
        elif path.suffix.lower() in SEPARATED:
            yield from _csv(path, json_columns)
        else:
            with path.open("rb") as lines:
                yield from json_lines(lines, path)
    except FileTextError as exc:
        raise EventError(exc.at(path)) from exc
    except OSError as exc:
        stdin = "; write piped lines to a file first" if str(path) == "-" else ""
        raise NotFoundError(
            f"{path}: {exc.strerror or exc}; give a file of JSON lines, .csv or .parquet, or the folder of a data "
            f"set{stdin}"
        ) from exc


def fields_of(row: Row) -> dict[str, Any]:
    """Return the fields of a row. Raises ValueError, which names the row's actual type."""
    if isinstance(row, ValueError):
        raise row
    return json_object(row) if isinstance(row, bytes | str) else dict(row)


def json_lines(lines: Iterable[bytes | str], file: Path | str = "stdin") -> Iterator[tuple[int, Row]]:
    """Yield (number, text) of each line that is not blank. Raises EventError for a file in another encoding."""
    try:
        yield from text_lines(lines)
    except FileTextError as exc:
        raise EventError(exc.at(file)) from exc


def _csv(path: Path, json_columns: Collection[str]) -> Iterator[tuple[int, Row]]:
    with open_table(path) as file:
        head = file.readline()
        file.seek(0)
        says_separator = SEPARATOR_LINE.fullmatch(head)
        # spreadsheets of many countries separate with semicolons
        separator = says_separator[1] if says_separator else max(",;\t|", key=head.count)
        cells = csv.reader(file, delimiter=separator, strict=True)
        csv.field_size_limit(LONGEST_CELL)
        try:
            header = next(cells, [])
            if says_separator:
                header = next(cells, [])
        except csv.Error as exc:
            raise EventError(f"{path}:1: the header is not CSV: {exc}") from exc
        _check_header(header, f"{path}:1")
        number = cells.line_num + 1
        while (row := _next_row(cells, header, json_columns)) is not None:
            if row:
                yield number, row
            number = cells.line_num + 1


def _next_row(cells: Any, header: Sequence[str], json_columns: Collection[str]) -> Row | None:
    """Return the next row of a csv.reader, empty for a blank line, or its error; None at the end of the file."""
    first_line = cells.line_num + 1
    try:
        texts = next(cells)
    except StopIteration:
        return None
    except csv.Error as exc:
        last_line = cells.line_num
        through = f": a quote opens in it, and what follows up to line {last_line} is read as its cell"
        return ValueError(f"not CSV: {exc}{through if last_line > first_line else ''}; a quote in a cell is doubled")
    return _of_cells(header, texts, json_columns) if texts else {}


def _check_header(header: Sequence[str], place: str) -> None:
    """Raise EventError if a header names a column twice, has invalid text, or is a line of JSON."""
    if (fault := stray_byte_of("".join(header))) is not None:
        raise EventError(f"{place}: {fault}")
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice is not None:
        raise EventError(f"{place}: the column {in_quotes(twice)} is there twice; rename or remove one of them")
    if header and header[0].startswith("{"):
        raise EventError(f"{place}: the header begins with {{; JSON lines need a name that ends in .jsonl")


def _of_cells(header: Sequence[str], texts: Sequence[str], json_columns: Collection[str]) -> Row:
    """Return the row of a line's cells, None for an empty one, or its error."""
    if not any(texts):  # as spreadsheets write a blank line
        return {}
    if len(texts) != len(header):
        return ValueError(
            f"{len(texts)} cells, expected {len(header)} as in the header ({names_in_quotes(header)}); a cell with a "
            "comma or a line break in it needs quotes"
        )
    if (fault := stray_byte_of("".join(texts))) is not None:
        return ValueError(fault)
    cells = {name: text or None for name, text in zip(header, texts, strict=True) if name}
    try:
        return {name: _value(name, text) if name in json_columns and text else text for name, text in cells.items()}
    except json_text.RepeatedKeyError as exc:
        return exc


def _value(name: str, text: str) -> Any:
    """Return the value of a cell that is JSON. Raises RepeatedKeyError."""
    if name == "reward_sources" and not text.startswith("["):
        return [part.strip() for part in text.split(",")]  # `exact, length`
    try:
        return json_text.parse(text)
    except json_text.RepeatedKeyError as exc:
        raise json_text.RepeatedKeyError(f"{in_quotes(name)}: {exc}") from exc
    except ValueError:
        return text  # checked, and refused with the field's name, like a wrong value in any other file


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    from streams.arrow.cell_forms import CellForms

    with path.open("rb") as file:
        try:
            # On this thread alone: one of Arrow's that outlives the command aborts it (Arrow issue 34314).
            table = parquet.ParquetFile(file, pre_buffer=False)
            _check_header(table.schema_arrow.names, str(path))
            forms = CellForms(table.schema_arrow)
            if forms.columns:
                for batch in table.iter_batches(columns=forms.columns, use_threads=False):
                    forms.look(batch.to_pylist())
            for batch in table.iter_batches(use_threads=False):
                yield from (forms.mend(_present(row)) for row in batch.to_pylist())
        except (pyarrow.ArrowException, OSError, ValueError) as exc:  # its OSError is about the file's content
            file.seek(0)
            way_out = "; JSON lines need a name that ends in .jsonl" if file.read(1) == b"{" else ""
            raise EventError(f"{path}: not Parquet: {exc}{way_out}") from exc


def _data_set(folder: Path, split: str | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set that `save_to_disk` has written, or of one copied from the hub."""
    import datasets

    from streams.arrow.cell_forms import CellForms

    datasets.disable_progress_bars()
    try:
        data_set = _chosen_split(folder, split)
        forms = CellForms(None if data_set.features is None else data_set.features.arrow_schema)
        if forms.columns != []:
            forms.look(data_set if forms.columns is None else data_set.select_columns(forms.columns))
        yield from (forms.mend(_present(row)) for row in data_set)
    except StreamwardError:
        raise
    except Exception as exc:  # its card or files may raise anything: YAML's or Arrow's errors, KeyError
        raise NotFoundError(
            f"{folder}: not the folder of a data set: {exc}; give one that `save_to_disk` wrote, or one with files of "
            "one format; or name a file in it"
        ) from exc


def _chosen_split(folder: Path, split: str | None) -> Any:
    """Return the split of a data set, or all of one that has none. Its files may be read only as its rows are."""
    import datasets

    if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
        data_set = datasets.load_from_disk(str(folder))
    else:
        data_set = datasets.load_dataset(str(folder.resolve()), streaming=True)  # which takes no name from `.`
    if not isinstance(data_set, dict):
        if split is not None:
            raise NotFoundError(f"{folder} has no splits; leave --split {split} out")
        return data_set
    if split is None and len(data_set) > 1:
        raise SettingsError(f"{folder} has the splits {', '.join(data_set)}; choose one with --split")
    if split is not None and split not in data_set:
        raise NotFoundError(f"{folder} has no split {split}; {nearest(split, data_set)}")
    return data_set[split or next(iter(data_set))]


def _present(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the nulls inside its cells."""
    return {name: _without_nulls(cell) for name, cell in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def read_objects(file: Path, option: str, parameter: str, json_columns: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of a file, or of stdin. Raises JobRequestError, which names the first that cannot be read."""
    name = "stdin" if str(file) == "-" else str(file)
    stdin = sys.stdin.buffer
    objects = []
    try:
        for number, row in json_lines(stdin) if name == "stdin" else rows(file, json_columns=json_columns):
            try:
                fields = fields_of(row)
            except ValueError as exc:
                raise JobRequestError(f"{name}:{number}: {exc}", parameter) from exc
            objects.append({column: value for column, value in fields.items() if value is not None})
    except (EventError, NotFoundError) as exc:
        raise JobRequestError(f"{option} {exc}", parameter) from exc
    return objects
