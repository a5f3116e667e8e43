"""Check the options of `streamward query` against the statement.

    SQL or TOPIC, options ──► QueryRequest: one statement, its scope, where the rows go ──► Session

Everything is checked before anything is opened, so that a usage error does not read the log. DuckDB reports unknown
names in the statement, when it runs.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import duckdb

from streams.errors import NotFoundError, SettingsError
from streams.kafka.times import parse_time
from streams.kafka.topics import topics
from streams.output import output_or_default
from streams.settings.model import Settings
from streams.tools.archive.history import Source
from streams.tools.query import formats, statement as query_statement
from streams.tools.query.session import Session, SessionLimits
from streams.tools.query.source import Scope
from streams.tools.query.sql_view import SqlView
from streams.tools.query.statement import Statement
from streams.tools.query.views import identifier, name_of, views

_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """The argument and the options of the command, as they were given; None: not given."""

    sql: str | None = None
    since: str | None = None
    until: str | None = None
    first: int | None = None
    end: int | None = None
    partition: int | None = None
    key: str | None = None
    where: str | None = None
    limit: int | None = None
    follow: bool = False
    output: str | None = None
    out: Path | None = None
    source: Source = "auto"
    skip_bad: bool = False
    allow_files: bool = False


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """One call of the command, checked."""

    statement: Statement | None
    """None for the shell."""
    scope: Scope
    output: str
    options: QueryOptions

    def open(self, settings: Settings) -> Session:
        """Return a session for it. Raises LogError if the log cannot be read."""
        options = self.options
        return Session(settings, source=options.source, scope=self.scope, limits=SessionLimits(options.allow_files))


def check_request(settings: Settings, options: QueryOptions, stdin: Callable[[], str]) -> QueryRequest:
    """Return what the options ask for.

    Raises SettingsError for options that do not fit the statement or each other, NotFoundError for an unknown topic,
    RefusedError for a statement that does more than read.
    """
    sql_views = views(settings)
    text = stdin() if options.sql == "-" else options.sql
    statement = None if text is None else _statement(settings, sql_views, text, options)
    scope = Scope(
        None if options.since is None else parse_time(options.since, "--since"),
        None if options.until is None else parse_time(options.until, "--until"),
        options.first, options.end, options.partition, options.key,
    )  # fmt: skip
    output = output_or_default(options.output, to_terminal=options.out is None)
    formats.check(output, options.out, follow=options.follow)
    if statement is None:
        _check_shell(options, output)
    else:
        _check_scope(settings, sql_views, statement, options)
        _check_rows(sql_views, statement, options)
    return QueryRequest(statement, scope, output, options)


def _statement(settings: Settings, sql_views: Mapping[str, SqlView], text: str, options: QueryOptions) -> Statement:
    """Return the statement in `text`; a topic or a view means all of its rows."""
    text, condition = text.strip(), options.where
    name = _view_of(settings, sql_views, text) if _NAME.fullmatch(text) else None
    if name is None:
        if condition is not None:
            raise SettingsError("--where goes with a TOPIC; SQL has its own WHERE")
        sql = text
    else:
        sql = f"FROM {identifier(name)}" + (
            f" WHERE ({condition}\n)" if condition is not None else ""
        )  # a comment ends with its line
    con = duckdb.connect()
    try:
        return query_statement.parse(con, sql, allow_files=options.allow_files)
    finally:
        con.close()


def _view_of(settings: Settings, sql_views: Mapping[str, SqlView], text: str) -> str:
    """Return the view called `text`: by its name, or by the label or full name of its topic."""
    views_by_topic = {topic.name: name_of(label) for label, topic in topics(settings.topics).items()}
    name = views_by_topic.get(text) or text.lower().replace("-", "_")
    if name in sql_views:
        return name
    close = get_close_matches(name, sql_views, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sql_views)}"
    raise NotFoundError(f"there is no topic or view {text!r}; {hint} (or give a whole SQL statement)")


def _check_shell(options: QueryOptions, output: str) -> None:
    values = {
        "where": options.where, "limit": options.limit, "follow": options.follow, "from": options.first,
        "to": options.end, "partition": options.partition, "key": options.key, "out": options.out,
    }  # fmt: skip
    for name, value in values.items():
        if value not in (None, False):
            raise SettingsError(f"--{name} needs a TOPIC or SQL; without either, `streamward query` is a shell")
    if output == "parquet":
        raise SettingsError("--output parquet needs SQL and --out FILE; the shell prints")


def _check_scope(
    settings: Settings, sql_views: Mapping[str, SqlView], statement: Statement, options: QueryOptions
) -> None:
    """Raise SettingsError if the statement does not read one topic that the options can be about."""
    read = [sql_views[name] for name in sorted(statement.tables) if name in sql_views]
    names = ", ".join(view.name for view in read) or "no view by name"
    for name, value in (("from", options.first), ("to", options.end), ("partition", options.partition)):
        if value is not None and len(read) != 1:
            raise SettingsError(
                f"--{name} needs a statement that reads one topic, and this one reads {names}. Put a condition on "
                "_offset or _partition into the SQL"
            )
    keys = {topics(settings.topics)[view.label].key for view in read}
    if options.key is not None and len(keys) != 1:
        raise SettingsError(
            f"--key needs topics with the same key, and the statement reads {names}. Put a condition on _key into "
            "the SQL"
        )
    if options.first is not None and options.end is not None and options.end < options.first:
        raise SettingsError(f"--to {options.end} is before --from {options.first}")
    if (options.since is not None or options.until is not None) and not read:
        raise SettingsError(f"--since and --until choose records, and the statement reads {names}")


def _check_rows(sql_views: Mapping[str, SqlView], statement: Statement, options: QueryOptions) -> None:
    """Raise SettingsError if the statement gives no rows that can be counted or followed."""
    if options.limit is not None and not statement.rows:
        raise SettingsError("--limit is for rows of data; this statement describes or explains")
    if not options.follow:
        return
    for name, value in (("until", options.until), ("to", options.end)):
        if value is not None:
            raise SettingsError(f"--follow has no end; leave out --{name} or --follow")
    if options.source == "archive":
        raise SettingsError("--follow reads the log, and --source archive never does; leave out one of them")
    topic = len(statement.tables) == 1 and not sql_views.get(next(iter(statement.tables)), SqlView("", "", "", "-")).sql
    if not (statement.plain and topic):
        raise SettingsError(
            "--follow prints rows as records come: it takes a TOPIC, or SELECT ... FROM one topic [WHERE ...] without "
            "joins, aggregates, ORDER BY and the like. Repeat the query from time to time instead"
        )


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield the path of a new file in the folder of `path`; rename it to `path` when all is written.

    Raises SettingsError if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.half")
    try:
        temporary.touch()
    except OSError as exc:
        raise SettingsError(f"--out {path}: {exc}. Name a file in a folder that can be written") from exc
    try:
        yield temporary
        temporary.rename(path)
    finally:
        with suppress(OSError):
            temporary.unlink()
