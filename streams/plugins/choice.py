"""Choose which installed plugins this process loads: `plugins.load`, the one setting that is read before all others.

    --set plugins.load  >  STREAMWARD_PLUGINS__LOAD  >  [plugins] load in streamward.toml  >  *: all

Topics, commands and the choices of options are those of the loaded plugins, and a process needs them before it can load
its settings. An unreadable value counts as not set here; streams/settings/load.py reports it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ENV_PREFIX = "STREAMWARD_"
CONFIG_FILE = "streamward.toml"
ENV_CONFIG = "STREAMWARD_CONFIG"
"""Names the file to read instead of `streamward.toml`; not a setting itself."""
SECTION, NAME = "plugins", "load"
SETTING = f"{SECTION}.{NAME}"
EVERY_PLUGIN, DEFAULT = "*", "default"


class PluginChoice(NamedTuple):
    """The value of the setting, and its source."""

    text: str
    origin: str

    @property
    def names(self) -> frozenset[str] | None:
        """The chosen names; None: all installed plugins."""
        names = frozenset(part.strip() for part in self.text.split(",") if part.strip())
        return None if EVERY_PLUGIN in names else names


def read_choice(
    file: Path | None = None, overrides: Iterable[str] = (), env: Mapping[str, str] = os.environ
) -> PluginChoice:
    """Return the choice of a process that has this settings file and these `section.key=value`."""
    for override in reversed([*overrides]):
        key, _, text = override.partition("=")
        if key == SETTING:
            return PluginChoice(text, f"--set {SETTING}")
    variable = f"{ENV_PREFIX}{SECTION}__{NAME}".upper()
    if variable in env:
        return PluginChoice(env[variable], variable)
    path = file or Path(env.get(ENV_CONFIG, CONFIG_FILE))
    in_file = _in_file(path)
    return PluginChoice(EVERY_PLUGIN, DEFAULT) if in_file is None else PluginChoice(in_file, str(path))


def _in_file(path: Path) -> str | None:
    if not path.is_file():
        return None
    import tomllib

    try:
        value = tomllib.loads(path.read_text(encoding="utf-8")).get(SECTION, {}).get(NAME)
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    return value if isinstance(value, str) else None


_command_line: list[PluginChoice] = []


def use_choice(choice: PluginChoice) -> None:
    """Let this process load this choice, unless it has loaded its plugins."""
    _command_line[:] = [choice]


def current_choice() -> PluginChoice:
    """Return the choice of this process: from its command line, else from the environment or the settings file."""
    return _command_line[0] if _command_line else read_choice()
