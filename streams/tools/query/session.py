"""Query the log with SQL: archived and live records, without moving them first.

    archive ──► segments ──► read_parquet ─┐
    log ──────► bounds now ─► Live ────────┴─► one view per topic, and joins ──► DuckDB ──► rows

`connect()` returns a DuckDB connection with the views, for a notebook or a program. A `Session` adds what a command
needs: statements are checked before they run, errors keep their type, and records that could not be read are counted.
A session sees the log as of its opening. Nothing is read, and no view created, until a statement needs it; then only
the topics and columns it names are read, and nothing is committed.

A session is locked unless files are allowed: DuckDB opens the archive's segments and no other file, loads nothing, and
takes no settings (enable_external_access and lock_configuration of DuckDB's "Securing DuckDB").

Not covered: the sha256 of the segments, which `streamward admin archive verify` checks; and times beyond the year
294246, which Avro has and DuckDB does not: a statement that reads one fails.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa

from schemas import key_source
from streams import output as show
from streams.arrow import bulk, decode
from streams.arrow.decode import Bad, DecodedRows
from streams.errors import LogError, NotFoundError, SettingsError, StreamwardError
from streams.files import Scratch
from streams.kafka.admin import topic_ids
from streams.kafka.history import LogHistory
from streams.kafka.subject_keys import use_keys
from streams.kafka.times import parse_time
from streams.settings.load import load
from streams.settings.model import Settings
from streams.tools.archive.history import Source
from streams.tools.archive.seams import check_seams
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.tables import Segment
from streams.tools.query import archived, statement as query_statement
from streams.tools.query.live import NOTHING, Chunks, DecodedTopic, Live, Troubles
from streams.tools.query.pull import Pull
from streams.tools.query.source import Parts, Scope, newest, seek, snapshot
from streams.tools.query.sql_view import WHOLE, SqlView
from streams.tools.query.statement import Statement
from streams.tools.query.views import archived_columns, columns, identifier, literal, views

BATCH_ROWS = 2048
"""Rows per batch of a result: DuckDB's own vector."""
LIVE = "live"
"""The schema of what is read from Python."""
NO_LIMITS = Scope()
_WORD = re.compile(r"\w+")

_log = logging.getLogger("streamward.query")


def connect(
    config: str | Path | None = None,
    *,
    settings: Settings | Mapping[str, object] | None = None,
    source: Source = "auto",
    since: str | None = None,
    until: str | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB connection with a view per topic, and the joins. It is an ordinary one: files may be read.

    Settings are found as the command line finds them: `config` is its `--config`, a mapping such as
    `{"topics.prefix": "lab."}` its `--set`. `source` is auto (archive, then log), log or archive; `since` and `until`
    are ISO 8601 times or ages (2h, 7d). The views end where the log ends now: connect again for later records. Records
    that cannot be decoded are left out, with a warning on the console.

    >>> con = connect()                                                        # doctest: +SKIP
    >>> con.sql("SELECT policy, count(*) FROM tasks GROUP BY policy").df()     # doctest: +SKIP

    Raises SettingsError for settings that cannot be used, LogError if the broker does not answer.
    """
    if isinstance(settings, Settings):
        if config is not None:
            raise SettingsError("connect: a file and whole settings were given; give one of them, or a mapping of keys")
    else:
        overrides = [
            f"{key}={json.dumps(value) if isinstance(value, Mapping) else value}"
            for key, value in (settings or {}).items()
        ]
        settings = load(file=None if config is None else Path(config), overrides=overrides)
    use_keys(settings)
    if settings.schemas.registry_url:
        from streams.kafka.registry import client as registry_client

        registry_client.use(settings)
    scope = Scope(
        None if since is None else parse_time(since, "since"),
        None if until is None else parse_time(until, "until"),
    )
    return Session(settings, source=source, scope=scope, limits=SessionLimits(allow_files=True), warn=True).con


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of a statement."""

    names: tuple[str, ...]
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    """Read once. Raises as `Session.run` does."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What the statements of a session may use."""

    allow_files: bool = False
    duckdb: Mapping[str, str] = field(default_factory=dict)
    """DuckDB's own settings, such as memory_limit."""
    empty_topics: Collection[str] = ()
    """Labels of topics with empty views."""


DEFAULT_LIMITS = SessionLimits()


class Session:
    """A connection to the log as it is now. Use as a context manager, or close it."""

    def __init__(
        self,
        settings: Settings,
        *,
        source: Source = "auto",
        scope: Scope = NO_LIMITS,
        limits: SessionLimits = DEFAULT_LIMITS,
        warn: bool = False,
        before: Session | None = None,
    ) -> None:
        """`before`: one like this, of which what is decoded is taken over."""
        self.views = views(settings)
        self._settings = settings
        self._source = source
        self.scope = scope
        self._limits = limits
        self._warn = warn
        self._troubles = Troubles()
        self._running: set[Pull] = set()
        self._chunks: dict[str, list[Chunks]] = {}
        self._archive = None if source == "log" else ArchiveReader(settings)
        self._looked_at: set[str] = set()
        self._wholes: dict[str, tuple[Parts, Chunks]] = {}
        self._parts = self._look(self._archive)
        self._topic_ids = topic_ids(settings, [part.topic.name for part in self._parts.values() if part.bounds])
        self._before = {} if before is None else before._tables(self._topic_ids)
        self._spill = Scratch("query")  # where rows go if memory runs out
        self.con = duckdb.connect(config={"temp_directory": str(self._spill.folder), **limits.duckdb})
        self.con.execute("SET TimeZone = 'UTC'")
        if self._archive is not None and self._archive.store.local is None:
            self.con.register_filesystem(self._archive.store.filesystem)
        self.con.execute(f"CREATE SCHEMA {WHOLE}; CREATE SCHEMA {LIVE}")
        self._unmade = dict(self.views)
        if limits.allow_files:
            self._make_views(self.views.keys())
        else:
            self._lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what runs, and release readers and memory. DuckDB refuses to close a connection that is in use."""
        for pull in [*self._running]:
            self._end(pull)
        for chunks in self._every_chunks():
            chunks.close()
        self.con.close()
        self._spill.close()

    def _look(self, archive: ArchiveReader | None) -> dict[str, Parts]:
        """Return where each topic is stored now."""
        parts = snapshot(self._settings, archive, log=self._source != "archive")
        return parts | {label: Parts(parts[label].topic) for label in self._limits.empty_topics}

    def is_current(self) -> bool:
        """Whether one that is opened now would see the same records."""
        archive = None if self._archive is None else ArchiveReader(self._settings)
        return _ranges(self._look(archive), self.scope) == self.ranges

    def renew(self) -> Session:
        """Return a session like this one that sees the log as it is now; this one is closed."""
        fresh = Session(
            self._settings,
            source=self._source,
            scope=self.scope,
            limits=self._limits,
            warn=self._warn,
            before=self,
        )
        self.close()
        return fresh

    def _tables(self, topic_ids: Mapping[str, str]) -> dict[str, DecodedTopic]:
        """Return what is decoded of topics that still have these ids, by label.

        Nothing where persons' words are sealed: each reading is recorded, and those of the erased are forgotten.
        """
        if not isinstance(key_source.current(), key_source.NoKeys):
            return {}
        read = {label: chunks.contents(parts.starts, parts.ends) for label, (parts, chunks) in self._wholes.items()}
        tables = self._before | {label: contents for label, contents in read.items() if contents is not None}
        names = {label: self._parts[label].topic.name for label in tables}
        same = {name for name, topic_id in topic_ids.items() if topic_id == self._topic_ids.get(name)}
        return {label: contents for label, contents in tables.items() if names[label] in same}

    def only_new(self, name: str) -> bool:
        """Restrict the view of a topic to records written since the last call; return whether it has any."""
        view = self.views[name]
        self._make_views({name})
        before = self._parts[view.label]
        now = newest(self._settings, before.topic)
        starts = {tp: before.ends.get(tp, now.starts[tp]) for tp in now.starts}
        new = Parts(now.topic, (), starts, now.ends)
        if not new.live:
            return False
        self._parts[view.label] = new
        for chunks in self._chunks.pop(view.label, []):
            chunks.close()
        self._make_view("main", view, new.within(self.scope), self.scope)
        return True

    # --- statements ---------------------------------------------------------------------------------------------------

    def parse(self, sql: str) -> Statement:
        """Return the statement in `sql`, checked. Raises as `query_statement.parse` does."""
        return query_statement.parse(self.con, sql, allow_files=self._limits.allow_files)

    def run(self, sql: str, *, limit: int | None = None) -> QueryResult:
        """Run one statement that only reads, and return its rows.

        Raises SettingsError for an error in the statement, RefusedError for what it may not do, LogError if the log or
        the archive cannot be read, KeyboardInterrupt if it was interrupted.
        """
        self._troubles.take()

        def open_reader() -> tuple[tuple[str, ...], pa.RecordBatchReader]:
            relation = self.con.sql(sql) if limit is None else self.con.sql(sql).limit(limit)
            return tuple(relation.columns), relation.to_arrow_reader(BATCH_ROWS)

        with self._translate_errors(sql):
            self._make_named(sql)
            try:
                pull = Pull(self.con, open_reader)
            except duckdb.CatalogException:
                if not self._unmade:
                    raise
                self._make_views(self.views.keys())  # the error names those that are near
                pull = Pull(self.con, open_reader)
        self._running.add(pull)
        return QueryResult(pull.names, pull.schema, self._batches(sql, pull))

    def columns(self, name: str) -> list[tuple[str, str]]:
        """Return (name, type) of each column of a view. Raises NotFoundError, with the nearest name."""
        if name not in self.views:
            raise NotFoundError(f"no view is called {name!r}; there are {', '.join(self.views)}")
        self._make_views({name})
        rows = self.con.execute(f"DESCRIBE main.{identifier(name)}").fetchall()
        return [(str(row[0]), str(row[1])) for row in rows]

    def labels(self, statement: Statement) -> set[str]:
        """Return the topics that a statement names."""
        named = [self.views[name] for name in statement.tables if name in self.views]
        return {label for view in named for label in (view.label, *view.also)}

    def check(self, labels: set[str]) -> None:
        """Return if the segments of these topics exist as they were written, and the log is the one that was archived.

        Checks once. Raises LogError.
        """
        if self._archive is None:
            return
        for label in labels - self._looked_at:
            parts = self._parts[label]
            for segment in parts.segments:
                self._archive.sound(segment)
            check_seams(self._archive, LogHistory(self._settings), parts.bounds)
            self._looked_at.add(label)

    # --- what could not be read ---------------------------------------------------------------------------------------

    def bad(self, labels: set[str]) -> list[Bad]:
        """Return the records of these topics that are not events, in the order of their coordinates.

        Of the log only those that were read: a statement may stop before its end.
        """
        by_position = {bad.at: bad for chunks in self._every_chunks() for bad in chunks.bad}
        for label in labels:
            parts = self._parts[label].within(self.scope)
            for bad in archived.bad(self.con, parts.topic, parts.segments, self.scope):
                by_position.setdefault(bad.at, bad)
        return sorted(by_position.values())

    def omissions(self, labels: set[str]) -> list[str]:
        """Return a sentence for each kind of record that is missing from the answer; none if it is complete."""
        sentences = []
        bad = self.bad(labels)
        if bad:
            count = f"{len(bad)} record{'' if len(bad) == 1 else 's'}"
            first = f"{bad[0].at}: {bad[0].reason}: {show.printable(bad[0].error)}"
            sentences.append(f"{count} could not be read and left out, first {first}")
        gaps = [gap for label in sorted(labels) for gap in self._parts[label].gaps]
        return sentences + [f"{gap.start}: {gap.reason}" for gap in gaps]

    @property
    def ranges(self) -> list[dict[str, Any]]:
        """The range of each non-empty partition in the views: topic, partition, first and next offset."""
        return _ranges(self._parts, self.scope)

    # --- views --------------------------------------------------------------------------------------------------------

    def _make_named(self, sql: str) -> None:
        """Make the views that a statement may name: to make all of them takes longer than to read most of a page."""
        words = set(_WORD.findall(sql.lower()))
        self._make_views(self.views.keys() if "show" in words else words)

    def _make_views(self, names: Collection[str]) -> None:
        """Make those of these views that are not made, and first the ones they are made of."""
        for name in [name for name in self._unmade if name in names]:
            view = self._unmade.pop(name, None)
            if view is None:
                continue
            try:
                self._make(view)
            except BaseException:  # Ctrl-C: the next statement makes it
                self._unmade[name] = view
                raise

    def _make(self, view: SqlView) -> None:
        main = f"CREATE OR REPLACE VIEW main.{identifier(view.name)} AS "
        if view.sql:
            sql = view.statement(self._settings)
            self._make_named(sql)
            self.con.execute(main + sql)
            return
        parts = self._parts[view.label]
        self._make_view(WHOLE, view, parts, NO_LIMITS)
        if self.scope.whole:
            self.con.execute(f"{main}FROM {WHOLE}.{identifier(view.name)}")
        else:
            self._make_view("main", view, parts.within(self.scope), self.scope)

    def _make_view(self, schema: str, view: SqlView, parts: Parts, scope: Scope) -> None:
        """Create or replace the view of a topic."""
        event = parts.topic.event
        listed = archived_columns(view.label, decode.arrow_schema(event).names)
        selects, older = [], []
        if self._archive is not None and parts.segments:
            by_kind = archived.sort(self._archive, event, parts.segments)
            selects, older = archived.selects(by_kind, listed, scope), by_kind.older
        if parts.live or older or not selects:
            if scope.since_ms is not None:
                parts = seek(self._settings, parts, scope.since_ms)
            selects.append(self._live_rows(schema, view, parts, older, scope))
        create = f"CREATE OR REPLACE VIEW {schema}.{identifier(view.name)} AS "
        try:
            self.con.execute(create + " UNION ALL ".join(selects))
        except (duckdb.IOException, duckdb.InvalidInputException) as exc:  # the first segment is opened for its columns
            broken = partial(_cannot_read, self._archive, parts, str(exc))
            self.con.execute(create + self._live(schema, view, parts, broken))

    def _live_rows(self, schema: str, view: SqlView, parts: Parts, older: list[Segment], scope: Scope) -> str:
        """Return a SELECT of the records in the log; of a whole topic only those are read that came since `before`."""
        before, rest = NOTHING, parts
        if is_whole := scope.whole and not older:
            before = self._before.get(view.label, NOTHING)
            before = before if before.starts == parts.starts else NOTHING
            rest = replace(parts, starts=dict(before.ends or parts.starts))
        read = partial(_read, self._settings, self._archive, rest, older, scope)
        select = self._live(schema, view, parts, read, before)
        if is_whole:
            self._wholes[view.label] = parts, self._chunks[view.label][-1]
        return select

    def _live(
        self,
        schema: str,
        view: SqlView,
        parts: Parts,
        read: Callable[[], Iterator[DecodedRows]],
        before: DecodedTopic = NOTHING,
    ) -> str:
        """Return a SELECT of what is read when a statement asks for it."""
        event, name = parts.topic.event, f"{schema}_{view.name}"
        chunks = Chunks(event, read, self._warn_of if self._warn else None, before)
        self._chunks.setdefault(view.label, []).append(chunks)
        self.con.execute(f"USE {LIVE}")  # in a schema of their own SHOW TABLES omits them, unlike with `register`
        self.con.from_arrow(Live(event, chunks, self._troubles)).create_view(name)
        self.con.execute("USE main")
        listed = columns(view.label, decode.arrow_schema(event).names)
        return f"SELECT {listed} FROM {LIVE}.{identifier(name)}"  # noqa: S608 - names, quoted

    def _lock(self) -> None:
        files = [literal(segment.path) for parts in self._parts.values() for segment in parts.segments]
        self.con.execute(f"SET allowed_paths = [{', '.join(files)}]")
        self.con.execute("SET python_enable_replacements = false")  # a Python variable's name is no table
        self.con.execute("SET enable_progress_bar = false")  # DuckDB takes a child process for a notebook
        self.con.execute("SET enable_external_access = false")
        self.con.execute("SET lock_configuration = true")

    def _every_chunks(self) -> Iterator[Chunks]:
        for chunks in self._chunks.values():
            yield from chunks

    @staticmethod
    def _warn_of(bad: tuple[Bad, ...]) -> None:
        _log.warning("%d records are left out, first %s: %s: %s", len(bad), bad[0].at, bad[0].reason, bad[0].error)

    # --- errors -------------------------------------------------------------------------------------------------------

    def _batches(self, sql: str, pull: Pull) -> Iterator[pa.RecordBatch]:
        try:
            with self._translate_errors(sql):
                yield from pull
        finally:
            self._end(pull)  # a caller that leaves early does not wait for the rest

    def _end(self, pull: Pull) -> None:
        pull.end()
        self._running.discard(pull)

    @contextlib.contextmanager
    def _translate_errors(self, sql: str) -> Iterator[None]:
        """Raise our errors for DuckDB's; an error that was raised inside a view is raised unchanged."""
        try:
            yield
        except StreamwardError:
            raise
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as exc:
            trouble = self._troubles.take()
            if trouble is not None:
                raise trouble from None
            if isinstance(exc, duckdb.InterruptException) or "interrupted" in str(exc).lower():
                raise KeyboardInterrupt from None
            if isinstance(exc, duckdb.OutOfMemoryException) or "Out of Memory Error" in str(
                exc
            ):  # Arrow's is an OSError
                raise StreamwardError(f"{exc}\nAsk for less: fewer columns, a narrower --since, a --limit") from exc
            if isinstance(exc, duckdb.IOException | OSError):
                raise _unreadable(exc) from exc
            if not isinstance(exc, duckdb.Error):
                raise
            raise query_statement.sql_error(self._with_line(sql, exc)) from exc

    def _with_line(self, sql: str, exc: duckdb.Error) -> duckdb.Error:
        """Return the error with its line: a relation loses it, an EXPLAIN of the statement has it."""
        if "LINE " in str(exc):
            return exc
        try:
            self.con.execute(f"EXPLAIN\n{sql}").fetchall()
        except duckdb.Error as again:
            if type(again) is type(exc):
                return type(exc)(re.sub(r"\bLINE (\d+):", lambda match: f"LINE {int(match[1]) - 1}:", str(again)))
        return exc


def _ranges(parts_by_label: Mapping[str, Parts], scope: Scope) -> list[dict[str, Any]]:
    offsets_by_partition: dict[tuple[str, int], list[int]] = {}
    for parts in parts_by_label.values():
        narrowed = parts.within(scope)
        pieces = [(segment.partition, segment.first, segment.next) for segment in narrowed.segments]
        pieces += [(tp[1], narrowed.starts[tp], end) for tp, end in narrowed.ends.items()]
        for partition, first, end in pieces:
            if first < end:
                offsets_by_partition.setdefault((parts.topic.name, partition), []).extend((first, end))
    return [
        {"topic": topic, "partition": partition, "first": min(offsets), "next": max(offsets)}
        for (topic, partition), offsets in sorted(offsets_by_partition.items())
    ]


# These are functions without a session: a connection that is referenced by something it holds is never freed.


def _read(
    settings: Settings, archive: ArchiveReader | None, parts: Parts, older: list[Segment], scope: Scope
) -> Iterator[DecodedRows]:
    """Yield what DuckDB cannot read by itself, within the scope."""
    if parts.missing and not parts.segments:
        raise NotFoundError(f"topic {parts.topic.name} does not exist; create it with `streamward admin topics apply`")
    if archive is not None:
        for rows in archived.rows(archive, parts.topic, older):
            yield scope.choose(rows)
    if parts.live:
        for rows in bulk.read(settings, parts.starts, parts.ends):
            yield scope.choose(rows)


def _cannot_read(archive: ArchiveReader | None, parts: Parts, reason: str) -> Iterator[DecodedRows]:
    """Raise LogError, naming the segment, when a statement reads this topic."""
    if archive is not None:
        for segment in parts.segments:
            archive.sound(segment)
    raise _unreadable(reason)


def _unreadable(reason: object) -> LogError:
    hint = "`streamward admin archive verify` names what is missing or damaged"
    return LogError(f"the archive cannot be read: {reason}. {hint}")
