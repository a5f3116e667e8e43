"""The log for pages and REST: one session of `streamward query`, kept while it is fresh.

    snapshot() ──► the session, or a new one if the log has grown ──► rows of a statement

All statements of one snapshot see the log up to the same offsets, and a new session reads what came since the old one.
One reader is served at a time. A session is kept for FRESH_S, and for COST times the CPU time that a snapshot took, so
that reading takes a tenth of one core at most, however long the log is; a snapshot says how old it is. Parts that a
page refreshes by itself are read once per session, and figures of the log alone once until it has new records
(`recall`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from streams.access.roles import Principal
from streams.arrow.decode import Bad
from streams.kafka.topics import LABELS
from streams.settings.model import Settings
from streams.tools.archive.history import Source
from streams.tools.query import formats
from streams.tools.query.session import Session, SessionLimits
from streams.tools.views.rights import LogRights
from streams.tools.views.statement_process import StatementProcesses

FRESH_S = 2.0
COST = 10.0
LIMITS = {"threads": "1", "memory_limit": "1GB"}
"""For DuckDB: the loop may run on the same machine."""
PAGE_ROWS = 50
KEPT_RESULTS = 64
"""Results that a view keeps."""
KEPT_LOGS = 4
"""Other logs that a view keeps open: those of experiments."""
WHOLE_LOG = LogRights()

Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class RowPage:
    """Some rows of a long statement."""

    rows: list[Row]
    first: int = 0
    """How many rows come before these."""
    size: int = PAGE_ROWS
    is_last: bool = True

    @property
    def following(self) -> int | None:
        """The first row of the next page; None on the last."""
        return None if self.is_last else self.first + self.size


class LogSnapshot:
    """The log at one moment: rows of statements, all at the same offsets."""

    def __init__(self, view: LogView, session: Session, as_of: datetime, rights: LogRights) -> None:
        self.view, self.as_of, self.rights = view, as_of, rights
        self._session = session

    def rows(self, sql: str, limit: int | None = None) -> list[Row]:
        """Return the rows of a statement that may be seen, by the names of their columns. Raises as `Session.run`."""
        result = self._session.run(self.rights.restrict(sql), limit=limit)
        return [dict(zip(result.names, row, strict=True)) for row in formats.rows(result)]

    def recall(self, name: str, read: Callable[[], T], *, from_log: bool = False) -> T:
        """Return what was read under a name since the log was looked at, or read it. It must not be changed.

        For what a page renews by itself, and for small things: they are kept as long as the session is fresh, and
        `from_log`, which are of the log alone, until it has other records.
        """
        return self.view.recall((from_log, name, self.rights.tenant, *self.rights.hidden), read)

    def first(self, sql: str) -> Row | None:
        """Return the first row, or None."""
        return next(iter(self.rows(sql, 1)), None)

    def page(self, sql: str, first: int, size: int = PAGE_ROWS) -> RowPage:
        """Return `size` rows of a statement from the `first` on."""
        rows = self.rows(f"{sql} LIMIT {size + 1} OFFSET {first}")
        return RowPage(rows[:size], first, size, is_last=len(rows) <= size)

    def undecodable(self, label: str) -> list[Bad]:
        """Return the records of a topic, as read, that are not events; a tenant sees none of them."""
        hidden = self.rights.tenant is not None or label in self.rights.hidden
        return [] if hidden else self._session.bad({label})

    def left_out(self) -> list[str]:
        """Return a sentence for each kind of unreadable record, in the log as read."""
        return [] if self.rights.tenant is not None else self._session.omissions(set(LABELS))


class LogView:
    """The log, for all readers of a process. Close it."""

    empty_topics: Collection[str] = ()
    """Labels of topics that it shows without a record."""

    def __init__(
        self,
        settings: Settings,
        source: Source = "auto",
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self.settings = settings
        self.source: Source = source
        self._others: dict[str, LogView] = {}
        self.statements = StatementProcesses(settings, source)
        """For statements of readers; those of `snapshot` are ours."""
        self._clock, self._cpu_clock = clock, cpu_clock
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._opened = 0.0
        self._as_of = datetime.now(UTC)
        self._cpu_s = 0.0
        self._recalled: dict[tuple[Hashable, ...], Any] = {}

    @contextmanager
    def snapshot(self, rights: LogRights = WHOLE_LOG) -> Iterator[LogSnapshot]:
        """Yield the log as of now, or of a moment ago. Raises LogError if it cannot be read."""
        with self._lock:
            start = self._cpu_clock()
            if self._session is None or self._clock() - self._opened > max(FRESH_S, COST * self._cpu_s):
                self._session = self._renew(self._session)
            try:
                yield LogSnapshot(self, self._session, self._as_of, rights)
            finally:
                self._cpu_s = max(self._cpu_s, self._cpu_clock() - start)

    def session(self) -> Session:
        """Return a new session, which the caller closes. Raises LogError if the log cannot be read."""
        limits = SessionLimits(duckdb=LIMITS, empty_topics=self.empty_topics)
        return Session(self.settings, source=self.source, limits=limits)

    def recall(self, key: tuple[Hashable, ...], read: Callable[[], T]) -> T:
        """Return what was read under a key since the log was looked at, or read it; within a snapshot."""
        if key not in self._recalled:
            value = read()
            if len(self._recalled) >= KEPT_RESULTS:
                self._recalled.clear()
            self._recalled[key] = value
        recalled: T = self._recalled[key]
        return recalled

    def other(self, settings: Settings) -> LogView:
        """Return the view of another log, such as that of an experiment, by its prefix; it is closed with this one."""
        prefix = settings.topics.prefix
        if prefix not in self._others:
            while len(self._others) >= KEPT_LOGS:
                self._others.pop(next(iter(self._others))).close()
            self._others[prefix] = LogView(settings, self.source, clock=self._clock, cpu_clock=self._cpu_clock)
        return self._others[prefix]

    def outdate(self) -> None:
        """Let the next snapshot read the log again: something was written that its reader waits for."""
        self._opened = -math.inf

    def close(self) -> None:
        """Release the readers."""
        self.statements.close()
        with self._lock:
            for other in self._others.values():
                other.close()
            self._others.clear()
            if self._session is not None:
                self._session.close()
                self._session = None

    def _renew(self, old: Session | None) -> Session:
        """Return a session with the newest records: the old one if nothing was written since."""
        if old is not None and old.is_current():
            self._opened, self._as_of = self._clock(), datetime.now(UTC)
            self._recalled = {key: value for key, value in self._recalled.items() if key[0]}
            return old
        fresh = self.session() if old is None else old.renew()
        self._opened, self._as_of = self._clock(), datetime.now(UTC)
        self._cpu_s = 0.0
        self._recalled.clear()
        return fresh


class LogReader:
    """The log as one visitor sees it."""

    def __init__(self, view: LogView, principal: Principal | None = None, *, actor: str = "") -> None:
        """`actor`: who is recorded for what the visitor decides."""
        self.view, self.principal, self.actor, self.rights = view, principal, actor, LogRights.of(principal)

    @contextmanager
    def snapshot(self) -> Iterator[LogSnapshot]:
        """Yield the log as of now, or of a moment ago. Raises LogError if it cannot be read."""
        with self.view.snapshot(self.rights) as snapshot:
            yield snapshot
