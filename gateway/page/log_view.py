"""The log as pages read it: one session of `streamward query`, kept while it is fresh.

    page ──► look() ──► the session, or a new one if the log has grown ──► rows of a statement

A look is consistent: all statements of one page see the log up to the same offsets. One page reads at a time. A session
is kept for FRESH_S, and for COST times the processor time that a page took with it, so that reading takes a tenth of
one core at most, however long the log is; the page says how old its view is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from streams.arrow.decode import Bad
from streams.kafka.topics import LABELS
from streams.settings.model import Settings
from streams.tools.archive.history import Source
from streams.tools.query import formats
from streams.tools.query.prompt import left_out
from streams.tools.query.session import Session

FRESH_S = 2.0
COST = 10.0
LIMITS = {"threads": "1", "memory_limit": "1GB"}
"""For DuckDB: the loop may run on the same machine."""

Row = dict[str, Any]


class Look:
    """What one page reads: rows of statements, all at the same offsets."""

    def __init__(self, session: Session, at: datetime) -> None:
        self._session = session
        self.at = at
        """When the log was looked at."""

    def rows(self, sql: str, limit: int | None = None) -> list[Row]:
        """Return the rows of a statement, by the names of their columns. Raises as `Session.run`."""
        result = self._session.run(sql, limit=limit)
        return [dict(zip(result.names, row, strict=True)) for row in formats.rows(result)]

    def first(self, sql: str) -> Row | None:
        """Return the first row, or None."""
        return next(iter(self.rows(sql, 1)), None)

    def bad(self, label: str) -> list[Bad]:
        """Return the records of a topic that are no events, as far as it was read."""
        return self._session.bad({label})

    def left_out(self) -> list[str]:
        """Return a sentence for each kind of record that could not be read, as far as the log was read."""
        return left_out(self._session, set(LABELS))


class LogView:
    """The log, for all pages. Close it."""

    def __init__(
        self,
        settings: Settings,
        source: Source = "auto",
        *,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.process_time,
    ) -> None:
        self.settings = settings
        self.source: Source = source
        self._clock, self._cpu = clock, spent
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._opened = 0.0
        self._at = datetime.now(UTC)
        self._spent = 0.0

    @contextmanager
    def look(self) -> Iterator[Look]:
        """Yield the log as of now, or of a moment ago. Raises LogError if it cannot be read."""
        with self._lock:
            began = self._cpu()
            if self._session is None or self._clock() - self._opened > max(FRESH_S, COST * self._spent):
                self._renew()
            assert self._session is not None  # noqa: S101 - made by `_renew`
            try:
                yield Look(self._session, self._at)
            finally:
                self._spent = max(self._spent, self._cpu() - began)

    def session(self) -> Session:
        """Return a session of one's own, which the caller closes. Raises LogError if the log cannot be read."""
        return Session(self.settings, source=self.source, limits=LIMITS)

    def close(self) -> None:
        """Release the readers."""
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None

    def _renew(self) -> None:
        """Look at the log again; what was read stays if nothing was written since."""
        fresh = self.session()
        self._opened, self._at = self._clock(), datetime.now(UTC)
        if self._session is not None and fresh.ranges == self._session.ranges:
            fresh.close()
            return
        if self._session is not None:
            self._session.close()
        self._session, self._spent = fresh, 0.0
