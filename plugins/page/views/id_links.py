"""Ids as links: where the value of a column leads, by the name of the column.

task_id, policy, response_id … ──► pages of the core        ViewSection.ids, ViewList.key ──► pages of plugins
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

from streams.plugins.installed import extensions
from streams.tools.query.view_list import view_lists

OWN_PAGES = {
    "task_id": "tasks",
    "policy": "policies",
    "answer_id": "runs",
    "response_id": "runs",
    "trajectory_id": "runs",
}
"""The section of the pages that a column's values lead to."""
LONGEST_ID = 200


@cache
def id_pages() -> Mapping[str, str]:
    """Return the part of an address before an id, by column. Raises SettingsError if a plugin cannot be loaded.

    Keys of lists are ids everywhere only if their columns are named so: `rule` may be another plugin's.
    """
    lists = {entry.key: f"lists/{entry.name}" for entry in view_lists().values() if entry.key.endswith("_id")}
    return {name: path for section in extensions("page") for name, path in section.ids.items()} | lists | OWN_PAGES


def id_link(column: str, value: Any) -> str | None:
    """Return the address below the page that a cell leads to; None if it holds no id."""
    is_id = isinstance(value, str) and 0 < len(value) <= LONGEST_ID
    return f"{id_pages()[column]}/{quote(value, safe='')}" if is_id and column in id_pages() else None
