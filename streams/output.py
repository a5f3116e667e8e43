"""How a command prints its result: a table for people, one JSON object per line for programs.

    rows ──► table   on a terminal, or with --output table
         └─► jsonl   in a pipe, or with --output jsonl          STREAMWARD_OUTPUT=table: in a pipe, too

A row is a mapping or an event; jsonl prints all of it, the table only its columns. The log may hold anything, so
control characters are escaped: a task's text must not control a terminal. NO_COLOR is respected.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

from schemas import json_text
from streams.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

Output = Literal["table", "jsonl"]
ENV_OUTPUT = "STREAMWARD_OUTPUT"
"""How commands print if --output does not say: table, json or jsonl."""
Row = Mapping[str, Any]
WIDE = 100_000
"""Width of a table that is not on a terminal, in cells: nothing is cut."""
SENTENCE_CELLS = 32
"""Least width for a column of sentences; below it they would wrap at nearly every word."""
LONGEST_CELL = 300
"""Characters of a cell in a table with a header, but for the last column: longer than any id that is accepted, so it is
of a record that no program of ours wrote. All rows would be as wide."""
LONGEST_SENTENCE = 2000
"""Characters of a cell in the last column, as of an error in a dead letter."""

STATE_STYLES = {
    "ok": "green", "primary": "green", "created": "green",
    "warning": "yellow", "skipped": "yellow", "canary": "yellow",
    "failed": "red", "missing": "red", "rejected": "red", "rolled_back": "red",
}  # fmt: skip
"""Colours of words for a state."""


class Column(NamedTuple):
    """One column of a table."""

    title: str
    value: str | Callable[[Any], Any]
    """A key of the row, or a function of it."""
    width: int = 0
    """Cells, for lines that are printed one by one; 0: the rest of the line."""
    right: bool = False
    optional: bool = False
    """The last column of a table may be left out of a narrow terminal; jsonl has it."""

    def of(self, row: Any) -> str:
        """Return the cell as text."""
        return cell(row[self.value] if isinstance(self.value, str) else self.value(row))


def columns(names: str) -> list[Column]:
    """Return columns for the keys of rows, comma separated: `key`, `title=key`, and `>` before one of numbers.

    >>> [(column.title, column.value, column.right) for column in columns("run=answer_id, >mean_reward")]
    [('run', 'answer_id', False), ('mean reward', 'mean_reward', True)]
    """
    parts = [(name.startswith(">"), *name.removeprefix(">").rpartition("=")) for name in names.split(", ")]
    return [Column(title or key.replace("_", " "), key, right=right) for right, title, _, key in parts]


def output_or_default(output: str | None, *, machine: str = "jsonl", to_terminal: bool = True) -> str:
    """Return the output that was asked for by option, else by the environment.

    Else it is a table on a terminal, and `machine` in a pipe or where the result does not go to stdout. Raises
    SettingsError for a STREAMWARD_OUTPUT that is none.
    """
    if output is not None:
        return output
    preferred = os.environ.get(ENV_OUTPUT, "")
    if preferred not in ("", "table", "json", "jsonl"):
        raise SettingsError(f"{ENV_OUTPUT}={preferred}: expected table, json or jsonl")
    if preferred == "":
        return "table" if to_terminal and sys.stdout.isatty() else machine
    return "table" if preferred == "table" and to_terminal else machine


def check_reader() -> None:
    """Raise BrokenPipeError if stdout is a pipe that nobody reads any more.

    A command that waits for records has nothing to write, so it would not notice that `| grep -m 1` has left.
    """
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)
    except (OSError, ValueError):  # not a file of the system
        return
    if any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0)):
        raise BrokenPipeError


def rows(data: Iterable[Any], columns: Sequence[Column], output: Output) -> None:
    """Print rows to stdout."""
    if output == "jsonl":
        for row in data:
            print(json_line(row), flush=True)
        return
    from rich.table import Table

    cells = [[_cut(column, columns, row) for column in columns] for row in data]
    if columns[-1].optional and _room(columns, cells) < SENTENCE_CELLS:
        columns = columns[:-1]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        last = number == len(columns) - 1
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold", no_wrap=not last)
    for texts in cells:
        table.add_row(*(_text(text, STATE_STYLES.get(text, "")) for text in texts[: len(columns)]))
    _print(table)


def _cut(column: Column, columns: Sequence[Column], row: Any) -> str:
    """Return a cell, cut where it is too long for a table."""
    text, longest = column.of(row), LONGEST_SENTENCE if column is columns[-1] else LONGEST_CELL
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _room(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> int:
    """Return how many cells of the terminal remain for the last column."""
    from rich.cells import cell_len

    if not sys.stdout.isatty():
        return WIDE
    texts = zip([column.title for column in columns], *cells, strict=True)
    widths = [max(map(cell_len, column)) + 2 for column in texts]
    return console().width - sum(widths[:-1])


def record(data: Row, output: Output) -> None:
    """Print one mapping: one line per key, or one JSON object."""
    if output == "jsonl":
        print(json_line(data), flush=True)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in data.items():
        table.add_row(name, _text(cell(value)))
    _print(table)


class Lines:
    """A table printed line by line: fixed widths, one header, lines cut at the terminal's edge."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        terminal = console()
        self._width = terminal.width if terminal.is_terminal else WIDE
        self._coloured = terminal.is_terminal and not terminal.no_color
        self._begun = False

    def add(self, row: Any, *, instead: str | None = None, after: int = 0) -> None:
        """Print one line; `instead` replaces the columns after the first `after`."""
        if not self._begun:
            self._write([column.title for column in self._columns], "1")
            self._begun = True
        if instead is None:
            self._write([column.of(row) for column in self._columns])
        else:
            self._write([*(column.of(row) for column in self._columns[:after]), printable(instead)], "31")

    def _write(self, cells: Sequence[str], style: str = "") -> None:
        from rich.cells import cell_len, set_cell_size

        parts = []
        for number, (column, text) in enumerate(zip(self._columns, cells, strict=False)):
            last = number == len(cells) - 1
            if column.width and column.right and not (last and len(cells) < len(self._columns)):
                text = " " * max(column.width - cell_len(text), 0) + text
            parts.append(text if last or not column.width else set_cell_size(text, column.width))
        line = "  ".join(parts).rstrip()
        if cell_len(line) > self._width:
            line = set_cell_size(line, self._width)
        print(f"\x1b[{style}m{line}\x1b[0m" if style and self._coloured else line, flush=True)


def console(file: TextIO | None = None, *, width: int | None = None) -> Console:
    """Return a console of rich, to print to `file`, or stdout. All consoles are made here: none reads text as markup.

    Answers and errors in the log may contain `[/b]`, `[red]` or `:boom:`.
    """
    from rich.console import Console

    return Console(file=file or sys.stdout, width=width, markup=False, emoji=False, highlight=False)


# --- text -------------------------------------------------------------------------------------------------------------


def json_line(row: Any) -> str:
    """Return `row` as one line of JSON. Dataclasses become objects; NaN and infinities, which JSON lacks, strings."""
    try:
        return json_text.one_line(row, allow_nan=False, default=_plain)
    except ValueError:
        return json_text.one_line(_finite(row), allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, bytes) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str | int | float) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    plain = _plain(value)
    return {key: _finite(item) for key, item in plain.items()} if isinstance(plain, dict) else plain


def with_interval(row: Row, key: str) -> str:
    """Return a figure and, if they are known, the bounds of its interval, `KEY_low` and `KEY_high`."""
    if row.get(key) is None:
        return ""
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    return f"{row[key]:.3g}" + ("" if low is None or high is None else f" ({low:.3g} to {high:.3g})")


def cell(value: Any, *, as_sql: bool = False) -> str:
    """Return `value` as the text of a table cell; nothing in it moves the cursor.

    `as_sql`: as DuckDB's users expect it, with true and false, six digits, and JSON for what is nested.
    """
    match value:
        case None:
            return ""
        case bool() if as_sql:
            return "true" if value else "false"
        case bool():
            return "yes" if value else "no"
        case float() if as_sql:
            return f"{value:.1f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"
        case float():
            return f"{value:.4g}"
        case Mapping() | list() if as_sql:
            return printable(json.dumps(value, ensure_ascii=False, default=str))
        case Mapping():
            return ", ".join(f"{key} {cell(item)}" for key, item in value.items())
        case Sequence() if not isinstance(value, str | bytes):
            return ", ".join(cell(item) for item in value)
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """Return `text` on one line, with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(timestamp_ms: int) -> str:
    """Return a timestamp of the log as ISO 8601 in UTC, as `--from` takes it."""
    try:
        at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size(count: float) -> str:
    """Return bytes in the largest fitting unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def _text(text: str, style: str = "") -> Any:
    from rich.text import Text

    return Text(text, style)  # never read as markup


def _print(table: Any) -> None:
    plain = console(width=None if sys.stdout.isatty() else WIDE)
    with plain.capture() as capture:
        plain.print(table)
    for line in _lines(capture.get()):
        print(line)


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield line.rstrip()
