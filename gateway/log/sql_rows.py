"""SQL over the log for programs, as `streamward query` runs it: it only reads, opens no file, and has its limits.

    SQL ──► a session without keys and requests ──► limits of time, rows, bytes and memory ──► rows

Not covered: tenants. A statement sees the rows of all of them, so the door refuses a tenant's keys.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.log.query_body import MOST, QueryAnswer, QueryBody
from streams.errors import CallError, LogError, NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.tools.query.session import Session, SessionLimits
from streams.tools.views.bounded_query import LONGEST_S, QueryRows, run_statement, statement_slot
from streams.tools.views.log_view import LIMITS, LogView
from streams.tools.views.rights import ACCESS_TOPICS

MAX_BYTES = 16_000_000
"""Of an answer, in Arrow's format."""
SPILLED = "1GB"
"""What a statement may write to disk where memory is not enough."""


class LogOverHttp(LogView):
    """The log without ACCESS_TOPICS, which no statement over HTTP reads; an admin's does on the page."""

    def session(self, without: Collection[str] = ACCESS_TOPICS) -> Session:
        """Return a new session, which the caller closes. Raises LogError if the log cannot be read."""
        duckdb = LIMITS | {"max_temp_directory_size": SPILLED}
        return Session(self.settings, source=self.source, limits=SessionLimits(duckdb=duckdb, empty_topics=without))


def run_query(view: LogView, body: QueryBody, *, longest_s: float = LONGEST_S) -> QueryAnswer:
    """Return the rows of a statement. Raises CallError that says why there are none."""
    try:
        with statement_slot(), view.session() as session:
            result = _run(session, body, longest_s)
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


def _run(session: Session, body: QueryBody, longest_s: float) -> QueryRows:
    hidden = sorted({*session.labels(session.parse(body.sql))} & {*ACCESS_TOPICS})
    if hidden:
        raise CallError("invalid", f"no statement over HTTP reads {hidden[0]}", "sql")
    return run_statement(session, body.sql, limit=body.limit or MOST, max_bytes=MAX_BYTES, longest_s=longest_s)
