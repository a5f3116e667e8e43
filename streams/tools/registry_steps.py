"""Tools and an environment that a line names, by their entries in the registry.

tool_ids ──► their descriptions, after the task's own tools       environment: a name without a colon, not listed
ID@DIGEST of each ──► references of the task                      ──► the entry's environment, with its settings
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from schemas.events import EpisodeStart, Task
from streams.access.tenants.tenant_names import named, own_of
from streams.environments.listed import LISTED
from streams.environments.registry.named_tools import NamedTools, named_environment, named_tools, reference
from streams.environments.registry.tool_log import ToolLog, existing
from streams.environments.registry.tool_state import ToolState
from streams.errors import EventError
from streams.stages.tasks.line_steps import CompletedTask, LineStep
from streams.stages.tasks.task_line import EnvironmentLine, json_of


class _RegistryStep(LineStep):
    def entries(self) -> Mapping[str, ToolState]:
        """Return the entries that the sender may name. Raises NotFoundError, LogError."""
        return own_of(self._tenant, existing(self._registries(ToolLog)))


class ToolIdsStep(_RegistryStep):
    """Completes `tool_ids`."""

    @classmethod
    def of_tenant(cls, tenant: str, value: Any) -> Any:
        return [named(tenant, tool_id) for tool_id in value]

    def find(self, value: list[str], unit: str) -> NamedTools:
        return named_tools(value, self.entries)

    def complete(self, task: Task, value: list[str]) -> CompletedTask:
        tools = named_tools(value, self.entries, task.tools)
        return CompletedTask(replace(task, tools=(*task.tools, *tools.tools)), tools.references)


class EnvironmentStep(_RegistryStep):
    """Completes `environment`."""

    @classmethod
    def of_tenant(cls, tenant: str, value: Any) -> Any:
        return value | {"name": named(tenant, value["name"])} if _may_be_entry(value["name"]) else value

    def find(self, value: EnvironmentLine, unit: str) -> ToolState | None:
        """Return the entry of a name; None if it is none of the registry."""
        return named_environment(value.name, self.entries) if _may_be_entry(value.name) else None

    def complete(self, task: Task, value: EnvironmentLine) -> CompletedTask:
        settings, entry = json_of(value.settings), self.find(value, task.task_id)
        if entry is None or entry.environment is None:
            return CompletedTask(
                replace(task, environment=EpisodeStart(name=value.name, settings=settings, seed=value.seed))
            )
        if settings != "{}":
            raise EventError(f"{value.name} is registered with its settings; leave settings out")
        turns = task.max_turns if task.max_turns is not None or entry.added is None else entry.added.max_turns
        start = replace(entry.environment, seed=value.seed)
        return CompletedTask(replace(task, environment=start, max_turns=turns), (reference(entry.tool_id, entry),))


def _may_be_entry(name: str) -> bool:
    return name not in LISTED and ":" not in name
