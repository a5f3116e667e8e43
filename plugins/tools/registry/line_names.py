"""What a task's line names of the registry: tools by their ids, and an environment by the name of its entry.

tool_ids ──► their descriptions, after the task's own tools          environment ──► the entry's, with its settings
ID@DIGEST of each ──► references of the task
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plugins.environments.environment_step import NamedEnvironment
from plugins.tools.registry.named_tools import NamedTools, named_tools, reference
from plugins.tools.registry.tool_log import ToolLog, existing
from plugins.tools.registry.tool_state import ToolState, check_trusted
from schemas.events import Task
from streams.access.tenants.tenant_names import named, own_of
from streams.errors import NotFoundError
from streams.stages.tasks.line_steps import CompletedTask, LineStep, Registries


class ToolIdsStep(LineStep):
    """Completes `tool_ids`."""

    def entries(self) -> Mapping[str, ToolState]:
        """Return the entries that the sender may name. Raises NotFoundError, LogError."""
        return own_of(self._tenant, existing(self._registries(ToolLog)))

    @classmethod
    def of_tenant(cls, tenant: str, value: Any) -> Any:
        return [named(tenant, tool_id) for tool_id in value]

    def find(self, value: list[str], unit: str | None) -> NamedTools:
        return named_tools(value, self.entries)

    def complete(self, task: Task, value: list[str]) -> CompletedTask:
        tools = named_tools(value, self.entries, task.tools)
        return CompletedTask(replace(task, tools=(*task.tools, *tools.tools)), tools.references)


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


ENVIRONMENT_NAMES = (environment_of_entry,)
