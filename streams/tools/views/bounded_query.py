"""A statement of a reader's own, as `streamward query` runs it: it only reads, opens no file, and has limits.

SQL ──► two at once at most ──► a session of its own ──► LONGEST_S, a number of rows, a size ──► QueryRows
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from streams.errors import CallError, RefusedError, SettingsError
from streams.tools.query import formats
from streams.tools.query.pull import AGAIN_S
from streams.tools.query.session import Session
from streams.tools.query.views import SqlView
from streams.tools.views.log_view import LogReader

LONGEST_S = 20.0
"""How long a statement may run."""
_SLOTS = threading.BoundedSemaphore(2)


@dataclass(frozen=True)
class QueryRows:
    """The rows of a statement."""

    names: tuple[str, ...]
    rows: list[list[Any]]
    more: bool
    """Whether there are rows beyond the limit."""
    left_out: list[str]
    """A sentence for each kind of record that could not be read."""


@dataclass(frozen=True)
class SqlAnswer:
    """A statement, its rows or why there are none, and the views that can be read."""

    sql: str
    views: list[SqlView]
    result: QueryRows | None = None
    failed: str | None = None


def answer_statement(log: LogReader, sql: str, *, limit: int, longest_s: float = LONGEST_S) -> SqlAnswer:
    """Return the answer to a statement; without one, the views alone.

    Raises RefusedError for a tenant's principal, LogError if the log cannot be read, CallError if it is busy.
    """
    with statement_slot(), log.session() as session:
        hidden = {*log.rights.hidden}
        views = [view for view in session.views.values() if not {view.label, *view.also} & hidden]
        if not sql.strip():
            return SqlAnswer(sql, views)
        try:
            return SqlAnswer(sql, views, run_statement(session, sql, limit=limit, longest_s=longest_s))
        except (SettingsError, RefusedError) as exc:
            return SqlAnswer(sql, views, failed=str(exc))


@contextmanager
def statement_slot() -> Iterator[None]:
    """Hold one of the places for statements that run. Raises CallError if there is none."""
    if not _SLOTS.acquire(blocking=False):
        raise CallError("busy", "two statements are running already; try again when one has ended")
    try:
        yield
    finally:
        _SLOTS.release()


def run_statement(
    session: Session, sql: str, *, limit: int, max_bytes: int | None = None, longest_s: float = LONGEST_S
) -> QueryRows:
    """Return the rows of a statement, at most `limit`.

    Raises SettingsError for an error in it, RefusedError for what may not be run or runs for too long, CallError if the
    rows are larger than `max_bytes` in Arrow's format, LogError if the log cannot be read.
    """
    with time_limit(session, longest_s):
        statement = session.parse(sql)
        labels = session.labels(statement)
        session.check(labels)
        result = session.run(statement.sql, limit=limit + 1 if statement.rows else None)
        if max_bytes is not None:
            result = replace(result, batches=_limit_bytes(result.batches, max_bytes))
        rows = list(formats.rows(result))
    return QueryRows(result.names, rows[:limit], len(rows) > limit, session.omissions(labels))


def _limit_bytes(batches: Iterator[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > max_bytes:
            raise CallError(
                "too_large", f"the answer is larger than {max_bytes} bytes; select fewer columns or rows", "sql"
            )
        yield batch


@contextmanager
def time_limit(session: Session, seconds: float) -> Iterator[None]:
    """End what runs in a session after so long. Raises RefusedError then."""
    done = threading.Event()

    def end() -> None:
        if not done.wait(seconds):
            while not done.wait(AGAIN_S):  # an interrupt between two steps of a statement is lost
                session.con.interrupt()

    thread = threading.Thread(target=end, name="statement limit", daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt as exc:
        raise RefusedError(
            f"the statement ran for {seconds:g} s and was ended; let it read less, or use `streamward query`"
        ) from exc
    finally:
        done.set()
        thread.join()
