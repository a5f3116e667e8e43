"""What the options of `streamward query` mean for a statement, and which of them it cannot take.

    SQL or TOPIC, options ──► Asked: one statement, its scope, where the rows go ──► Session

Everything is decided before anything is opened, so that a usage error costs no look at the log.

Not covered: the statement's own names. DuckDB knows those, when it runs.
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import duckdb

from streams.errors import NotFoundError, SettingsError
from streams.kafka.times import parse_time
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.query import show, statement as query_statement
from streams.tools.query.session import Session
from streams.tools.query.source import Scope, Source
from streams.tools.query.statement import Statement
from streams.tools.query.views import SqlView, name_of, quoted, views

_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of the command."""

    statement: Statement | None
    """None for the shell."""
    scope: Scope
    source: Source
    output: str
    out: Path | None
    limit: int | None
    follow: bool
    skip_bad: bool
    allow_files: bool

    def open(self, settings: Settings) -> Session:
        """Return a session for it. Raises LogError if the log cannot be read."""
        return Session(settings, source=self.source, scope=self.scope, allow_files=self.allow_files)


def asked(settings: Settings, given: Mapping[str, Any], stdin: Callable[[], str]) -> Asked:
    """Return what was asked for.

    Raises SettingsError for options that do not fit the statement or each other, NotFoundError for a topic there is
    not, RefusedError for a statement that does not only read.
    """
    known = views(settings)
    text = stdin() if given["sql"] == "-" else given["sql"]
    statement = None if text is None else _statement(settings, known, text, given["where"])
    scope = Scope(
        None if given["since"] is None else parse_time(given["since"], "--since"),
        None if given["until"] is None else parse_time(given["until"], "--until"),
        given["first"], given["end"], given["partition"], given["key"],
    )  # fmt: skip
    output = given["output"] or ("table" if given["out"] is None and sys.stdout.isatty() else "jsonl")
    show.check(output, given["out"], follow=given["follow"])
    if statement is None:
        _check_shell(given, output)
    else:
        _check_scope(settings, known, statement, given)
        _check_rows(known, statement, given)
    return Asked(
        statement, scope, given["source"], output, given["out"], given["limit"], given["follow"], given["skip_bad"],
        given["allow_files"],
    )  # fmt: skip


def _statement(settings: Settings, known: Mapping[str, SqlView], text: str, where: str | None) -> Statement:
    """Return the statement that a text is, or stands for."""
    text = text.strip()
    name = _view_of(settings, known, text) if _NAME.fullmatch(text) else None
    if name is None:
        if where is not None:
            raise SettingsError("--where goes with a TOPIC; SQL has its own WHERE")
        sql = text
    else:
        sql = f"FROM {quoted(name)}" + (
            f" WHERE ({where}\n)" if where is not None else ""
        )  # a comment ends with its line
    con = duckdb.connect()
    try:
        return query_statement.parse(con, sql)
    finally:
        con.close()


def _view_of(settings: Settings, known: Mapping[str, SqlView], text: str) -> str:
    """Return the view that a word names: a view, a topic, or a topic by its full name."""
    full = {topic.name: name_of(label) for label, topic in topics(settings.topics).items()}
    name = full.get(text) or text.lower().replace("-", "_")
    if name in known:
        return name
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    raise NotFoundError(f"no topic or view is called {text!r}; {hint} (or give a whole SQL statement)")


def _check_shell(given: Mapping[str, Any], output: str) -> None:
    for option in ("where", "limit", "follow", "first", "end", "partition", "key", "out"):
        if given[option]:
            name = {"first": "from", "end": "to"}.get(option, option)
            raise SettingsError(f"--{name} needs a TOPIC or SQL; without either, `streamward query` is a shell")
    if output == "parquet":
        raise SettingsError("--output parquet needs SQL and --out FILE; the shell prints")


def _check_scope(
    settings: Settings, known: Mapping[str, SqlView], statement: Statement, given: Mapping[str, Any]
) -> None:
    """Raise SettingsError if the statement does not read one topic whose offsets, partitions or keys are meant."""
    read = [known[name] for name in sorted(statement.tables) if name in known]
    names = ", ".join(view.name for view in read) or "no view by name"
    for option, name in (("first", "from"), ("end", "to"), ("partition", "partition")):
        if given[option] is not None and len(read) != 1:
            raise SettingsError(
                f"--{name} is about one topic, and the statement reads {names}. Put a condition on _offset or "
                "_partition into the SQL"
            )
    keys = {topics(settings.topics)[view.label].key for view in read}
    if given["key"] is not None and len(keys) != 1:
        raise SettingsError(
            f"--key is about topics with the same key, and the statement reads {names}. Put a condition on _key into "
            "the SQL"
        )
    if given["first"] is not None and given["end"] is not None and given["end"] < given["first"]:
        raise SettingsError(f"--to {given['end']} lies before --from {given['first']}")
    if (given["since"] is not None or given["until"] is not None) and not read:
        raise SettingsError(f"--since and --until are about records, and the statement reads {names}")


def _check_rows(known: Mapping[str, SqlView], statement: Statement, given: Mapping[str, Any]) -> None:
    """Raise SettingsError if the statement gives no rows that can be counted or followed."""
    if given["limit"] is not None and not statement.rows:
        raise SettingsError("--limit is for rows of data; this statement describes or explains")
    if not given["follow"]:
        return
    for option, name in (("until", "until"), ("end", "to")):
        if given[option] is not None:
            raise SettingsError(f"--follow has no end; leave --{name} out, or --follow")
    if given["source"] == "archive":
        raise SettingsError("--follow reads the log, and --source archive never does; leave one of them out")
    topic = len(statement.tables) == 1 and not known.get(next(iter(statement.tables)), SqlView("", "", "", "-")).sql
    if not (statement.plain and topic):
        raise SettingsError(
            "--follow prints rows as records come: it takes a TOPIC, or SELECT ... FROM one topic [WHERE ...] without "
            "joins, aggregates, ORDER BY and the like. Ask again from time to time instead"
        )


@contextmanager
def half(path: Path) -> Iterator[Path]:
    """Yield a new file's path beside `path`, and rename it to that when all is written.

    Raises SettingsError if it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.half")
    try:
        beside.touch()
    except OSError as exc:
        raise SettingsError(f"--out {path}: {exc}. Name a file in a folder that can be written") from exc
    try:
        yield beside
        beside.rename(path)
    finally:
        with suppress(OSError):
            beside.unlink()
