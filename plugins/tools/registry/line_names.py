"""What a task's line names of the registry: tools by their ids, and an environment by the name of its entry.

    tool_ids ──► entries as they are now, if they are trusted ──► descriptions, after the task's own tools
    environment ──► the entry's, with its settings                       ID@DIGEST of each entry ──► metadata

A task contains the descriptions themselves, so it keeps what the policy read, whatever the server returns later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plugins.environments.environment_step import NamedEnvironment
from plugins.tools.registry.tool_log import ToolLog
from plugins.tools.registry.tool_state import ToolState, check_trusted, find
from schemas.events import Task
from streams.access.tenants.tenant_names import named, own_of
from streams.errors import EventError, NotFoundError
from streams.stages.tasks.line_steps import CompletedTask, LineStep, Registries

DIGITS = 16
"""Of a digest, in metadata."""


class ToolIdsStep(LineStep):
    """Completes `tool_ids`."""

    @classmethod
    def of_tenant(cls, tenant: str, value: Any) -> Any:
        return [named(tenant, tool_id) for tool_id in value]

    def complete(self, task: Task, value: list[str]) -> CompletedTask:
        entries = own_of(self._tenant, self._registries(ToolLog))
        by_name = {tool.name: tool.name for tool in task.tools}
        tools, references = [*task.tools], []
        for tool_id in value:
            _, tool, entry = find(entries, tool_id)
            check_trusted(entry)
            if (other := by_name.get(tool.name)) is not None:
                raise EventError(f"{other} and {tool_id} are both called {tool.name}; a call could mean either")
            by_name[tool.name] = tool_id
            tools.append(tool)
            references.append(reference(tool_id, entry))
        return CompletedTask(replace(task, tools=tuple(tools)), tuple(references))


def environment_of_entry(name: str, registries: Registries) -> NamedEnvironment | None:
    """Return the environment of an entry; None if none has this name. Raises RefusedError, LogError."""
    try:
        entry = registries(ToolLog).get(name)
    except NotFoundError:
        return None
    if entry is None or entry.environment is None:
        return None
    check_trusted(entry)
    turns = None if entry.added is None else entry.added.max_turns
    return NamedEnvironment(entry.environment, turns, reference(name, entry))


ENVIRONMENT_NAMES = (environment_of_entry,)


def reference(tool_id: str, entry: ToolState) -> str:
    """Return ID@DIGEST of what is trusted of an entry."""
    return f"{tool_id}@{'' if entry.accepted is None else entry.accepted.digest[:DIGITS]}"
