"""Run a reader's statement in a process that can be killed: it only reads, opens no files, and is limited.

    SQL ──► two at once at most ──► statement_worker.py ──► limits of rows, bytes, time and memory ──► QueryRows

DuckDB counts neither texts made by functions nor batches that it returns, and notices an interrupt only between two
chunks. So the kernel limits the memory of the process, and one that does not answer in time is killed.

Starting a process takes a second, so it runs one statement after another, until one has used it up. An idle one is
kept.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from schemas.key_source import note_read
from streams.errors import CallError, LogError, NotFoundError, RefusedError, SettingsError, StreamwardError
from streams.processes.worker_pipe import START_LIMIT_S, WorkerError, WorkerKind, WorkerProcess
from streams.settings.model import Settings
from streams.tools.archive.history import Source

LONGEST_S = 20.0
"""How long a statement may run."""
GRACE_S = 2.0
"""For a process to end a statement that has run for so long, before it is killed."""
OPEN_S = 60.0
"""How long the log may take to be opened."""
MEMORY_BYTES = 1 << 30
"""What a process may allocate beyond what it has once it has opened the log."""
MAX_BYTES = 16_000_000
"""Of an answer, in Arrow's format."""
MAX_JSON_BYTES = 2 * MAX_BYTES
"""The same, as it comes from the process."""
ID_BYTES = 100
"""Of what comes with an answer."""
STATEMENT = WorkerKind("streams.tools.views.statement_worker", "the process of a statement", "kafka.request_timeout_s")
ERRORS = {kind.__name__: kind for kind in (SettingsError, RefusedError, NotFoundError, LogError, StreamwardError)}
"""What a process tells of, by name; the last is what any other is."""
_SLOTS = threading.BoundedSemaphore(2)


@dataclass(frozen=True, kw_only=True)
class StatementOrder:
    """A statement to run."""

    sql: str
    limit: int
    """Most rows."""
    longest_s: float = LONGEST_S
    hidden: Collection[str] = ()
    """Labels of topics that it does not read."""


@dataclass(frozen=True)
class QueryRows:
    """The rows of a statement."""

    names: tuple[str, ...]
    rows: list[list[Any]]
    more: bool
    """Whether there are rows beyond the limit."""
    left_out: list[str]
    """A sentence for each kind of record that could not be read."""


class StatementProcesses:
    """Runs statements over a log. Any thread may; close it."""

    def __init__(self, settings: Settings, source: Source) -> None:
        self._log = settings, source
        self._lock = threading.Lock()
        self._idle: WorkerProcess | None = None
        self._closed = False

    def run(self, order: StatementOrder) -> QueryRows:
        """Return the rows of a statement, at most `order.limit`.

        Raises SettingsError for an error in it, RefusedError for what may not be run or runs for too long, LogError if
        the log cannot be read, CallError if two run already or the rows are larger than MAX_BYTES, StreamwardError if
        it needs more memory than it may have.
        """
        with _slot():
            process = self._take()
            try:
                answer = self._ask(process, order)
            except BaseException:  # KeyboardInterrupt too: an answer that was not read would be the next one's
                process.dispose()
                raise
            self._put_back(process, is_used_up=answer["used_up"])
        if "error" in answer:
            raise _error(answer)
        for person in answer.get("persons", ()):
            note_read(person)
        return QueryRows(tuple(answer["names"]), answer["rows"], answer["more"], answer["left_out"])

    def close(self) -> None:
        """End the process that has nothing to do, and others as soon as they have answered."""
        with self._lock:
            self._closed, process, self._idle = True, self._idle, None
        if process is not None:
            process.dispose()

    def _take(self) -> WorkerProcess:
        with self._lock:
            process, self._idle = self._idle, None
        if process is not None and not process.is_spoilt():
            return process
        if process is not None:
            process.dispose()
        try:
            return WorkerProcess(STATEMENT, (), ",".join(os.environ))  # our own code, which may read an archive
        except WorkerError as exc:
            raise StreamwardError(f"{exc}; nothing was read") from exc

    def _put_back(self, process: WorkerProcess, *, is_used_up: bool) -> None:
        with self._lock:
            if self._idle is None and not self._closed and not is_used_up:
                self._idle = process
                return
        process.dispose()

    def _ask(self, process: WorkerProcess, order: StatementOrder) -> dict[str, Any]:
        """Return what a process answers. Raises as `run` if it does not."""
        request_id, name = token_hex(16), STATEMENT.title
        try:
            process.write(name, pickle.dumps((request_id, MEMORY_BYTES, *self._log, order)), START_LIMIT_S)
            answer = process.receive(name, "open the log", OPEN_S, request_id)
        except WorkerError as exc:
            raise LogError(str(exc)) from exc
        if "opened" not in answer:
            return answer
        try:
            return process.receive(name, "end", order.longest_s + GRACE_S, request_id, most_bytes=MAX_JSON_BYTES)
        except WorkerError as exc:
            if exc.reason == "timeout":
                raise RefusedError(too_long(order.longest_s)) from exc
            raise StreamwardError(needs_memory(str(exc))) from exc


def too_long(seconds: float) -> str:
    """Return the message about a statement that ran for so long."""
    return f"the statement ran for {seconds:g} s and was ended; let it read less, or use `streamward query`"


def needs_memory(reason: str) -> str:
    """Return the message about a statement that needs more memory than it may have."""
    limit = f"{MEMORY_BYTES >> 20} MiB"
    return f"the statement needs more memory than the {limit} that it may have: {reason}. Ask for fewer columns or rows"


@contextmanager
def _slot() -> Iterator[None]:
    """Hold a slot for a running statement. Raises CallError if none is free."""
    if not _SLOTS.acquire(blocking=False):
        raise CallError("busy", "two statements are running already; try again when one has ended")
    try:
        yield
    finally:
        _SLOTS.release()


def _error(answer: dict[str, Any]) -> StreamwardError:
    """Return the error that a process tells of."""
    message = str(answer["message"])
    if answer["error"] == CallError.__name__:
        return CallError("too_large", message, "sql")
    return ERRORS.get(answer["error"], StreamwardError)(message)
