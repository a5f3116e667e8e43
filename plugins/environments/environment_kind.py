"""Kinds of references that another plugin opens, in this process: it names no user's code and no server.

KIND:REST, settings ──► the plugin's EnvironmentKind ──► pin: what else the episode depends on ──► open
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from plugins.environments.episodes.environment import Environment
from streams.plugins.installed import extensions

if TYPE_CHECKING:
    from streams.settings.model import Settings


class EnvironmentKind(NamedTuple):
    """A kind, which a plugin adds by `extends={"environments": …}`. Both functions may raise any StreamwardError."""

    name: str
    """Before the colon."""
    open: Callable[[Settings, str, dict[str, Any]], Environment]
    """Takes the reference and its settings."""
    pin: Callable[[Settings, str, dict[str, Any]], dict[str, Any]]
    """Returns the settings with what the log has now, so that the episode is the same later."""


def kind_of(name: str) -> EnvironmentKind | None:
    """Return the kind of a reference; None if no plugin opens it."""
    before, colon, _ = name.partition(":")
    kinds = (each for each in extensions("environments") if isinstance(each, EnvironmentKind))
    return next((kind for kind in kinds if colon and kind.name == before), None)
