"""A list that a plugin makes from an SQL view, for people to look at: which rows, columns, filters and links.

    PLUGIN.lists ──► view_lists(): checked against the views ──► what shows the log, such as the page

Its rows are those of the view that a visitor may see. This module needs no DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from string import Formatter
from typing import NamedTuple

from streams.access.roles import Action
from streams.errors import SettingsError
from streams.kafka.topics import SHAPES
from streams.plugins.installed import plugin_entries
from streams.tools.query.views import identifier, joins, literal, name_of


class ListSection(NamedTuple):
    """A table on the page of a row: rows of a view that belong to it."""

    title: str
    view: str
    columns: tuple[str, ...]
    where: str
    """The SQL condition of its rows; `{key}` is the key of the row, as a literal."""
    order: str = ""

    def statement(self, key: str) -> str:
        """Return the SQL of its rows."""
        columns, condition = ", ".join(map(identifier, self.columns)), self.where.format(key=literal(key))
        order = self.order or identifier(self.columns[0])
        return f"SELECT {columns} FROM {identifier(self.view)} WHERE {condition} ORDER BY {order}"  # noqa: S608


@dataclass(frozen=True, slots=True)
class RowDecision:
    """What a person may decide on the page of a row, with a reason."""

    button: str
    """As `Accept this description`."""
    waits: str
    """The column that has a value while a decision is due."""
    expects: str
    """The column with what is decided about, as shown: it is sent as `expected`."""
    action: Action
    """What the role of a visitor has to allow."""
    decide: str
    """`module:name` of the function that does it, of a LogReader, a SentForm and the `key`. It raises
    StreamwardError."""


@dataclass(frozen=True)
class ViewList:
    """A list of some rows of a view."""

    name: str
    """Its part of an address: `bad-answers`."""
    title: str
    view: str
    """The name of an SQL view."""
    columns: tuple[str, ...]
    where: str = ""
    """The SQL condition of its rows; empty: all."""
    order: str = ""
    """The SQL order of its rows."""
    filters: tuple[str, ...] = ()
    """Columns whose value a visitor may choose."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Columns that lead to a page of the log, and its address: `{"task_id": "tasks/{task_id}"}`. Those with the ids of
    tasks, policies, runs and other pages need none."""
    key: str = ""
    """The column that names a row, which then has a page; empty: rows have none."""
    facts: tuple[str, ...] = ()
    """Further columns of the view that this page shows."""
    sections: tuple[ListSection, ...] = ()
    """Its tables."""
    decision: RowDecision | None = None

    def statement(self, chosen: Mapping[str, str], order: str | None = None) -> str:
        """Return the SQL of its rows with these values of filters; `order`: SQL, default: its own."""
        conditions = [f"({self.where or 'true'})"]
        conditions += [f"CAST({identifier(name)} AS VARCHAR) = {literal(value)}" for name, value in chosen.items()]
        columns, order = ", ".join(map(identifier, self.columns)), self.order if order is None else order
        ordered = f" ORDER BY {order}" if order else ""
        return f"SELECT {columns} FROM {identifier(self.view)} WHERE {' AND '.join(conditions)}{ordered}"  # noqa: S608

    def row_statement(self, key: str) -> str:
        """Return the SQL of the row with a key, the newest first."""
        columns = ", ".join(map(identifier, (*self.columns, *self.facts)))
        condition = f"({self.where or 'true'}) AND CAST({identifier(self.key)} AS VARCHAR) = {literal(key)}"
        return f"SELECT {columns} FROM {identifier(self.view)} WHERE {condition} ORDER BY _timestamp DESC"  # noqa: S608

    def problem(self) -> str | None:
        """Return why it cannot be a list of this log; None if it can."""
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.name) or not self.title:
            return "needs a name of small letters, digits and -, and a title"
        known = {*map(name_of, SHAPES), *(view.name for view in joins())}
        if unknown_views := {self.view, *(section.view for section in self.sections)} - known:
            return f"is of no view {', '.join(sorted(unknown_views))}"
        linked = {name for path in self.links.values() for _, name, _, _ in Formatter().parse(path) if name is not None}
        if unknown := {*self.filters, *self.links, *linked, *filter(None, [self.key])} - {*self.columns}:
            return f"has no column {', '.join(sorted(unknown))}"
        return None if self.columns else "has no columns"


@cache
def view_lists() -> dict[str, ViewList]:
    """Return the lists of all plugins by name. Raises SettingsError if a name is taken, or one cannot be."""
    lists: dict[str, ViewList] = {}
    declared = plugin_entries(lambda plugin: {one.name: one for one in plugin.load_all(plugin.lists)}, "list", ())
    for plugin, entry in declared.values():
        if (problem := entry.problem()) is not None:
            raise SettingsError(f"plugin {plugin.name}: list {entry.name} {problem}")
        lists[entry.name] = entry
    return lists
