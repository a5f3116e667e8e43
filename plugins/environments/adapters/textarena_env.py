"""A game of TextArena for one player.

    textarena:GuessTheNumber-v0 ──► reset(num_players=1, seed) ──► get_observation ──► step(text) ──► close: the reward

TextArena seeds Python's global generator, so each episode has its own process. The reward comes at the end; a game is
won if it is above 0, as in TextArena.
"""

from __future__ import annotations

import random
from typing import Any

import textarena

from plugins.environments.episodes.environment import Action, EpisodeError, Observation, StepResult
from schemas.events import Message


class TextArenaEnvironment:
    """Wraps `textarena.make(game)`."""

    def __init__(self, game: str, **settings: Any) -> None:
        """`settings` are arguments of `textarena.make`. Raises EpisodeError(unknown_environment)."""
        self._name, self._settings = game, settings
        self._game = self._new()
        self.version = str(textarena.__version__)

    def reset(self, seed: int) -> Observation:
        """Begin a game."""
        self._game = self._new()  # a second reset of one object may show the rest of the first game
        random.seed(seed)  # a game may draw before it seeds
        self._game.reset(num_players=1, seed=seed)
        return self._observation()

    def step(self, action: Action) -> StepResult:
        """Make a move."""
        done, _ = self._game.step(action=action.text)
        ok = not self._game.state.made_invalid_move
        if not done:
            return StepResult(self._observation(), reward=0.0, ok=ok)
        rewards, game_info = self._game.close()
        reward = float((rewards or {}).get(0, 0.0))
        reason = str(game_info.get(0, {}).get("reason", "the game is over"))
        observation = Observation((Message(role="user", content=reason),))
        lost_by_error = bool(game_info.get(0, {}).get("invalid_move"))
        return StepResult(observation, reward, terminated=True, ok=ok and not lost_by_error, success=reward > 0)

    def _new(self) -> Any:
        """Return the game itself, without the wrappers that repeat earlier observations."""
        try:
            game = textarena.make(self._name, **self._settings)
        except (ValueError, KeyError) as exc:
            raise EpisodeError(f"textarena:{self._name}: {exc}", reason="unknown_environment") from exc
        while isinstance(game, textarena.Wrapper):
            game = game.env
        return game

    def _observation(self) -> Observation:
        _, observation = self._game.get_observation()
        text = observation if isinstance(observation, str) else "\n".join(part[1] for part in observation)
        return Observation((Message(role="user", content=text),))
