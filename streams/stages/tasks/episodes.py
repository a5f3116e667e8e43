"""Tasks that take place in an environment, which the core neither opens nor plays: a plugin does.

    NAME, settings ──► EpisodePlayer.tasks ──► train and held-out tasks              up --environment, jobs
    Task.environment ──► EpisodePlayer.playing ──► a run of its agent                agents run --environments

Without such a plugin each is refused: when a line names an environment, when it is made, when an agent is to play it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

from schemas.events import EpisodeStart, Message, RewardSource, Task, Tool
from streams.errors import SettingsError
from streams.plugins.installed import load_only
from streams.settings.model import Settings

ENVIRONMENT_AGENT = "environment"
"""The agent that loops model and environment."""
HELD_OUT_TASKS = 35
NOT_PLAYED = "no plugin that plays environments is loaded; add it to plugins.load"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpec:
    """Which episodes to make: the environment, its settings as JSON, how many to train on, and how they are played."""

    name: str
    settings: str
    count: int
    policy: str
    group_size: int
    max_turns: int | None = None
    max_tokens: int | None = None
    reward_sources: Sequence[RewardSource] = ()
    """Reward sources; empty: the environment's rewards."""
    held_out: int = HELD_OUT_TASKS
    """Number of held-out episodes for each version."""


class Episodes(NamedTuple):
    """Tasks to train on, held-out tasks for each version, and what the first episode begins with."""

    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]


class EpisodePlayer(Protocol):
    """Opens environments and plays their episodes. A plugin names its own as `episodes`."""

    trial: str
    """The command, in backticks, that plays an environment by hand."""

    def is_built_in(self, name: str) -> bool:
        """Return whether an environment of this name is built in: neither a user's code nor a name of the log."""

    def settings_to_open(self, names: Iterable[str]) -> dict[str, str]:
        """Return the settings, by dotted key, that let these references be opened."""

    def problem(self, settings: Settings, start: EpisodeStart, max_turns: int) -> str | None:
        """Return why an episode cannot be played here, or not repeated; None if it can."""

    def tasks(self, settings: Settings, spec: EpisodeSpec) -> Episodes:
        """Return the tasks of `spec`. Raises EventError if it cannot be opened, or two episodes of a seed differ."""

    def playing(
        self, settings: Settings, server: str, time_limit_s: float
    ) -> AbstractContextManager[Callable[[Task], Any]]:
        """Return, for as long as the block runs, what makes a run of a task, as the plugin that runs agents takes it.

        Raises SettingsError for `server`.
        """


class _NoEpisodes:
    trial = ""

    def is_built_in(self, name: str) -> bool:
        return False

    def settings_to_open(self, names: Iterable[str]) -> dict[str, str]:
        return {}

    def problem(self, settings: Settings, start: EpisodeStart, max_turns: int) -> str | None:
        return f"{start.name[:80]}: {NOT_PLAYED}"

    def tasks(self, settings: Settings, spec: EpisodeSpec) -> Episodes:
        raise SettingsError(f"environment {spec.name[:80]}: {NOT_PLAYED}")

    def playing(
        self, settings: Settings, server: str, time_limit_s: float
    ) -> AbstractContextManager[Callable[[Task], Any]]:
        raise SettingsError(NOT_PLAYED)


def is_played() -> bool:
    """Return whether a loaded plugin plays environments. Raises SettingsError for two."""
    return not isinstance(episode_player(), _NoEpisodes)


@cache
def episode_player() -> EpisodePlayer:
    """Return that of the loaded plugins; without one, it refuses every environment. Raises SettingsError for two."""
    player: EpisodePlayer = (load_only(lambda plugin: plugin.episodes, "play environments") or _NoEpisodes)()
    return player


def name_of_episode(name: str, seed: int) -> Message:
    """Return the message of a task for which the environment shows the rest."""
    return Message(role="user", content=f"{name}, seed {seed}")
