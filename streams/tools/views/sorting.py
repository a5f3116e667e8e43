"""The order of a list, as its address names it: `sort=reward` or, from the largest, `sort=-reward`.

columns and their SQL ──► Sorting ──► ORDER BY of a statement, rows without a value last
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.faults import nearest
from streams.errors import SettingsError


@dataclass(frozen=True)
class Sorting:
    """The column by which a list is sorted. Raises SettingsError for an unknown one."""

    columns: Mapping[str, str]
    """The SQL of each column that a list can be sorted by, by its name in an address."""
    chosen: str = ""
    """One of them, after a minus from the largest; empty: the list's own order."""

    def __post_init__(self) -> None:
        if self.chosen and self.column not in self.columns:
            raise SettingsError(f"sort={self.chosen[:80]}: {nearest(self.column, [*self.columns])}")

    @property
    def column(self) -> str:
        """The chosen column."""
        return self.chosen.removeprefix("-")

    @property
    def is_descending(self) -> bool:
        """Whether the largest come first."""
        return self.chosen.startswith("-")

    def order(self, own: str) -> str:
        """Return the SQL of the order; `own`: that of the list, which also decides between equal values."""
        if not self.chosen:
            return own
        direction = "DESC" if self.is_descending else "ASC"
        return ", ".join(filter(None, (f"{self.columns[self.column]} {direction} NULLS LAST", own)))

    def toggle(self, column: str) -> str:
        """Return `sort` of the link of a column: the largest first, and then the smallest."""
        return column if self.chosen == f"-{column}" else f"-{column}"

    def direction(self, column: str) -> str:
        """Return the value of `aria-sort` of a column."""
        if self.column != column:
            return "none"
        return "descending" if self.is_descending else "ascending"
