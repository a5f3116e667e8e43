"""Environments by reference, for the worker process alone: what is opened here may run anybody's code.

module:Class     one's own: a class with `version`, `reset(seed)` and `step(action)`
gymnasium:ID     an environment that Gymnasium knows        gymnasium_env.py
textarena:ID     a game of TextArena for one player         textarena_env.py
"""

from __future__ import annotations

import importlib
from typing import Any

from streams.environments.adapted import AdaptedEnvironment
from streams.environments.protocol import Environment, EpisodeError

ADAPTERS = {
    "gymnasium": ("streams.environments.gymnasium_env", "GymnasiumEnvironment"),
    "textarena": ("streams.environments.textarena_env", "TextArenaEnvironment"),
}
"""Module and class of each kind of reference that is not one's own."""


def is_reference(name: str) -> bool:
    """Return whether a name says where the environment comes from."""
    return ":" in name


def load(name: str, settings: dict[str, Any]) -> Environment:
    """Return the environment behind a reference, made with `settings`.

    Raises EpisodeError: unknown_environment, missing_package, bad_settings, bad_result; and whatever its code raises.
    """
    kind, _, rest = name.partition(":")
    module, attribute = ADAPTERS.get(kind, (kind, rest))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as exc:
        way_out = "install it beside Streamward, or put it on PYTHONPATH"
        if kind in ADAPTERS:
            way_out = "pip install 'streamward[environments]'"
        raise EpisodeError(f"{name} cannot be loaded: {exc}; {way_out}", reason="missing_package") from exc
    except AttributeError as exc:
        raise EpisodeError(f"module {module!r} has no class {attribute!r}", reason="unknown_environment") from exc
    try:
        if kind in ADAPTERS:
            made: Environment = found(rest, **settings)
            return made
        return AdaptedEnvironment(name, found(**settings))
    except TypeError as exc:
        raise EpisodeError(f"{name}: settings {sorted(settings)}: {exc}", reason="bad_settings") from exc
