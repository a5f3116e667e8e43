"""The declaration of a plugin: plain data; what it refers to is imported when used.

    PLUGIN = Plugin(name=…, topics="thumbs.topics:TOPICS", commands={"thumbs": PluginCommand("thumbs.cli:thumbs", …)})

Data instead of hooks (pluggy), since all readers of a plugin need lists: topics before the first record is read,
commands for a `--help` that imports none of them. Calling a hook would import the plugin's code.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple

from streams.errors import SettingsError
from streams.references import is_reference

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NO_REFERENCES = ("name", "requires", "actions", "controllers", "faults", "groups", "metadata")
"""Fields of a declaration that name no code."""
_ACTION = re.compile(r"[a-z][a-z_]*\.[a-z][a-z_]*")
_GROUP = re.compile(r"[a-z][a-z_]*-")


@dataclass(frozen=True)
class PluginCommand:
    """A command of the command line."""

    command: str
    """Where it is: `module:name` of a click command, or of a room."""
    help: str
    """Its line in `streamward --help`: the first sentence of its docstring."""
    method: str = ""
    """For a room: the method that answers the command."""
    arguments: str = ""
    columns: str = ""
    """Then those of its RouteCommand (streams/cli/route_commands.py)."""
    section: str = "Of plugins"
    """Where `streamward --help` has it: a section that is there, or one of its own."""
    is_worker: bool = False
    """Whether it does work that the server records, until interrupted: `serve --with NAME` runs it, too."""


@dataclass(frozen=True)
class PluginExport:
    """A format of `streamward export`: batches for another trainer, or finished answers and runs."""

    encode: str
    """Where its function is: `module:name` of an `Encode` (trainer/export/export_batches.py), or of `runs` of one that
    yields the lines of a `Finished` (streams/tools/query/finished.py) as objects."""
    help: str
    """Its words in the help of --format."""
    of: Literal["batches", "runs"] = "batches"
    options: tuple[str, ...] = ()
    """Names in OPTIONS that the function takes as keywords."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why it does not take another option, by name."""

    OPTIONS: ClassVar = ("ranks",)
    """Options of the command that only some formats take."""

    def __post_init__(self) -> None:
        """Raise SettingsError for an option that the command does not have."""
        if unknown := {*self.options, *self.refused} - {*self.OPTIONS}:
            raise SettingsError(
                f"export of {self.encode}: no option {', '.join(sorted(unknown))}; there are {', '.join(self.OPTIONS)}"
            )


@dataclass(frozen=True, kw_only=True)
class PluginEngine:
    """A cluster that work is sent to with `--on NAME` or `--launcher NAME`: where each kind of work is, `module:name`.

    A kind of work may be None; the engine's name is then no choice of the option for it.
    """

    help: str
    """A line for the help of the option: where the cluster is found."""
    package: str
    """The module that it needs, which may be missing: `ray.data`."""
    install: str
    """How to install it: `pip install 'streamward[ray]'`."""
    archive: str | None = None
    """Replays and exports: a function without arguments that yields a streams.tools.spread.ArchiveEngine."""
    agents: str | None = None
    """Stream workers: runs `streamward WORDS` as several agents; takes AppContext, words, their number."""
    trainer: str | None = None
    """The trainer's ranks: runs `streamward WORDS` as trainer.processes ranks; takes AppContext, words, a Place."""


class Companion(NamedTuple):
    """A process that `demo` starts with the loop; the demo continues without it."""

    words: tuple[str, ...]
    """Options and command of `streamward`."""
    message: str
    """A line for the user of the demo."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """One optional part."""

    name: str
    """The name of its folder or entry point."""
    requires: tuple[str, ...] = ()
    """Other plugins, by name."""
    topics: str | None = None
    """Where its topics are: `module:name` of a tuple of TopicShape."""
    commands: Mapping[str, PluginCommand] = field(default_factory=dict)
    """By name, as `queues`; a command of an existing group has all names, as `adapters import`."""
    exports: Mapping[str, PluginExport] = field(default_factory=dict)
    """Formats of `streamward export`, by name."""
    settings: str | None = None
    """Where its section of the settings is, which has its name: `module:name` of a Section
    (streams/settings/model.py)."""
    rooms: str | None = None
    """Where its routes are: `module:name` of a tuple of rooms (gateway/http/route.py). `serve` makes each with its
    settings and its log (gateway/log/open_log.py)."""
    serves: str | None = None
    """Where its part of the server is, if it has more than rooms: `module:name` of a ServerPart
    (gateway/log/server_part.py)."""
    views: str | None = None
    """Where its SQL views are: `module:name` of a tuple of SqlView."""
    lists: str | None = None
    """Where its lists are, which people are shown: `module:name` of a tuple of ViewList
    (streams/tools/query/view_list.py)."""
    recounts: str | None = None
    """Where the audit's recounts of what it writes are: `module:name` of a tuple of SubjectRecount."""
    remakes: str | None = None
    """Where that is which makes versions again that no batch made, for `reproduce`: `module:name` of a tuple of Remake
    (trainer/reproduce/recorded.py)."""
    line_steps: Mapping[str, str] = field(default_factory=dict)
    """Fields of a task's line that it completes, as `prompt_version`: `module:name` of a LineStep
    (streams/stages/tasks/line_steps.py)."""
    gates: str | None = None
    """Where its gates are, which say what must not be trained on: `module:name` of a tuple of TrainingGate
    (streams/rows/training_gate.py)."""
    datasets: str | None = None
    """Where its reader of data sets is: `module:name` of a DatasetReader (streams/tools/dataset_reader.py)."""
    generators: str | None = None
    """Where its families of generated tasks are: `module:name` of a mapping of TaskFamily by name
    (streams/stages/tasks/generators.py)."""
    agents: str | None = None
    """Where the registered agents are read: `module:name` of an AgentRegistry
    (streams/stages/agents/registered_agents.py)."""
    episodes: str | None = None
    """Where that is which opens environments and plays their episodes: `module:name` of an EpisodePlayer
    (streams/stages/tasks/episodes.py)."""
    sampling: str | None = None
    """Where its step in front of the engine is: `module:name` of a StepBuilder (streams/engines/sampling_step.py)."""
    keys: str | None = None
    """Where the keys are that persons' words are sealed with: `module:name` of a function that takes the settings and
    returns a KeySource (schemas/key_source.py), or None if nothing is to be sealed."""
    version_gate: str | None = None
    """Where its gate of versions is, which holds one back: `module:name` of a GateBuilder
    (streams/evaluation/version_gates.py)."""
    guard: str | None = None
    """Where its guard of calls and answers is: `module:name` of a GuardBuilder
    (streams/stages/agents/recording/call_guard.py)."""
    task_guard: str | None = None
    """Where its guard of tasks and their answers is: `module:name` of a TaskGuardBuilder
    (streams/engines/task_guard.py)."""
    checks: str | None = None
    """Where its checks for `doctor` are: `module:name` of a function that takes the settings and yields DoctorFindings
    (streams/tools/doctor.py)."""
    metrics: str | None = None
    """Where its metrics are: `module:name` of a tuple of Metric (streams/observability/catalog.py)."""
    alerts: str | None = None
    """Where its alerts are, about its metrics: `module:name` of a tuple of Alert
    (streams/observability/grafana/alerts.py)."""
    actions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rights of its own, as `thumbs.give`, with the roles that have them; admin has all."""
    public: tuple[str, ...] = ()
    """What a user's code imports of it from `streamward`: `module:name` of classes and functions."""
    engines: Mapping[str, PluginEngine] = field(default_factory=dict)
    """Clusters, by the name that `--on` has for them."""
    companions: Mapping[str, str] = field(default_factory=dict)
    """Processes that `demo` starts with the loop, by name: `module:name` of a function that takes the settings and
    returns a Companion."""
    toolsets: Mapping[str, str] = field(default_factory=dict)
    """Sets of tools that MCP offers, at /mcp/NAME, by name: `module:name` of a ToolBox (gateway/mcp/toolbox.py)."""
    controllers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Processes of a loop that waits for other work (`up` without tasks), by name: the words of their commands."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """Parts that `demo --break PART=SHARE` breaks: the setting, by dotted key, that has the share."""
    groups: tuple[str, ...] = ()
    """What the names of its consumer groups begin with, as `curate-`; no tenant's name does."""
    extends: Mapping[str, str] = field(default_factory=dict)
    """What it adds to other plugins, by their name: `module:name` of a tuple of what that plugin describes. Without
    that plugin it is not loaded."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Keys that it may add to the metadata of groups, with their meaning; the audit names any other."""

    def __post_init__(self) -> None:
        """Raise SettingsError for an invalid name or reference."""
        if not _NAME.fullmatch(self.name):
            raise SettingsError(f"plugin {self.name!r}: expected a name of small letters, digits and _")
        if unusable := [action for action in self.actions if not _ACTION.fullmatch(action)]:
            raise SettingsError(f"plugin {self.name}: action {unusable[0]!r}: expected two words, as in thumbs.give")
        if unusable := [group for group in self.groups if not _GROUP.fullmatch(group)]:
            raise SettingsError(f"plugin {self.name}: group {unusable[0]!r}: expected a word and a dash, as in curate-")
        if wrong := [reference for reference in self.references() if not is_reference(reference)]:
            raise SettingsError(f"plugin {self.name}: {', '.join(wrong)} is not of the form module:name")

    def references(self) -> Iterator[str]:
        """Yield everything that it names as `module:name`."""
        for each in fields(self):
            if each.name not in _NO_REFERENCES:
                yield from _references(getattr(self, each.name))

    def load_all(self, reference: str | None) -> tuple[Any, ...]:
        """Return the items of the tuple that a reference names; empty for None. Raises SettingsError as `load`."""
        return () if reference is None else tuple(self.load(reference))

    def load(self, reference: str) -> Any:
        """Return the object of one of its references. Raises SettingsError if it cannot be imported."""
        return load_reference(reference, f"plugin {self.name}: {reference} cannot be loaded")


def _references(value: Any) -> Iterator[str]:
    """Yield the references in a field of a declaration."""
    match value:
        case str():
            yield value
        case PluginCommand():
            yield value.command
        case PluginExport():
            yield value.encode
        case PluginEngine():
            yield from filter(None, (value.archive, value.agents, value.trainer))
        case Mapping() | tuple():
            for one in value.values() if isinstance(value, Mapping) else value:
                yield from _references(one)


def load_reference(reference: str, problem: str) -> Any:
    """Return the object `module:name`. Raises SettingsError that begins with `problem` if it cannot be imported."""
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as exc:  # third-party code may raise anything while it is imported
        raise SettingsError(f"{problem} ({type(exc).__name__}: {exc}). Update its package, or uninstall it") from exc
