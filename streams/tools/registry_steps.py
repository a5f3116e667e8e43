"""Tools that a line names, by their ids in the registry.

tool_ids ──► their descriptions, after the task's own tools
ID@DIGEST of each ──► references of the task
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from schemas.events import Task
from streams.access.tenants.tenant_names import named, own_of
from streams.environments.registry.named_tools import NamedTools, named_tools
from streams.environments.registry.tool_log import ToolLog, existing
from streams.environments.registry.tool_state import ToolState
from streams.stages.tasks.line_steps import CompletedTask, LineStep


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
