"""A list that a plugin declares: rows of one of its SQL views, narrowed by what its visitor chooses.

PLUGIN.lists ──► ViewList ──► its statement over the rows that the visitor may see ──► PluginList
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

from streams.errors import NotFoundError
from streams.tools.query.view_list import ViewList, view_lists
from streams.tools.views.log_view import LogSnapshot, Row, RowPage


@dataclass(frozen=True)
class PluginList:
    """The rows of a list. Of each row: `links`, addresses below the page by column."""

    declared: ViewList
    chosen: dict[str, str]
    """The chosen values of filters, by column."""
    listed: RowPage


def find_list(log: LogSnapshot, name: str, query: Mapping[str, str], first: int) -> PluginList:
    """Return a page of a list; `query`: the values of its filters. Raises NotFoundError."""
    declared = view_lists().get(name)
    if declared is None:
        raise NotFoundError(f"no list is called {name[:80]!r}; lists: {', '.join(view_lists()) or 'none'}")
    chosen = {column: query[column] for column in declared.filters if query.get(column)}
    page = log.page(declared.statement(chosen), first)
    rows = [row | {"links": _links(declared, row)} for row in page.rows]
    return PluginList(declared, chosen, replace(page, rows=rows))


def _links(declared: ViewList, row: Row) -> dict[str, str]:
    values = {column: quote(str(row[column]), safe="") for column in declared.columns}
    return {column: address.format_map(values) for column, address in declared.links.items() if row[column] is not None}
