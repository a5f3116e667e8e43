"""The sets of tools that MCP offers, by name: the server's own, and those of plugins, at /mcp/NAME.

PLUGIN.toolsets ──► toolset_names(): choices of `streamward mcp --tools`, paths of the server ──► load_toolset(name)
"""

from __future__ import annotations

from typing import Any

from streams.plugins.installed import plugin_entries
from streams.plugins.plugin import Plugin

OWN_TOOLSETS = ("log", "policy", "scoring", "control")
"""The log and operations on it, answers of a policy, scores, or jobs and versions."""


def toolset_names() -> tuple[str, ...]:
    """Return every set, the server's own first. Raises SettingsError if two have one name."""
    return (*OWN_TOOLSETS, *_of_plugins())


def load_toolset(name: str) -> Any:
    """Return the ToolBox class of a plugin's set; None for one of the server's own."""
    plugin, reference = _of_plugins().get(name, (None, ""))
    return None if plugin is None else plugin.load(reference)


def _of_plugins() -> dict[str, tuple[Plugin, str]]:
    return plugin_entries(lambda plugin: plugin.toolsets, "set of tools", OWN_TOOLSETS)
