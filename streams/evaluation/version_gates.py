"""Objections of plugins to a version, by its outcomes on the suite of held-out tasks.

    settings ──► VersionGate of each plugin that has one ──► outcomes of a candidate ──► GateFigures ──► the guard

A gate objects, or does not: it promotes nothing. What it measures and its limit are recorded with the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from schemas.events import Outcome
from streams.plugins.installed import load_plugins
from streams.settings.model import Settings


class VersionObjection(NamedTuple):
    """Why a version should not be promoted."""

    verdict: Literal["reject", "ask"]
    reason: str


class GateFigures(NamedTuple):
    """What a gate has measured."""

    objections: tuple[VersionObjection, ...]
    metrics: Mapping[str, float]
    gate: Mapping[str, str]
    """The limits in force, setting by setting."""


VersionGate = Callable[[Sequence[Outcome]], GateFigures]
"""Looks at the outcomes of a candidate, one for each task of the suite."""
GateBuilder = Callable[[Settings], VersionGate | None]
"""Builds a gate; None: the settings ask for none."""


def build_gates(settings: Settings) -> tuple[VersionGate, ...]:
    """Return the gates of all plugins that the settings ask for. Raises SettingsError."""
    builders = [plugin.load(plugin.version_gate) for plugin, _, _ in load_plugins() if plugin.version_gate is not None]
    return tuple(gate for build in builders if (gate := build(settings)) is not None)
