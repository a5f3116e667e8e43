"""A view of the log in addition to the topics' own: a name that statements can read, and its SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streams.settings.model import Settings

WHOLE = "whole"
"""The schema of the views that no option narrows."""


class SqlView(NamedTuple):
    """A name that a statement can read."""

    name: str
    label: str
    """Of the leading topic: one row, or more, for each of its records, which --since and the like choose."""
    about: str
    """One row per what, and what it says."""
    tenant: str
    """Which of its rows are a tenant's, as TopicShape has it."""
    sql: str | Callable[[Settings], str] = ""
    """How a join is made, of topics' views and of `whole.NAME`; `` for a topic itself."""
    also: tuple[str, ...] = ()
    """Labels of the other topics of a join."""

    def statement(self, settings: Settings) -> str:
        """Return how it is made under these settings."""
        return self.sql if isinstance(self.sql, str) else self.sql(settings)
