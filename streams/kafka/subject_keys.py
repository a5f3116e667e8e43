"""The keys of subjects, of the plugin that has some."""

from __future__ import annotations

from functools import partial

from schemas import key_source
from streams.errors import SettingsError
from streams.plugins.installed import load_plugins
from streams.settings.model import Settings


def use_keys(settings: Settings) -> None:
    """Seal and open with the keys of these settings; the plugin is asked when the first record needs one."""
    key_source.use_later(partial(source_of, settings))


def source_of(settings: Settings) -> key_source.KeySource | None:
    """Return the keys of these settings; None: there are none. Raises SettingsError if several plugins have some."""
    sources = [(plugin.name, plugin.load(plugin.keys)(settings)) for plugin, _, _ in load_plugins() if plugin.keys]
    in_use: dict[str, key_source.KeySource] = {name: source for name, source in sources if source is not None}
    if len(in_use) > 1:
        raise SettingsError(f"plugins {' and '.join(in_use)} have keys of subjects; load one of them (plugins.load)")
    return next(iter(in_use.values()), None)
