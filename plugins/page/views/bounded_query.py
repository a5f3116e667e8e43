"""The statement that a visitor of the page typed, its rows or error, and the available views.

SQL ──► statement_process.py, which bounds it ──► SqlAnswer
"""

from __future__ import annotations

from dataclasses import dataclass

from streams.errors import CallError, LogError, NotFoundError, StreamwardError
from streams.tools.query.sql_view import SqlView
from streams.tools.query.views import views
from streams.tools.views.log_view import LogReader
from streams.tools.views.statement_process import LONGEST_S, QueryRows, StatementOrder


@dataclass(frozen=True)
class SqlAnswer:
    """A statement, its rows or error, and the available views."""

    sql: str
    views: list[SqlView]
    result: QueryRows | None = None
    failed: str | None = None


def answer_statement(log: LogReader, sql: str, *, limit: int, longest_s: float = LONGEST_S) -> SqlAnswer:
    """Return the answer to a statement; without one, the views alone.

    Raises RefusedError for a tenant's principal, LogError if the log cannot be read, CallError if it is busy.
    """
    log.rights.check_whole("SQL reads")
    hidden = {*log.rights.hidden}
    readable = [view for view in views(log.view.settings).values() if not {view.label, *view.also} & hidden]
    if not sql.strip():
        return SqlAnswer(sql, readable)
    try:
        order = StatementOrder(sql=sql, limit=limit, longest_s=longest_s, hidden=log.rights.hidden)
        return SqlAnswer(sql, readable, log.view.statements.run(order))
    except (LogError, NotFoundError):
        raise
    except CallError as exc:
        if exc.kind == "busy":
            raise
        return SqlAnswer(sql, readable, failed=str(exc))
    except StreamwardError as exc:
        return SqlAnswer(sql, readable, failed=str(exc))
