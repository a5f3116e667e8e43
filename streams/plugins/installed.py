"""Find the installed plugins, and load those that this process uses, each after the ones that it requires.

    plugins/NAME/__init__.py of this distribution: PLUGIN ────────────────────────┐
    entry points streamward.plugins of any other: NAME = module:PLUGIN ──► load_plugins() ──► topics, commands, …

Streamward's own plugins are the folders in `plugins`, next to `streams`: removing one removes the plugin. A `plugins`
folder in the working directory is unrelated. Older editable installs find it, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeVar

from streams.errors import SettingsError
from streams.plugins.choice import PluginChoice, current_choice, use_choice
from streams.plugins.plugin import Plugin, load_reference

GROUP, FOLDER, DISTRIBUTION = "streamward.plugins", "plugins", "streamward"
T = TypeVar("T")


class InstalledPlugin(NamedTuple):
    """A plugin and where it is from."""

    plugin: Plugin
    distribution: str
    version: str | None
    """None: Streamward's own."""


class Installation(NamedTuple):
    """An installed plugin, not imported."""

    name: str
    reference: str
    """Where its declaration is."""
    distribution: str
    version: str | None

    def load(self) -> InstalledPlugin:
        """Import its declaration. Raises SettingsError if that fails, or if it is not a Plugin."""
        plugin = load_reference(self.reference, f"plugin {self.reference} cannot be imported")
        if not isinstance(plugin, Plugin):
            raise SettingsError(f"plugin {self.reference} is a {type(plugin).__name__}, expected a Plugin")
        return InstalledPlugin(plugin, self.distribution, self.version)


@cache
def load_plugins() -> tuple[InstalledPlugin, ...]:
    """Return the plugins that this process chooses (choice.py), each after those that it requires.

    Raises SettingsError if one is not installed, cannot be imported, has the name of another, requires one that is not
    installed or not chosen, or requires itself by way of others.
    """
    choice, names = current_choice(), [installation.name for installation in installations()]
    if unknown := sorted((choice.names or set()) - set(names)):
        raise SettingsError(
            f"{choice.origin}: plugin {unknown[0]} is not installed; installed: {', '.join(names) or 'none'}"
        )
    chosen = set(names) if choice.names is None else choice.names
    return in_order(installation.load() for installation in installations() if installation.name in chosen)


def check_loaded(choice: PluginChoice) -> None:
    """Return if this process has loaded this choice; if it has loaded none, it will load this one.

    Raises SettingsError if it has loaded another: its topics are fixed by now.
    """
    if not load_plugins.cache_info().currsize:
        use_choice(choice)
        return
    names = {plugin.name for plugin, _, _ in load_plugins()}
    if names != (choice.names if choice.names is not None else {installation.name for installation in installations()}):
        raise SettingsError(
            f"{choice.origin}: plugins.load={choice.text}, and this process has {', '.join(sorted(names)) or 'none'}; "
            "it loads them once: set STREAMWARD_PLUGINS__LOAD before it starts, or use the command line's --set"
        )


def in_order(plugins: Iterable[InstalledPlugin]) -> tuple[InstalledPlugin, ...]:
    """Return plugins, each after those that it requires. Raises SettingsError as `load_plugins`."""
    by_name: dict[str, InstalledPlugin] = {}
    for entry in plugins:
        if (other := by_name.setdefault(entry.plugin.name, entry)) is not entry:
            raise SettingsError(
                f"two plugins are called {entry.plugin.name}, of {other.distribution} and {entry.distribution}; "
                "uninstall one of them"
            )
    for plugin, _, _ in by_name.values():
        if missing := [name for name in plugin.requires if name not in by_name]:
            raise SettingsError(
                f"plugin {plugin.name} requires {', '.join(missing)}, which is not installed or left out; install "
                f"it, add it to plugins.load, or leave {plugin.name} out there"
            )
    try:
        order = TopologicalSorter({name: entry.plugin.requires for name, entry in by_name.items()}).static_order()
        return tuple(by_name[name] for name in order)
    except CycleError as exc:
        raise SettingsError(f"plugins require each other in a circle: {' -> '.join(exc.args[1])}") from exc


def extensions(name: str) -> tuple[Any, ...]:
    """Return what all plugins add to the plugin of this name, in the order in which they are loaded. Raises
    SettingsError if a reference cannot be imported."""
    return tuple(item for plugin, _, _ in load_plugins() for item in plugin.load_all(plugin.extends.get(name)))


def load_only(reference_of: Callable[[Plugin], str | None], does: str) -> Any | None:
    """Return the object that one loaded plugin declares; None if none does. `does`: what it is for, `read data sets`.

    Raises SettingsError if several declare one, or if it cannot be imported.
    """
    declared = [(plugin, ref) for plugin, _, _ in load_plugins() if (ref := reference_of(plugin)) is not None]
    if len(declared) > 1:
        raise SettingsError(f"plugins {' and '.join(plugin.name for plugin, _ in declared)} both {does}")
    return declared[0][0].load(declared[0][1]) if declared else None


def installed_with(declares: Callable[[Plugin], bool]) -> str | None:
    """Return the name of an installed plugin that declares something, loaded or not; None if none does."""
    plugins = (installation.load().plugin for installation in installations())
    return next((plugin.name for plugin in plugins if declares(plugin)), None)


def plugin_entries(
    entries: Callable[[Plugin], Mapping[str, T]], noun: str, of_core: Collection[str]
) -> dict[str, tuple[Plugin, T]]:
    """Return the declarations of all plugins by name, such as their commands. Raises SettingsError if a name is
    taken."""
    by_name: dict[str, tuple[Plugin, T]] = {}
    for plugin, distribution, _ in load_plugins():
        for name, entry in entries(plugin).items():
            if name in of_core or name in by_name:
                raise SettingsError(
                    f"plugin {plugin.name}: there is another {noun} {name}; rename it, or uninstall {distribution}"
                )
            by_name[name] = (plugin, entry)
    return by_name


@cache
def installations() -> tuple[Installation, ...]:
    """Return every installed plugin: Streamward's own, then those of other distributions.

    It reads the metadata of every distribution, which takes 10 ms, so it is done once.
    """
    folder = Path(__file__).parents[2] / FOLDER
    if FOLDER not in sys.modules and (folder / "__init__.py").is_file():
        spec = spec_from_file_location(FOLDER, folder / "__init__.py", submodule_search_locations=[str(folder)])
        if spec is not None:
            sys.modules[FOLDER] = module_from_spec(spec)
    in_folder = (
        Installation(name, f"{FOLDER}.{name}:PLUGIN", DISTRIBUTION, None) for _, name, _ in iter_modules([str(folder)])
    )
    of_others = (
        Installation(point.name, f"{point.module}:{point.attr}", point.dist.name, point.dist.version)
        for point in entry_points(group=GROUP)
        if point.dist is not None
    )
    return (*in_folder, *of_others)
