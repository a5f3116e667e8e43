"""Run a statement in a separate thread, so that it can be stopped at any moment.

    thread: con.sql ──► reader ──► batch, batch, ... ──► queue of a few ──► the caller's thread
    end():  con.interrupt(), again and again, until the thread has noticed

DuckDB checks for Python's signals in some of its calls and not in others, an Arrow reader runs its query to the end
when it is closed, and an interrupt between two steps of a query is lost. So the caller waits where Ctrl-C reaches it,
and interrupts more than once. A reader of the log that waits for its broker stops when that has answered or timed out.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pyarrow as pa

AHEAD = 4
"""Batches that wait for the caller."""
AGAIN_S = 0.02
"""Between two interrupts."""

Open = Callable[[], tuple[tuple[str, ...], pa.RecordBatchReader]]


class Pull:
    """The batches of one statement. `names` and `schema` are there when it was made."""

    def __init__(self, con: duckdb.DuckDBPyConnection, open_: Open) -> None:
        """Start the statement and wait for its columns. Raises what DuckDB raises."""
        self._con = con
        self._open = open_
        self._queue: queue.Queue[Any] = queue.Queue(AHEAD)
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, name="query", daemon=True)
        self._thread.start()
        self.names, self.schema = self._next()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._next()) is not None:
            yield batch

    def end(self) -> None:
        """Return when the statement has ended, whether or not it was finished."""
        self._enough.set()
        while self._thread.is_alive():
            self._con.interrupt()
            self._thread.join(AGAIN_S)

    def _next(self) -> Any:
        try:
            item = self._queue.get()
        except BaseException:  # Ctrl-C
            self.end()
            raise
        if isinstance(item, BaseException):
            self._thread.join()
            raise item
        return item

    def _run(self) -> None:
        try:
            names, reader = self._open()
            try:
                self._put((names, reader.schema))
                for batch in reader:
                    self._put(batch)
                    if self._enough.is_set():
                        return
            finally:
                reader.close()
        except BaseException as exc:  # it is raised in the caller
            self._put(exc)
        else:
            self._put(None)

    def _put(self, item: Any) -> None:
        while not self._enough.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue
