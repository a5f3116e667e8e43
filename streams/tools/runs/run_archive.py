"""Rows of runs in a file: JSON lines that snapshots are appended to, or a SQLite database.

    view runs ──► runs that have ended ──► those that are new, or not as they were ──► the end of runs.jsonl
                                                                                   └─► table runs of runs.db

A row changes with new feedback, scores or verdicts: then runs.jsonl gets another line about the run, and the last one
counts; in runs.db the row is replaced. The file holds all state, so an export that was killed can be repeated without
duplicates or losses. A run that the log no longer has stays in the file.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from schemas import json_text
from streams.errors import RefusedError
from streams.settings.load import load
from streams.settings.model import Settings
from streams.tools.archive.history import Source
from streams.tools.query import formats
from streams.tools.query.line_file import LineFile
from streams.tools.query.session import Session
from streams.tools.runs.run_row import FinishedRun

COLUMNS = tuple(field.name for field in fields(FinishedRun))
DATABASES = (".db", ".sqlite", ".sqlite3")
"""Endings of the names of files that are SQLite databases."""
LISTS = ("run_ids", "versions", "scores")
"""Columns that are JSON text in a database."""
TYPES = {
    **dict.fromkeys(("began_ms", "ended_ms", "turns", "failed_turns", "malformed", "tool_calls"), "INTEGER"),
    **dict.fromkeys(("failed_tools", "retries", "rewrites", "recoveries", "escalations", "success"), "INTEGER"),
    **dict.fromkeys(("prompt_tokens", "sampled_tokens"), "INTEGER"),
    **dict.fromkeys(("latency_ms", "cost_usd", "reward", "feedback"), "REAL"),
}
"""Of the columns of a database; of all others TEXT."""

Row = Mapping[str, Any]


class ArchivedRuns(NamedTuple):
    """The counts of an export."""

    file: str
    runs: int
    """That have ended."""
    written: int
    """Rows that are new, or differ from those that the file had."""
    left_out: list[str]
    """A sentence for each kind of record that could not be read."""


class RunArchiveService:
    """Writes the rows of runs to files, as `streamward runs export` does."""

    def __init__(self, settings: Settings | None = None, *, source: Source = "auto") -> None:
        self._settings = settings or load()
        self._source = source

    def archive(self, path: Path | str, condition: str = "true") -> ArchivedRuns:
        """Update a file: a database if its name ends with .db or .sqlite, otherwise JSON lines.

        `condition`: SQL over the columns of view `runs`. Raises RefusedError if the file is not such an archive or
        another process writes it, LogError if the log cannot be read.
        """
        path = Path(path)
        with Session(self._settings, source=self._source) as session:
            listed = ", ".join(COLUMNS)
            sql = f"SELECT {listed} FROM runs WHERE ended_ms IS NOT NULL AND ({condition}) ORDER BY ended_ms, answer_id"  # noqa: S608
            result = session.run(sql)
            rows = (dict(zip(result.names, row, strict=True)) for row in formats.rows(result))
            write = write_database if path.suffix.lower() in DATABASES else append_lines
            runs, written = write(path, rows)
            view = session.views["runs"]
            return ArchivedRuns(str(path), runs, written, session.omissions({view.label, *view.also}))


def append_lines(path: Path, rows: Iterable[Row]) -> tuple[int, int]:
    """Append the rows that are not the last ones about their runs; return how many there are, and were appended."""
    digests: dict[str, bytes] = {}
    runs = written = 0

    def remember(line: Any) -> None:
        digests[str(line["answer_id"])] = _digest(line)

    with LineFile(path, remember, "`runs export`, which has an answer_id") as file:
        for row in rows:
            runs += 1
            digest = _digest(row)
            if digests.get(row["answer_id"]) != digest:
                digests[row["answer_id"]] = digest
                file.append(row)
                written += 1
        file.flush()
    return runs, written


def _digest(row: Row) -> bytes:
    return hashlib.sha256(json_text.one_line({name: row[name] for name in sorted(row)}).encode()).digest()


def write_database(path: Path, rows: Iterable[Row]) -> tuple[int, int]:
    """Insert the rows or replace those that differ, all at once; return how many there are, and were written.

    Raises RefusedError if the file is no such database, or locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ", ".join(COLUMNS)
    values = ", ".join("?" * len(COLUMNS))
    others = ", ".join(f"excluded.{name}" for name in COLUMNS)
    columns = ", ".join(f"runs.{name}" for name in COLUMNS)
    sql = (
        f"INSERT INTO runs ({names}) VALUES ({values}) ON CONFLICT (answer_id) DO UPDATE SET ({names}) = ({others}) "  # noqa: S608
        f"WHERE ({columns}) IS NOT ({others})"
    )
    runs = 0
    connection = sqlite3.connect(path)
    try:
        _create_table(connection, path)
        before = connection.total_changes
        for row in rows:
            connection.execute(sql, [_value(name, row[name]) for name in COLUMNS])
            runs += 1
        connection.commit()
        return runs, connection.total_changes - before
    except sqlite3.Error as exc:
        raise RefusedError(f"{path}: {exc}; name another file, or wait until no other process writes this one") from exc
    finally:
        connection.close()


def _create_table(connection: sqlite3.Connection, path: Path) -> None:
    keys = {"answer_id": " PRIMARY KEY"}
    columns = ", ".join(f"{name} {TYPES.get(name, 'TEXT')}{keys.get(name, '')}" for name in COLUMNS)
    connection.execute(f"CREATE TABLE IF NOT EXISTS runs ({columns})")
    present = tuple(row[1] for row in connection.execute("PRAGMA table_info(runs)"))
    if present != COLUMNS:
        differing = sorted({*present} ^ {*COLUMNS}) or ["their order"]
        raise RefusedError(
            f"{path}: its table runs has other columns than those of `runs export` ({', '.join(differing)}); name "
            "another file"
        )


def _value(name: str, value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, sort_keys=True) if name in LISTS else value
