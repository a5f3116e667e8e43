"""Entries of the registry of tools that are environments, by their names."""

from __future__ import annotations

from plugins.environments.environment_step import NamedEnvironment
from streams.environments.registry.named_tools import reference
from streams.environments.registry.tool_log import ToolLog, existing
from streams.environments.registry.tool_state import check_trusted
from streams.errors import NotFoundError
from streams.stages.tasks.line_steps import Registries


def environment_of_entry(name: str, registries: Registries) -> NamedEnvironment | None:
    """Return the environment of an entry; None if none has this name. Raises RefusedError, LogError."""
    try:
        entry = existing(registries(ToolLog)).get(name)
    except NotFoundError:
        return None
    if entry is None or entry.environment is None:
        return None
    check_trusted(entry)
    turns = None if entry.added is None else entry.added.max_turns
    return NamedEnvironment(entry.environment, turns, reference(name, entry))


NAMES = (environment_of_entry,)
