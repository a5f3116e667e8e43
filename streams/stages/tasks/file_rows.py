"""Read the rows of a file, whatever its format: JSON lines, CSV, Parquet, or the folder of a Hugging Face data set.

    FILE.jsonl  FILE.csv  FILE.parquet  FOLDER ──► (number, row), (number, row), …

A row of JSON lines is its text, and the others are mappings. What a table leaves empty, its row does not have. All
cells of a CSV file are text; in those of fields that are numbers or objects, JSON is expected; a column without a name,
as pandas writes its index, is left out. Numbers count from 1 and are those of the file's lines, where it has lines.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from schemas import json_text
from streams.errors import EventError, NotFoundError, SettingsError
from streams.scorers.verdict import nearest
from streams.stages.tasks.lines import Row

SEPARATED = (".csv", ".tsv")
"""Files of cells, whose first line is the header."""
VALUES = ("metadata", "group_size", "created_at", "deadline_at", "adapter_version", "sampling", "verifier", "messages")
"""Fields whose cells in a CSV file are JSON; all others are taken as they are."""


def rows(path: Path, split: str | None = None) -> Iterator[tuple[int, Row]]:
    """Yield (number, row). `split` is the part of a data set's folder to read.

    Raises NotFoundError if there is no such file or split, EventError if it is not what its name says.
    """
    if split is not None and not path.is_dir():
        raise SettingsError(f"--split {split}: {path} is not the folder of a data set, and only those have splits")
    try:
        if path.is_dir():
            yield from enumerate(map(_without_empty, _data_set(path, split)), 1)
        elif path.suffix.lower() == ".parquet":
            yield from enumerate(map(_without_empty, _parquet(path)), 1)
        elif path.suffix.lower() in SEPARATED:
            yield from _csv(path)
        else:
            with path.open("rb") as lines:
                yield from json_lines(lines)
    except OSError as exc:
        raise NotFoundError(
            f"{path}: {exc.strerror or exc}; give a file of JSON lines, .csv or .parquet, the folder of a data set, or "
            "- for JSON lines from stdin"
        ) from exc


def json_lines(lines: Iterable[bytes | str]) -> Iterator[tuple[int, Row]]:
    """Yield (number, text) of each line that is not blank."""
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _csv(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            file.seek(0)
            # spreadsheets of many countries separate with semicolons
            table = csv.DictReader(file, delimiter=max(",;\t", key=header.count), strict=True)
            for cells in table:
                yield table.line_num, _of_cells(cells, f"{path}:{table.line_num}")
    except UnicodeDecodeError as exc:
        raise EventError(f"{path}: not UTF-8: {exc.reason} at byte {exc.start}; save it as UTF-8") from exc
    except csv.Error as exc:
        raise EventError(f"{path}: not CSV after line {table.line_num}: {exc}") from exc


def _of_cells(cells: dict[str | None, Any], place: str) -> dict[str, Any]:
    """Return the row of a line's cells. Raises EventError if they are not as many as the header names."""
    surplus = cells.pop(None, ())
    got = len(cells) + len(surplus) - list(cells.values()).count(None)
    if got != len(cells):
        names = ", ".join(map(str, cells))
        raise EventError(
            f"{place}: {got} cells, expected {len(cells)} as in the header ({names}); a cell with a comma or a line "
            "break in it needs quotes"
        )
    return {name: _value(name, text) for name, text in cells.items() if name and text}


def _value(name: str, text: str) -> Any:
    if name == "reward_sources" and not text.startswith("["):
        return [part.strip() for part in text.split(",")]  # `exact, length`
    try:
        return json_text.parse(text) if name in (*VALUES, "reward_sources") else text
    except ValueError:
        return text  # checked, and refused with the field's name, like a wrong value in any other file


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    with path.open("rb") as file:
        try:
            # On this thread alone: one of Arrow's that outlives the command aborts it (Arrow issue 34314).
            for batch in parquet.ParquetFile(file, pre_buffer=False).iter_batches(use_threads=False):
                yield from batch.to_pylist()
        except (pyarrow.ArrowException, OSError, ValueError) as exc:  # what it calls OSError is the file's content
            raise EventError(f"{path}: not Parquet: {exc}") from exc


def _data_set(folder: Path, split: str | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set that `save_to_disk` has written, or of one copied from the hub."""
    import datasets

    datasets.disable_progress_bars()
    try:
        if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
            found = datasets.load_from_disk(str(folder))
        else:
            found = datasets.load_dataset(str(folder), streaming=True)
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as exc:
        raise NotFoundError(f"{folder}: not the folder of a data set: {exc}") from exc
    if not isinstance(found, dict):
        if split is not None:
            raise NotFoundError(f"{folder} has no splits; leave --split {split} out")
        yield from found
        return
    if split is None and len(found) > 1:
        raise SettingsError(f"{folder} has the splits {', '.join(found)}; choose one with --split")
    if split is not None and split not in found:
        raise NotFoundError(f"{folder} has no split {split}; {nearest(split, found)}")
    yield from found[split or next(iter(found))]


def _without_empty(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}
