"""A list that a plugin declares: rows of an SQL view, narrowed by what its visitor chooses, and a page for each.

PLUGIN.lists ──► ViewList ──► its statement over the rows that the visitor may see ──► PluginList
its key ──► the row, and the tables of its sections ──► ListedRow
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import quote

from plugins.page.views.id_links import id_link
from streams.errors import NotFoundError
from streams.tools.query.view_list import ListSection, ViewList, view_lists
from streams.tools.query.views import identifier
from streams.tools.views.log_view import LogSnapshot, Row, RowPage
from streams.tools.views.sorting import Sorting

SECTION_ROWS = 200
"""Rows of a section that are shown."""


@dataclass(frozen=True)
class PluginList:
    """The rows of a list. Of each row: `links`, addresses below the page by column."""

    declared: ViewList
    chosen: dict[str, str]
    """The chosen values of filters, by column."""
    listed: RowPage
    sorting: Sorting


class SectionRows(NamedTuple):
    """The rows of a section, each with its `links`."""

    declared: ListSection
    rows: list[Row]


@dataclass(frozen=True)
class ListedRow:
    """One row of a list, on its own page."""

    declared: ViewList
    key: str
    row: Row
    sections: list[SectionRows]


def find_list(log: LogSnapshot, name: str, query: Mapping[str, str], first: int) -> PluginList:
    """Return a page of a list; `query`: the values of its filters. Raises NotFoundError, SettingsError."""
    declared = _list_of(name)
    chosen = {column: query[column] for column in declared.filters if query.get(column)}
    sorting = Sorting({column: identifier(column) for column in declared.columns}, query.get("sort", ""))
    page = log.page(declared.statement(chosen, sorting.order(declared.order)), first)
    rows = [row | {"links": _links(declared, row)} for row in page.rows]
    return PluginList(declared, chosen, replace(page, rows=rows), sorting)


def find_listed_row(log: LogSnapshot, name: str, key: str) -> ListedRow:
    """Return the page of a row. Raises NotFoundError."""
    declared = _list_of(name)
    row = log.first(declared.row_statement(key)) if declared.key else None
    if row is None:
        raise NotFoundError(f"{declared.title} has no row {key[:80]!r}; /lists/{declared.name} has all")
    sections = [
        SectionRows(
            section, [each | {"links": _id_links(each)} for each in log.rows(section.statement(key), SECTION_ROWS)]
        )
        for section in declared.sections
    ]
    return ListedRow(declared, key, row | {"links": _links(declared, row)}, sections)


def _list_of(name: str) -> ViewList:
    if (declared := view_lists().get(name)) is None:
        raise NotFoundError(f"no list is called {name[:80]!r}; lists: {', '.join(view_lists()) or 'none'}")
    return declared


def _links(declared: ViewList, row: Row) -> dict[str, str]:
    values = {column: quote(str(row[column]), safe="") for column in declared.columns}
    own = {column: address.format_map(values) for column, address in declared.links.items() if row[column] is not None}
    key = {declared.key: f"lists/{declared.name}/{values[declared.key]}"} if declared.key else {}
    return _id_links(row) | own | key


def _id_links(row: Row) -> dict[str, str]:
    links = {column: id_link(column, value) for column, value in row.items()}
    return {column: link for column, link in links.items() if link is not None}
