"""The prompt that a line names: its version, and the messages before the task's own.

{name, variables} ──► version for the thread or the task ──► PromptUse ──► before the messages
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from schemas.events import PromptUse, Task
from streams.access.tenants.tenant_names import named
from streams.prompts import prompt_use
from streams.prompts.prompt_log import PromptLog, existing
from streams.prompts.prompt_use import PromptReference
from streams.stages.tasks.line_steps import CompletedTask, LineStep
from streams.stages.tasks.task_line import PromptLine


class PromptStep(LineStep):
    """Completes `prompt_version`."""

    @classmethod
    def of_tenant(cls, tenant: str, value: Any) -> Any:
        if isinstance(value, str):
            return named(tenant, value)
        return value | {"name": named(tenant, value["name"])}

    def find(self, value: PromptLine, unit: str) -> PromptUse:
        reference = PromptReference.parse(value.name)
        version = prompt_use.resolve(existing(self._registries(PromptLog)), reference, unit)
        return prompt_use.use(version, reference, value.variables)

    def complete(self, task: Task, value: PromptLine) -> CompletedTask:
        use = self.find(value, task.thread or task.task_id)
        return CompletedTask(replace(task, prompt_version=use, messages=prompt_use.before(use, task.messages)))
