"""The process that runs the statements of readers: one at a time, then the next.

    stdin   pickle (id, memory, settings, source, StatementOrder)                          from the parent
    stdout  JSON {"id", …} with "opened", then "names", "rows", … | "error", "message"     (worker_pipe.py)

Each statement has its own connection. A process that holds much memory afterwards reports that it is used up.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa

from schemas import key_source
from streams.errors import CallError, RefusedError, SettingsError
from streams.kafka.subject_keys import use_keys
from streams.processes.worker_pipe import AnswerPipe, data_bytes, describe_exception, limit_memory, serve
from streams.settings.model import Settings
from streams.tools.archive.history import Source
from streams.tools.query import formats
from streams.tools.query.pull import AGAIN_S
from streams.tools.query.session import Session, SessionLimits
from streams.tools.views.statement_process import (
    ERRORS,
    ID_BYTES,
    MAX_BYTES,
    MAX_JSON_BYTES,
    QueryRows,
    StatementOrder,
    needs_memory,
    too_long,
)

DUCKDB = {"threads": "1", "memory_limit": "600MB", "max_temp_directory_size": "1GB"}
"""Beyond its memory, which is less than the process may have, DuckDB writes to disk."""


KEPT_BYTES = 128 << 20
"""What a process may hold after a statement and be used for the next."""


def main() -> None:
    """Run statements until stdin ends."""
    pa.set_memory_pool(pa.system_memory_pool())  # others reserve memory that no limit would find
    serve(StatementWorker().answer)


class StatementWorker:
    """Answers one statement after another."""

    def __init__(self) -> None:
        self._loaded_bytes = 0
        """What the process had once it had opened the log for the first time."""

    def answer(self, answers: AnswerPipe, request: bytes) -> None:
        """Answer one request."""
        request_id, memory_bytes, settings, source, order = pickle.loads(request)  # noqa: S301 - our parent's
        try:
            with _open(settings, source, order) as session:
                self._loaded_bytes = self._loaded_bytes or data_bytes()
                limit_memory(self._loaded_bytes + memory_bytes)
                answers.send(request_id, {"opened": True})
                persons = key_source.collect_reads(whole_process=True)
                rows = asdict(run_statement(session, order)) | {"persons": sorted(persons)}
            if len(json.dumps(rows)) + ID_BYTES > MAX_JSON_BYTES:
                raise _too_large()
        except BaseException as exc:  # DuckDB and Arrow may raise anything, and the parent waits
            rows = _failure(exc)
        rows["used_up"] = rows.get("used_up", False) or data_bytes() > self._loaded_bytes + KEPT_BYTES
        answers.send(request_id, rows)


def _failure(exc: BaseException) -> dict[str, Any]:
    """Return the answer that tells the parent of an exception."""
    if isinstance(exc, CallError):
        return {"error": "CallError", "message": str(exc)}
    name = next((name for name, kind in ERRORS.items() if isinstance(exc, kind)), "")
    if name not in ("", "StreamwardError"):
        return {"error": name, "message": str(exc)}
    if name or isinstance(exc, MemoryError):  # the session has no other error of this kind
        message = needs_memory(str(exc).partition("\n")[0] or "an allocation failed")
    else:
        message = describe_exception("the statement", exc)
    return {"error": "StreamwardError", "message": message, "used_up": True}


def _open(settings: Settings, source: Source, order: StatementOrder) -> Session:
    use_keys(settings)
    if settings.schemas.registry_url:
        from streams.kafka.registry import client as registry_client

        registry_client.use(settings)
    return Session(settings, source=source, limits=SessionLimits(duckdb=DUCKDB, empty_topics=order.hidden))


def run_statement(session: Session, order: StatementOrder) -> QueryRows:
    """Return the rows of a statement. Raises as `StatementProcesses.run`."""
    with time_limit(session, order.longest_s):
        statement = session.parse(order.sql)
        labels = session.labels(statement)
        if hidden := sorted(labels & {*order.hidden}):
            raise SettingsError(f"no statement reads {hidden[0]} here")
        session.check(labels)
        result = session.run(statement.sql, limit=order.limit + 1 if statement.rows else None)
        rows = list(formats.rows(replace(result, batches=_limit_bytes(result.batches))))
    return QueryRows(result.names, rows[: order.limit], len(rows) > order.limit, session.omissions(labels))


def _limit_bytes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > MAX_BYTES:
            raise _too_large()
        yield batch


def _too_large() -> CallError:
    message = f"the answer is larger than {MAX_BYTES} bytes; select fewer columns or rows"
    return CallError("too_large", message, "sql")


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
        raise RefusedError(too_long(seconds)) from exc
    finally:
        done.set()
        thread.join()
