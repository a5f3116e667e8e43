"""Fields of a task's line that name something of the log: a step for each, which a plugin declares.

    Plugin.line_steps: {prompt_version: LineStep, …} ──► LineSteps: complete a task, or find what a field's value means
    a registry, as it is now or followed by a server ──► Registries ──► a step

FIELDS has their order: what a line's derived id is made of does not depend on the order in which plugins are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from schemas.events import Task
from streams.errors import EventError, NotFoundError, RefusedError, SettingsError
from streams.kafka.named_states import Registry
from streams.plugins.installed import installed_with, plugin_entries
from streams.settings.model import Settings

FIELDS = ("prompt_version", "tool_ids", "environment")
"""In the order in which they are completed."""
Registries = Callable[[type[Registry[Any, Any]]], Mapping[str, Any]]
"""Returns the states of a registry. Raises NotFoundError, LogError."""


def no_log(kind: type[Registry[Any, Any]]) -> Mapping[str, Any]:
    """Raise NotFoundError, where no log is read."""
    raise NotFoundError(f"{kind.SHAPE.label} are not read here; submit the task to the log that has them")


def log_now(settings: Settings) -> Registries:
    """Return the registries of a log as they are now; each is read once, when it is first needed."""
    states: dict[type[Registry[Any, Any]], Mapping[str, Any]] = {}

    def read(kind: type[Registry[Any, Any]]) -> Mapping[str, Any]:
        if kind not in states:
            states[kind] = kind.SHAPE.read(settings)
        return states[kind]

    return read


class CompletedTask(NamedTuple):
    """A task, with what a field names."""

    task: Task
    references: tuple[str, ...] = ()
    """Entries of registries, ID@DIGEST, for the task's metadata: described differently it is another task."""


class LineStep:
    """Completes a field of lines. Made once for each reading; a reading may be without a log."""

    def __init__(self, registries: Registries, tenant: str | None) -> None:
        """`tenant`: the sender's, which may name its own alone; None: any."""
        self._registries, self._tenant = registries, tenant

    @classmethod
    def of_tenant(cls, tenant: str, value: Any) -> Any:
        """Return a value that a tenant sends, as JSON has it, with the names that the log has for it."""
        return value

    def find(self, value: Any, unit: str | None) -> Any:
        """Return what a value means for a task, a thread or an agent; None: for all of them.

        Raises EventError, NotFoundError, RefusedError, LogError.
        """
        raise NotImplementedError

    def candidates(self, value: Any) -> Iterable[Any]:
        """Return what a value may have meant for what began earlier, the newest first. Raises EventError, LogError."""
        return ()

    def complete(self, task: Task, value: Any) -> CompletedTask:
        """Return a task with what the value of its line's field names. Raises as `find`."""
        raise NotImplementedError


class LineSteps:
    """The steps of a reading, each made when a line first needs it."""

    def __init__(self, registries: Registries = no_log, tenant: str | None = None) -> None:
        self._make = cache(lambda field: _step(field)(registries, tenant))

    def find(self, field: str, value: Any, unit: str | None) -> Any:
        """Return what a value of a field means. Raises as LineStep.find, and EventError without a step."""
        return self._make(field).find(value, unit)

    def candidates(self, field: str, value: Any) -> list[Any]:
        """Return what a value of a field may have meant, the newest first. Raises EventError, LogError."""
        return [*self._make(field).candidates(value)]

    def complete(self, field: str, task: Task, value: Any) -> CompletedTask:
        """Return a task with what the value of a field names. Raises ValueError that says what is wrong, LogError."""
        try:
            return self._make(field).complete(task, value)
        except (EventError, NotFoundError, RefusedError) as exc:
            raise ValueError(f"{field}: {exc}") from exc


def names_of_tenant(tenant: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a tenant sends, with the names that the log has for its own; None: no tenant."""
    if tenant is None:
        return dict(fields)
    steps = {name: _steps()[name] for name in FIELDS if name in fields and name in _steps()}
    return {**fields, **{name: step.of_tenant(tenant, fields[name]) for name, step in steps.items()}}


@cache
def _steps() -> dict[str, type[LineStep]]:
    """Return the step of each field that has one. Raises SettingsError for a plugin's step of an unknown field."""
    declared = plugin_entries(lambda plugin: plugin.line_steps, "line step", ())
    if unknown := declared.keys() - {*FIELDS}:
        problem = f"{', '.join(sorted(unknown))} is no field that a step completes; there are {', '.join(FIELDS)}"
        raise SettingsError(f"line_steps: {problem}")
    return {name: plugin.load(reference) for name, (plugin, reference) in declared.items()}


def _step(field: str) -> type[LineStep]:
    if field in _steps():
        return _steps()[field]
    name = installed_with(lambda plugin: field in plugin.line_steps)
    not_loaded = f"plugin {name}, which reads it, is not loaded (plugins.load)"
    raise EventError("no installed plugin reads it" if name is None else not_loaded)
