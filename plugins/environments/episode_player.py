"""What the core asks about environments: their tasks, and an agent that plays them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from plugins.environments import episode_tasks
from plugins.environments.by_reference import settings_to_open
from plugins.environments.environment_kind import kind_of
from plugins.environments.environment_pool import EnvironmentPool
from plugins.environments.episodes.trial_episode import try_twice
from plugins.environments.listed import LISTED, settings_of
from plugins.environments.settings import Environments
from schemas.events import EpisodeStart, Task
from streams.errors import EventError
from streams.settings.model import Settings
from streams.stages.tasks.episodes import Episodes, EpisodeSpec

if TYPE_CHECKING:
    from plugins.agents.runs.agent_runner import AgentWork


class EnvironmentPlayer:
    """Opens listed environments here, and others in processes of their own."""

    trial = "`streamward agents environments try`"

    def is_built_in(self, name: str) -> bool:
        """Return whether an environment is listed."""
        return name in LISTED

    def settings_to_open(self, names: Iterable[str]) -> dict[str, str]:
        """Return the settings, by dotted key, that let these references be opened."""
        return {f"environments.{key}": ", ".join(parts) for key, parts in settings_to_open(names).items()}

    def problem(self, settings: Settings, start: EpisodeStart, max_turns: int) -> str | None:
        """Return why an episode cannot be played here, or not repeated; None if it can."""
        try:
            with closing(EnvironmentPool(settings.of_plugin(Environments), settings)) as pool:
                try_twice(pool.open, start, max_turns, None)
        except EventError as exc:
            return str(exc)
        return None

    def tasks(self, settings: Settings, spec: EpisodeSpec) -> Episodes:
        """Return the tasks of `spec`. Raises EpisodeError if it cannot be opened, or two episodes of a seed differ."""
        with closing(EnvironmentPool(settings.of_plugin(Environments), settings)) as pool:
            if (kind := kind_of(spec.name)) is not None:
                pinned = kind.pin(settings, spec.name, settings_of(spec.name, spec.settings))
                spec = replace(spec, settings=json.dumps(pinned, sort_keys=True))
            return episode_tasks.episodes(spec, pool.open)

    @contextmanager
    def playing(self, settings: Settings, server: str, time_limit_s: float) -> Iterator[Callable[[Task], AgentWork]]:
        """Yield the work of an agent that plays episodes. Raises SettingsError for `server`."""
        from plugins.environments.episode_agent import EpisodeAgent

        own = settings.of_plugin(Environments)
        with closing(EnvironmentPool(own, settings)) as pool:
            player = EpisodeAgent(
                server, pool.open, time_limit_s=time_limit_s, key=settings.serve.key, dead_share=own.dead_share
            )
            with closing(player):
                yield player.work
