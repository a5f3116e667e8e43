"""Tools of the registry that a task or an agent names.

    ids ──► entries as they are now, if they are trusted ──► descriptions, and ID@DIGEST of each for the metadata

A task contains the descriptions themselves, so it keeps what the policy read, whatever the server returns later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from plugins.tools.registry.tool_state import ToolState, check_trusted, find
from schemas.events import Tool
from streams.errors import NotFoundError, RefusedError

Entries = Callable[[], Mapping[str, ToolState]]
"""Reads the registry. Raises NotFoundError, LogError."""
DIGITS = 16
"""Of a digest, in metadata."""


class NamedTools(NamedTuple):
    """Tools as a policy reads them, and what they are called in the registry."""

    tools: tuple[Tool, ...] = ()
    references: tuple[str, ...] = ()
    """ID@DIGEST of each, for metadata."""


def named_tools(ids: Sequence[str], entries: Entries, others: Iterable[Tool] = ()) -> NamedTools:
    """Return the tools of these ids, next to `others` of the same task. Raises ValueError that says what is wrong."""
    if not ids:
        return NamedTools()
    by_name = {tool.name: tool.name for tool in others}
    tools, references = [], []
    for tool_id in ids:
        try:
            registered = find(entries(), tool_id)
            check_trusted(registered.entry)
        except (NotFoundError, RefusedError) as exc:
            raise ValueError(f"tool_ids: {exc}") from exc
        name = registered.tool.name
        if name in by_name:
            raise ValueError(
                f"tool_ids: {by_name[name]} and {tool_id} are both called {name}; a call could mean either"
            )
        by_name[name] = tool_id
        tools.append(registered.tool)
        references.append(reference(tool_id, registered.entry))
    return NamedTools(tuple(tools), tuple(references))


def reference(tool_id: str, entry: ToolState) -> str:
    """Return ID@DIGEST of what is trusted of an entry."""
    return f"{tool_id}@{'' if entry.accepted is None else entry.accepted.digest[:DIGITS]}"
