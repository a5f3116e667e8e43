"""Clusters that plugins offer for `--on` and `--launcher`, by name.

PLUGIN.engines ──► engines(work): names, for the options' choices ──► engine_work(name, work): imported now
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

from streams.errors import SettingsError
from streams.plugins.installed import plugin_entries
from streams.plugins.plugin import Plugin, PluginEngine

EngineWork = Literal["archive", "agents", "trainer"]
"""A kind of work, which is a field of PluginEngine."""


def engines(work: EngineWork) -> dict[str, tuple[Plugin, PluginEngine]]:
    """Return the engines for this kind of work, by name. Raises SettingsError if two plugins use the same name."""
    entries = plugin_entries(lambda plugin: plugin.engines, "engine", ())
    return {name: entry for name, entry in entries.items() if getattr(entry[1], work) is not None}


def require_package(name: str, work: EngineWork) -> None:
    """Return if the package of an engine is installed. Raises SettingsError, and says how to install it."""
    engine = _entry(name, work)[1]
    try:
        is_installed = find_spec(engine.package) is not None
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        raise SettingsError(f"--on {name} needs a package that is not installed: {engine.install}")


def engine_work(name: str, work: EngineWork) -> Any:
    """Return the function that does this work on an engine. Raises SettingsError if no plugin has it."""
    plugin, engine = _entry(name, work)
    return plugin.load(getattr(engine, work))


def _entry(name: str, work: EngineWork) -> tuple[Plugin, PluginEngine]:
    entries = engines(work)
    if name not in entries:
        raise SettingsError(f"{name} is an engine of no installed plugin; installed: {', '.join(entries) or 'none'}")
    return entries[name]
