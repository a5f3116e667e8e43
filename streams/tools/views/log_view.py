"""The log as pages read it: one session of `streamward query`, kept while it is fresh.

    page ──► look() ──► the session, or a new one if the log has grown ──► rows of a statement

A look is consistent: all statements of one page see the log up to the same offsets. One page reads at a time. A session
is kept for FRESH_S, and for COST times the processor time that a page took with it, so that reading takes a tenth of
one core at most, however long the log is; the page says how old its view is.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from streams.access.roles import Principal
from streams.arrow.decode import Bad
from streams.errors import RefusedError
from streams.kafka.topics import LABELS
from streams.settings.model import Settings
from streams.tools.archive.history import Source
from streams.tools.query import formats
from streams.tools.query.prompt import left_out
from streams.tools.query.session import Session
from streams.tools.views.rights import LogRights

FRESH_S = 2.0
COST = 10.0
LIMITS = {"threads": "1", "memory_limit": "1GB"}
"""For DuckDB: the loop may run on the same machine."""

Row = dict[str, Any]


EVERYTHING = LogRights()


class Look:
    """What one page reads: rows of statements, all at the same offsets."""

    def __init__(self, session: Session, at: datetime, rights: LogRights = EVERYTHING) -> None:
        self._session, self._rights = session, rights
        self.at = at
        """When the log was looked at."""

    def rows(self, sql: str, limit: int | None = None) -> list[Row]:
        """Return the rows of a statement that may be seen, by the names of their columns. Raises as `Session.run`."""
        result = self._session.run(self._rights.within(sql), limit=limit)
        return [dict(zip(result.names, row, strict=True)) for row in formats.rows(result)]

    def first(self, sql: str) -> Row | None:
        """Return the first row, or None."""
        return next(iter(self.rows(sql, 1)), None)

    def bad(self, label: str) -> list[Bad]:
        """Return the records of a topic that are no events, as far as it was read; nobody says whose they are."""
        return [] if self._rights.tenant is not None or label in self._rights.hidden else self._session.bad({label})

    def left_out(self) -> list[str]:
        """Return a sentence for each kind of record that could not be read, as far as the log was read."""
        return [] if self._rights.tenant is not None else left_out(self._session, set(LABELS))


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
    def look(self, rights: LogRights = EVERYTHING) -> Iterator[Look]:
        """Yield the log as of now, or of a moment ago. Raises LogError if it cannot be read."""
        with self._lock:
            began = self._cpu()
            if self._session is None or self._clock() - self._opened > max(FRESH_S, COST * self._spent):
                self._renew()
            assert self._session is not None  # noqa: S101 - made by `_renew`
            try:
                yield Look(self._session, self._at, rights)
            finally:
                self._spent = max(self._spent, self._cpu() - began)

    def session(self, without: Collection[str] = ()) -> Session:
        """Return a session of one's own, which the caller closes. Raises LogError if the log cannot be read."""
        return Session(self.settings, source=self.source, limits=LIMITS, without=without)

    def outdate(self) -> None:
        """Let the next page look at the log again: something was written that its reader waits for."""
        self._opened = -math.inf

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


class LogReader:
    """The log as one visitor sees it."""

    def __init__(self, view: LogView, asks: Principal | None = None) -> None:
        """Raises RefusedError for a key that is bound to an agent."""
        if asks is not None and asks.agent_id is not None:
            raise RefusedError(f"{asks.who} may only act as agent {asks.agent_id}, and the page shows those of all")
        self._view, self.asks, self.rights = view, asks, LogRights.of(asks)
        self.settings, self.source = view.settings, view.source

    @property
    def tenant(self) -> str | None:
        """Whose rows are seen; None: everybody's."""
        return self.rights.tenant

    @contextmanager
    def look(self) -> Iterator[Look]:
        """Yield the log as of now, or of a moment ago. Raises LogError if it cannot be read."""
        with self._view.look(self.rights) as look:
            yield look

    def session(self) -> Session:
        """Return a session of one's own, which the caller closes.

        Raises RefusedError for who is of a tenant: SQL is not divided. LogError if the log cannot be read.
        """
        self.check_whole("SQL reads")
        return self._view.session(self.rights.hidden)

    def check_whole(self, what: str) -> None:
        """Raise RefusedError if only a tenant's part of the log may be seen."""
        if self.asks is not None and self.tenant is not None:
            raise RefusedError(f"{self.asks.who} is of a tenant, and {what} what all tenants have written")
