"""SQL over the log for programs, as `streamward query` runs it: it only reads, opens no file, and has its limits.

    SQL ──► a process without keys and requests (statement_process.py) ──► rows

Not covered: tenants. A statement sees the rows of all of them, so the door refuses a tenant's keys.
"""

from __future__ import annotations

from gateway.log.query_body import MOST, QueryAnswer, QueryBody
from streams.errors import CallError, LogError, NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.tools.views.log_view import LogView
from streams.tools.views.rights import ACCESS_TOPICS
from streams.tools.views.statement_process import LONGEST_S, StatementOrder


class LogOverHttp(LogView):
    """The log without ACCESS_TOPICS, which no statement of a program over HTTP reads."""

    empty_topics = ACCESS_TOPICS


def run_query(view: LogView, body: QueryBody, *, longest_s: float = LONGEST_S) -> QueryAnswer:
    """Return the rows of a statement. Raises CallError that says why there are none."""
    order = StatementOrder(sql=body.sql, limit=body.limit or MOST, longest_s=longest_s, hidden=ACCESS_TOPICS)
    try:
        result = view.statements.run(order)
    except SettingsError as exc:
        raise CallError("invalid", str(exc), "sql") from exc
    except RefusedError as exc:
        raise CallError("unsupported", str(exc), "sql") from exc
    except (LogError, NotFoundError, CallError):
        raise
    except StreamwardError as exc:  # it needs more memory than it may have
        raise CallError("too_large", str(exc), "sql") from exc
    return QueryAnswer(
        object="query",
        columns=list(result.names),
        rows=result.rows,
        more=result.more,
        left_out=result.left_out,
    )
