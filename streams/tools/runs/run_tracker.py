"""`RunTracker`, for programs and notebooks: the current row of one run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from streams.errors import NotFoundError
from streams.settings.load import load
from streams.settings.model import Settings
from streams.tools.archive.history import Source
from streams.tools.runs.run_archive import COLUMNS
from streams.tools.runs.run_row import FinishedRun
from streams.tools.views import run_list
from streams.tools.views.log_view import LogView


class RunTracker:
    """Reads runs from the log, as `streamward runs show` does."""

    def __init__(self, settings: Settings | None = None, *, source: Source = "auto") -> None:
        self._settings = settings or load()
        self._source = source

    def track(self, answer_id: str) -> FinishedRun:
        """Return the figures of a run, also of an open one; the beginning of an id will do that no other run has.

        Raises NotFoundError if the log has no such run, LogError if it cannot be read.
        """
        with closing(LogView(self._settings, self._source)) as view, view.snapshot() as log:
            name = run_list.whole_id(log, answer_id)
            row = None if name is None else run_list.find_row(log, name)
        if row is None:
            raise NotFoundError(
                f"no run, or more than one, begins with {answer_id[:80]!r}; `streamward runs list` lists them"
            )
        return run_of(row)


def run_of(row: Mapping[str, Any]) -> FinishedRun:
    """Return a row of view `runs` as a FinishedRun."""
    fields = {name: row[name] for name in COLUMNS}
    return FinishedRun(**fields | {name: tuple(fields[name]) for name in ("versions", "run_ids")})
