"""The prompt that a line names: its version, and the messages before the task's own.

{name, variables} ──► version for the thread or the task ──► PromptUse ──► before the messages
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from plugins.prompts.versions import prompt_use
from plugins.prompts.versions.prompt_log import PromptLog
from plugins.prompts.versions.prompt_use import PromptReference
from schemas.events import PromptUse, Task
from streams.access.tenants.tenant_names import named
from streams.errors import EventError
from streams.stages.tasks.line_steps import CompletedTask, LineStep
from streams.stages.tasks.prompted import after_prompt
from streams.stages.tasks.task_line import PromptLine


class PromptStep(LineStep):
    """Completes `prompt_version`."""

    @classmethod
    def of_tenant(cls, tenant: str, value: Any) -> Any:
        if isinstance(value, str):
            return named(tenant, value)
        return value | {"name": named(tenant, value["name"])}

    def find(self, value: PromptLine, unit: str | None) -> PromptUse:
        reference, states = PromptReference.parse(value.name), self._registries(PromptLog)
        version = prompt_use.resolve(states, reference, unit or "")
        target = states[reference.name].aliases.get(reference.alias or "")
        if unit is None and target is not None and target.version is None:
            raise EventError(
                f"{reference} is compared live by job {target.event.job_id}, and means no one version until that ends; "
                "name a version, or wait"
            )
        return prompt_use.use(version, reference, value.variables)

    def candidates(self, value: PromptLine) -> Iterator[PromptUse]:
        reference, states = PromptReference.parse(value.name), self._registries(PromptLog)
        for version in reversed(states[reference.name].versions if reference.name in states else ()):
            if reference.version in (None, version.number):
                with suppress(EventError):  # this version has other variables
                    yield prompt_use.use(version, reference, value.variables)

    def complete(self, task: Task, value: PromptLine) -> CompletedTask:
        use = self.find(value, task.thread or task.task_id)
        return CompletedTask(replace(task, prompt_version=use, messages=after_prompt(use, task.messages)))
