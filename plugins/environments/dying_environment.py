"""An environment that fails on the way, for trials of what a run makes of dead sessions (`demo --break`)."""

from __future__ import annotations

import random

from plugins.environments.episodes.environment import Action, Environment, EpisodeError, Observation, StepResult


class DyingEnvironment:
    """Fails at reset or at the first step, one as often as the other."""

    def __init__(self, environment: Environment) -> None:
        self._environment, self.version = environment, environment.version
        self._dies_at_reset = random.random() < 0.5  # noqa: S311 - a trial

    def reset(self, seed: int) -> Observation:
        """Begin the episode of `seed`. Raises EpisodeError(crashed) half of the time."""
        if self._dies_at_reset:
            raise EpisodeError("environments.dead_share: it was to fail at reset", reason="crashed")
        return self._environment.reset(seed)

    def step(self, action: Action) -> StepResult:
        """Raise EpisodeError(crashed)."""
        raise EpisodeError("environments.dead_share: it was to fail at its first step", reason="crashed")
