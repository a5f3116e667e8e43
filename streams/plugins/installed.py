"""Which optional parts are installed, each after those that it requires.

    plugins/NAME/__init__.py of this distribution: PLUGIN ────────────────────────┐
    entry points streamward.plugins of any other: NAME = module:PLUGIN ──► load_plugins() ──► topics, commands, …

Those of this distribution are the folders in `plugins`, next to `streams`: removing a folder removes the plugin, and
`plugins` in a working folder is another one. A checkout that was installed before there was such a folder has it, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple, TypeVar

from streams.errors import SettingsError
from streams.plugins.plugin import Plugin, load_reference

GROUP, FOLDER, OURS = "streamward.plugins", "plugins", "streamward"
T = TypeVar("T")


class InstalledPlugin(NamedTuple):
    """A plugin and where it is from."""

    plugin: Plugin
    distribution: str
    version: str | None
    """None: that of Streamward."""


@cache
def load_plugins() -> tuple[InstalledPlugin, ...]:
    """Return every plugin, each after those that it requires.

    Raises SettingsError if one cannot be imported, has the name of another, requires one that is not installed, or
    requires itself by way of others.
    """
    return in_order([*_ours(), *_others()])


def in_order(found: Iterable[InstalledPlugin]) -> tuple[InstalledPlugin, ...]:
    """Return plugins, each after those that it requires. Raises SettingsError as `load_plugins`."""
    by_name: dict[str, InstalledPlugin] = {}
    for one in found:
        if (other := by_name.setdefault(one.plugin.name, one)) is not one:
            raise SettingsError(
                f"two plugins are called {one.plugin.name}, of {other.distribution} and {one.distribution}; uninstall "
                "one of them"
            )
    for one in by_name.values():
        if missing := [name for name in one.plugin.requires if name not in by_name]:
            raise SettingsError(
                f"plugin {one.plugin.name} requires {', '.join(missing)}, which is not installed; install it, or "
                f"uninstall {one.distribution}"
            )
    try:
        order = TopologicalSorter({name: one.plugin.requires for name, one in by_name.items()}).static_order()
        return tuple(by_name[name] for name in order)
    except CycleError as exc:
        raise SettingsError(f"plugins require each other in a circle: {' -> '.join(exc.args[1])}") from exc


def plugin_entries(
    entries: Callable[[Plugin], Mapping[str, T]], noun: str, of_core: Collection[str]
) -> dict[str, tuple[Plugin, T]]:
    """Return what all plugins declare by name, such as their commands. Raises SettingsError if a name is taken."""
    by_name: dict[str, tuple[Plugin, T]] = {}
    for plugin, distribution, _ in load_plugins():
        for name, entry in entries(plugin).items():
            if name in of_core or name in by_name:
                raise SettingsError(
                    f"plugin {plugin.name}: there is another {noun} {name}; rename it, or uninstall {distribution}"
                )
            by_name[name] = (plugin, entry)
    return by_name


def _ours() -> Iterator[InstalledPlugin]:
    folder = Path(__file__).parents[2] / FOLDER
    if FOLDER not in sys.modules and (folder / "__init__.py").is_file():
        spec = spec_from_file_location(FOLDER, folder / "__init__.py", submodule_search_locations=[str(folder)])
        if spec is not None:
            sys.modules[FOLDER] = module_from_spec(spec)
    for module in iter_modules([str(folder)]):
        yield InstalledPlugin(_import(f"{FOLDER}.{module.name}:PLUGIN"), OURS, None)


def _others() -> Iterator[InstalledPlugin]:
    for point in entry_points(group=GROUP):
        plugin = _import(f"{point.module}:{point.attr}")
        if point.dist is not None:
            yield InstalledPlugin(plugin, point.dist.name, point.dist.version)


def _import(reference: str) -> Plugin:
    plugin = load_reference(reference, f"plugin {reference} cannot be imported")
    if not isinstance(plugin, Plugin):
        raise SettingsError(f"plugin {reference} is a {type(plugin).__name__}, expected a Plugin")
    return plugin
