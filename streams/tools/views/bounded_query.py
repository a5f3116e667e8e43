"""A statement of the reader's own, run as `streamward query` runs it: it only reads, and opens no file.

SQL ──► checked ──► a session of its own, LONGEST_S at most ──► rows, `most` at most
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streams.errors import RefusedError
from streams.tools.query import formats
from streams.tools.query.prompt import left_out
from streams.tools.query.pull import AGAIN_S
from streams.tools.query.session import Session
from streams.tools.query.views import SqlView
from streams.tools.views.log_view import LogReader

LONGEST_S = 20.0
"""How long a statement may run."""
AT_ONCE = threading.BoundedSemaphore(2)


def data(log: LogReader, sql: str, *, most: int, longest_s: float = LONGEST_S) -> dict[str, Any]:
    """Return the answer to a statement, or the views that there are.

    Raises SettingsError for an error in the statement, RefusedError for what may not be run or runs for too long, and
    for who is of a tenant, LogError if the log cannot be read.
    """
    if not AT_ONCE.acquire(blocking=False):
        raise RefusedError("two statements are running already; wait until one has ended")
    try:
        with log.session() as session:
            found: dict[str, Any] = {"sql": sql, "most": most, "views": _readable(session, log), "rows": None}
            if not sql.strip():
                return found
            with ended_after(session, longest_s):
                statement = session.parse(sql)
                session.check(session.labels(statement))
                result = session.run(statement.sql, limit=most + 1 if statement.rows else None)
                rows = list(formats.rows(result))
            said = left_out(session, session.labels(statement))
            return found | {"names": result.names, "rows": rows[:most], "more": len(rows) > most, "left_out": said}
    finally:
        AT_ONCE.release()


def _readable(session: Session, log: LogReader) -> list[SqlView]:
    """Return the views that may be read: without those that are made of a topic that is hidden."""
    return [view for view in session.views.values() if not {view.label, *view.also} & {*log.rights.hidden}]


@contextmanager
def ended_after(session: Session, seconds: float) -> Iterator[None]:
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
