"""The environment that a task's line names.

    a listed one, or a reference ──► EpisodeStart with the line's settings and seed
    a name without a colon ──► what another plugin knows by it ──► its EpisodeStart, turns and reference

A plugin adds names by `extends={"environments": "module:NAMES"}`: a tuple of NameFinder, and kinds of
references that it opens: EnvironmentKind (environment_kind.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from plugins.environments.environment_kind import EnvironmentKind
from plugins.environments.listed import LISTED
from schemas.events import EpisodeStart, Task
from streams.access.tenants.tenant_names import named
from streams.errors import EventError
from streams.plugins.installed import extensions
from streams.stages.tasks.line_steps import CompletedTask, LineStep, Registries
from streams.stages.tasks.task_line import EnvironmentLine, json_of


class NamedEnvironment(NamedTuple):
    """What a name means."""

    start: EpisodeStart
    max_turns: int | None
    """Of an episode whose task does not say it."""
    reference: str
    """ID@DIGEST, for the metadata of its tasks."""


NameFinder = Callable[[str, Registries], NamedEnvironment | None]
"""Returns what a name means in these registries; None: it is unknown. Raises RefusedError, LogError."""


class EnvironmentStep(LineStep):
    """Completes `environment`."""

    @classmethod
    def of_tenant(cls, tenant: str, value: Any) -> Any:
        return value | {"name": named(tenant, value["name"])} if _may_be_name(value["name"]) else value

    def find(self, value: EnvironmentLine, unit: str | None) -> NamedEnvironment | None:
        """Return what a name means; None for a listed environment, a reference, or a name that nobody knows."""
        if not _may_be_name(value.name):
            return None
        name = named(self._tenant, value.name)
        finders = (each for each in extensions("environments") if not isinstance(each, EnvironmentKind))
        meanings = (finder(name, self._registries) for finder in finders)
        return next((meaning for meaning in meanings if meaning is not None), None)

    def complete(self, task: Task, value: EnvironmentLine) -> CompletedTask:
        settings, meaning = json_of(value.settings), self.find(value, task.task_id)
        if meaning is None:
            start = EpisodeStart(name=value.name, settings=settings, seed=value.seed)
            return CompletedTask(replace(task, environment=start))
        if settings != "{}":
            raise EventError(f"{value.name} is registered with its settings; leave settings out")
        turns = meaning.max_turns if task.max_turns is None else task.max_turns
        start = replace(meaning.start, seed=value.seed)
        return CompletedTask(replace(task, environment=start, max_turns=turns), (meaning.reference,))


def _may_be_name(name: str) -> bool:
    return name not in LISTED and ":" not in name
