"""The names that plugins add to `streamward`.

`streamward.NAME` ──► a loaded plugin that declares NAME ──► its class; of one that is not loaded: which plugin it is
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from streams.plugins.installed import installed_with, load_plugins
from streams.plugins.plugin import Plugin


def public_names() -> dict[str, tuple[Plugin, str]]:
    """Return what loaded plugins declare, by name: the plugin, and where it is. Raises SettingsError as they load."""
    return _names(entry.plugin for entry in load_plugins())


def load_public(name: str, of_core: Sequence[str]) -> Any:
    """Return what a plugin declares under a name. Raises AttributeError that says which plugin has to be loaded."""
    names = {} if name.startswith("_") else public_names()
    if name in names:
        plugin, reference = names[name]
        return plugin.load(reference)
    owner = None if name.startswith("_") else installed_with(lambda plugin: name in _names([plugin]))
    if owner is not None:
        raise AttributeError(f"streamward.{name} is of plugin {owner}, which is not loaded (plugins.load)")
    raise AttributeError(f"no {name!r} in streamward; it has {', '.join([*of_core, *names])} and __version__")


def _names(plugins: Iterable[Plugin]) -> dict[str, tuple[Plugin, str]]:
    return {reference.partition(":")[2]: (plugin, reference) for plugin in plugins for reference in plugin.public}
