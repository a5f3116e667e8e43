"""SQL over the log for programs, as `streamward query` runs it: it only reads, opens no file, and has its limits.

    SQL ──► a session without `access` and `requests` ──► LONGEST_S, MOST, MOST_BYTES, the memory of log_view ──► rows

Not covered: tenants. A statement sees the rows of all of them, so the door keeps them out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from gateway.log.query_body import MOST, QueryBody
from streams.errors import CallError, LogError, NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.tools.query import formats
from streams.tools.query.prompt import left_out
from streams.tools.query.session import Session
from streams.tools.views.bounded_query import AT_ONCE, LONGEST_S, ended_after
from streams.tools.views.log_view import LIMITS, LogView
from streams.tools.views.rights import OF_ACCESS

HIDDEN = OF_ACCESS
"""Topics that no statement over HTTP reads; an admin's does on the page."""
MOST_BYTES = 16_000_000
"""Of an answer, as Arrow has it."""
SPILLED = "1GB"
"""What a statement may write to disk where memory is not enough."""


class LogOverHttp(LogView):
    """The log, without what no request may see."""

    def session(self, without: Collection[str] = HIDDEN) -> Session:
        """Return a session of one's own, which the caller closes. Raises LogError if the log cannot be read."""
        limits = LIMITS | {"max_temp_directory_size": SPILLED}
        return Session(self.settings, source=self.source, limits=limits, without=without)


def answer(view: LogView, body: QueryBody, *, longest_s: float = LONGEST_S) -> dict[str, Any]:
    """Return the rows of a statement. Raises CallError that says why there are none."""
    most = body.limit or MOST
    if not AT_ONCE.acquire(blocking=False):
        raise CallError("busy", "as many statements as may run at once are running; try again")
    try:
        with view.session() as session, ended_after(session, longest_s):
            statement = session.parse(body.sql)
            labels = session.labels(statement)
            if hidden := sorted({*labels} & {*HIDDEN}):
                raise CallError("invalid", f"no statement over HTTP reads {hidden[0]}", "sql")
            session.check(labels)
            result = session.run(statement.sql, limit=most + 1 if statement.rows else None)
            rows = list(formats.rows(replace(result, batches=_bounded(result.batches))))
            said = left_out(session, labels)
    except SettingsError as exc:
        raise CallError("invalid", str(exc), "sql") from exc
    except RefusedError as exc:
        raise CallError("unsupported", str(exc), "sql") from exc
    except (LogError, NotFoundError, CallError):
        raise
    except StreamwardError as exc:  # it needs more memory than it may have
        raise CallError("too_large", str(exc), "sql") from exc
    finally:
        AT_ONCE.release()
    return {
        "object": "query",
        "columns": list(result.names),
        "rows": rows[:most],
        "more": len(rows) > most,
        "left_out": said,
    }


def _bounded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    seen = 0
    for batch in batches:
        seen += batch.nbytes
        if seen > MOST_BYTES:
            raise CallError(
                "too_large", f"the answer is larger than {MOST_BYTES} bytes; select fewer columns or rows", "sql"
            )
        yield batch
