"""Print the result of a query: a table for people, JSON, CSV or Markdown for programs and pages, Parquet for files.

    batches ──► rows of plain values ──► table, markdown      control characters escaped
                                     └─► json, jsonl, csv     as they are
            ──────────────────────────► parquet               the batches themselves, into a file

Times are ISO 8601 in UTC, integers have all their digits, and nested values are JSON, also in CSV. DuckDB's COPY would
change all three, and could not be interrupted. A table that is too wide for the terminal is printed one column per
line, as psql does with `\\x auto`. A table is built in memory; the other formats are written row by row.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from streams import output as show
from streams.errors import SettingsError
from streams.tools.query.session import QueryResult

FORMATS = ("table", "json", "jsonl", "csv", "parquet", "markdown")
FOLLOWED = ("table", "jsonl", "csv")
"""Formats that can be continued."""
WIDEST = 60
"""Cells of one column in a table on a terminal; what is longer is cut."""
_PLAIN = (str, int, float, bool, type(None))


def rows(result: QueryResult) -> Iterator[list[Any]]:
    """Yield each row as values that JSON has."""
    for batch in result.batches:
        yield from map(list, zip(*(_values(column) for column in batch.columns), strict=True))


def write(result: QueryResult, output: str, out: TextIO) -> int:
    """Write a result as text; return how many rows it had."""
    return _WRITERS[output](result, out)


def write_file(result: QueryResult, output: str, path: Path) -> int:
    """Write a result to a file; return how many rows it had."""
    if output != "parquet":
        with path.open("w", encoding="utf-8", newline="") as out:
            return write(result, output, out)
    from pyarrow import parquet

    count = 0
    with parquet.ParquetWriter(path, result.schema, compression="zstd") as file:
        for batch in result.batches:
            file.write_batch(batch)
            count += len(batch)
    return count


def check(output: str, out: Path | None, *, follow: bool) -> None:
    """Raise SettingsError for a format that cannot go where it should."""
    if output == "parquet" and out is None:
        raise SettingsError("--output parquet needs a file: give --out FILE")
    if follow and (output not in FOLLOWED or out is not None):
        raise SettingsError(f"--follow prints as records come: use --output {', '.join(FOLLOWED)}, without --out")


class Following:
    """Prints results that come one after another, under one header."""

    def __init__(self, output: str, out: TextIO) -> None:
        self._output = output
        self._out = out
        self._lines: show.Lines | None = None
        self._begun = False

    def add(self, result: QueryResult) -> int:
        """Print another result; return how many rows it had."""
        if self._output == "table":
            return self._as_lines(result)
        write = _csv if self._output == "csv" else _jsonl
        count = write(result, self._out, header=False) if self._begun else write(result, self._out)
        self._begun = True
        self._out.flush()
        return count

    def _as_lines(self, result: QueryResult) -> int:
        if self._lines is None:
            types = zip(result.names, result.schema.types, strict=True)
            self._lines = show.Lines(
                [
                    show.Column(show.printable(name), _nth(number), width=_width(kind), right=_is_number(kind))
                    for number, (name, kind) in enumerate(types)
                ]
            )
        count = 0
        for row in rows(result):
            self._lines.add([show.cell(value, as_sql=True) for value in row])
            count += 1
        return count


def _nth(number: int) -> Callable[[Any], Any]:
    return lambda row: row[number]


def _width(kind: pa.DataType) -> int:
    if pa.types.is_timestamp(kind):
        return 24
    return 12 if _is_number(kind) or pa.types.is_boolean(kind) else 36


# --- values -----------------------------------------------------------------------------------------------------------


def _values(column: pa.Array) -> list[Any]:
    """Return a column's values as JSON has them."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    elif pa.types.is_timestamp(kind):
        return _times(column)
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except OverflowError:  # Python's dates end with the year 9999, and know no infinity
        values = _without_dates(column)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return values
    return [plain(value) for value in values]


def _without_dates(column: pa.Array) -> list[Any]:
    """Return a column's values with numbers for dates and times: days, or the unit of their type, since 1970."""
    try:
        numbers = column.cast(_numbers_for_dates(column.type))
        return list(numbers.to_pylist(maps_as_pydicts="lossy"))
    except (pa.ArrowException, OverflowError) as exc:
        raise SettingsError(
            f"the result holds dates that cannot be shown inside a {column.type}; cast them to VARCHAR in the statement"
        ) from exc


def _numbers_for_dates(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_date(kind):
        return pa.int32()
    if types.is_timestamp(kind):
        return pa.int64()
    if types.is_fixed_size_list(kind):
        return pa.list_(_numbers_for_dates(kind.value_type), kind.list_size)
    if types.is_list(kind):
        return pa.list_(_numbers_for_dates(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_numbers_for_dates(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_numbers_for_dates(kind.key_type), _numbers_for_dates(kind.item_type))
    return kind


def _times(column: pa.Array) -> list[str | None]:
    """Return times as text, also those that Python's datetime does not reach."""
    kind = column.type
    per_ms = {"s": 0.001, "ms": 1, "us": 1000, "ns": 1_000_000}[kind.unit]
    numbers = column.cast(pa.int64()).to_pylist()
    texts = [None if number is None else show.moment(int(number // per_ms)) for number in numbers]
    return texts if kind.tz else [text and text.removesuffix("Z") for text in texts]


def plain(value: Any) -> Any:
    """Return a value as JSON has it: times as ISO 8601, whole decimals as integers, bytes as escaped text."""
    match value:
        case _ if isinstance(value, _PLAIN):
            return value
        case dict():
            return {str(plain(key)): plain(item) for key, item in value.items()}
        case list() | tuple() if not hasattr(value, "months"):
            return [plain(item) for item in value]
        case Decimal():
            return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
        case datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case bytes():
            return "".join(chr(c) if 32 <= c < 127 and c != 92 else f"\\x{c:02X}" for c in value)
        case _:
            return _span(value)


def _span(value: Any) -> str:
    """Return an interval as text, or any other value."""
    months, days, nanoseconds = (
        getattr(value, "months", 0),
        getattr(value, "days", 0),
        getattr(value, "nanoseconds", None),
    )
    if nanoseconds is None:
        return str(value)
    seconds = nanoseconds / 1e9
    parts = [f"{count} {unit}" for count, unit in ((months, "months"), (days, "days")) if count]
    return " ".join([*parts, f"{seconds:g} s"] if seconds or not parts else parts)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


# --- formats ----------------------------------------------------------------------------------------------------------


def _table(result: QueryResult, out: TextIO) -> int:
    from rich.cells import cell_len

    titles = [show.printable(name) for name in result.names]
    cells = [[show.cell(value, as_sql=True) for value in row] for row in rows(result)]
    right = [_is_number(kind) for kind in result.schema.types]
    room = _terminal(out)
    if room and cells:
        short = [[_cut(text, WIDEST) for text in row] for row in cells]
        widths = [max(map(cell_len, column)) for column in zip(titles, *short, strict=True)]
        if sum(widths) + 2 * len(widths) - 2 > room:
            return _records(titles, cells, out)
        cells = short
    widths = [max(map(cell_len, column)) for column in zip(titles, *cells, strict=True)]
    for row in [titles, *cells]:
        out.write(_pad(row, widths, right) + "\n")
    return len(cells)


def _records(titles: Sequence[str], cells: Sequence[Sequence[str]], out: TextIO) -> int:
    """Write each row as a block, a column a line."""
    from rich.cells import cell_len

    width = max(map(cell_len, titles))
    for number, row in enumerate(cells, 1):
        out.write(f"-- {number} " + "-" * max(0, width - len(str(number)) - 2) + "\n")
        for title, text in zip(titles, row, strict=True):
            out.write(f"{title}{' ' * (width - cell_len(title))}  {text}".rstrip() + "\n")
    return len(cells)


def _pad(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    from rich.cells import cell_len

    parts = []
    for text, width, is_right in zip(row, widths, right, strict=True):
        space = " " * (width - cell_len(text))
        parts.append(space + text if is_right else text + space)
    return "  ".join(parts).rstrip()


def _cut(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def _terminal(out: TextIO) -> int:
    """Return the cells in a line of the terminal that `out` is, or 0."""
    if not out.isatty():
        return 0
    return show.console(out).width


def _markdown(result: QueryResult, out: TextIO) -> int:
    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |\n"

    out.write(line([show.printable(name) for name in result.names]))
    out.write(line(["---:" if _is_number(kind) else "---" for kind in result.schema.types]))
    count = 0
    for row in rows(result):
        out.write(line([show.cell(value, as_sql=True) for value in row]))
        count += 1
    return count


def _objects(result: QueryResult) -> Iterator[str]:
    names = _unique_names(result.names)
    return (show.json_line(dict(zip(names, row, strict=True))) for row in rows(result))


def _unique_names(names: Sequence[str]) -> list[str]:
    """Return names without duplicates, which a JSON object would lose."""
    unique: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in unique:
            candidate, number = f"{name}_{number}", number + 1
        unique.append(candidate)
    return unique


def _jsonl(result: QueryResult, out: TextIO, *, header: bool = True) -> int:
    count = 0
    for text in _objects(result):
        out.write(text + "\n")
        count += 1
    return count


def _json(result: QueryResult, out: TextIO) -> int:
    count = 0
    out.write("[")
    for count, text in enumerate(_objects(result), 1):
        out.write(("\n" if count == 1 else ",\n") + text)
    out.write("\n]\n" if count else "]\n")
    return count


def _csv(result: QueryResult, out: TextIO, *, header: bool = True) -> int:
    escaped = out.isatty()
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(result.names)
    count = 0
    for row in rows(result):
        texts = [_csv_cell(value) for value in row]
        writer.writerow([show.printable(text) for text in texts] if escaped else texts)
        count += 1
    return count


def _csv_cell(value: Any) -> str:
    """Return a value with all its digits and characters, which a program reads."""
    if value is None or isinstance(value, bool):
        return show.cell(value, as_sql=True)
    return show.json_line(value) if isinstance(value, dict | list) else str(value)


_WRITERS: dict[str, Callable[[QueryResult, TextIO], int]] = {
    "table": _table,
    "json": _json,
    "jsonl": _jsonl,
    "csv": _csv,
    "markdown": _markdown,
}
