"""An environment of Gymnasium as text: observations and actions are JSON.

    observation ──► render("ansi") where there is one, else JSON of the array      "2", "[0.1, -0.3]"
    text ──► an element of the action space                                        "3", "[0.5]"

An action outside its space gets an error that describes the space, and the environment does not step. The sum of
Gymnasium's rewards does not tell whether a goal was reached, so `success` comes from its info (`is_success` or
`success`), if present. Gymnasium's own check of an environment is in gymnasium_view.py.
"""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from plugins.environments.episodes.environment import Action, EpisodeError, Observation, StepResult
from schemas import json_text
from schemas.events import Message


class GymnasiumEnvironment:
    """Wraps `gymnasium.make(environment_id)`."""

    def __init__(self, environment_id: str, prompt: str = "", **settings: Any) -> None:
        """`prompt` is shown first; `settings` are arguments of `gymnasium.make`.

        Raises EpisodeError: unknown_environment, bad_settings; bad_result for one that its authors call random.
        """
        try:
            environment = gymnasium.make(environment_id, **settings)
        except gymnasium.error.Error as exc:
            raise EpisodeError(f"gymnasium:{environment_id}: {exc}", reason="unknown_environment") from exc
        if environment.spec is not None and environment.spec.nondeterministic:
            message = f"gymnasium:{environment_id} is registered as nondeterministic: one seed gives different episodes"
            raise EpisodeError(message, reason="bad_result")
        self._environment, self._prompt = environment, prompt
        self.version = gymnasium.__version__

    def reset(self, seed: int) -> Observation:
        """Return the first observation, after a description of actions."""
        observation, _ = self._environment.reset(seed=seed)
        self._environment.action_space.seed(seed)
        system = Message(role="system", content=self._system_prompt())
        return Observation((system, *self._observation(observation).messages))

    def step(self, action: Action) -> StepResult:
        """Take the action that is written in the text."""
        try:
            element = self._element(action.text)
        except ValueError as exc:
            return StepResult(Observation((Message(role="user", content=f"error: {exc}"),)), reward=0.0, ok=False)
        observation, reward, terminated, truncated, info = self._environment.step(element)
        success = info.get("is_success", info.get("success"))
        return StepResult(
            self._observation(observation),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            success=None if success is None else bool(success),
        )

    def _observation(self, observation: Any) -> Observation:
        return Observation((Message(role="user", content=self._text(observation)),))

    def _system_prompt(self) -> str:
        asked = f"Answer with only {_action_text(self._environment.action_space)}."
        return "\n".join(part for part in (self._prompt, asked) if part)

    def _element(self, text: str) -> Any:
        """Return the action that is written in a text. Raises ValueError."""
        return _element(self._environment.action_space, text.strip())

    def _text(self, observation: Any) -> str:
        rendered = self._environment.render() if self._environment.render_mode == "ansi" else None
        return rendered if isinstance(rendered, str) else json.dumps(_plain(observation))


def _plain(value: Any) -> Any:
    """Return an observation as JSON knows it; floats to six digits, so that they read the same everywhere."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _action_text(space: spaces.Space[Any]) -> str:
    """Describe the elements of a space. Raises EpisodeError(bad_settings) for a space without a text form."""
    if isinstance(space, spaces.Discrete):
        return f"a number from {space.start} to {space.start + space.n - 1}"
    if isinstance(space, spaces.Text):
        return "a text"
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
        return f"a JSON list of {int(np.prod(space.shape or (1,)))} numbers"
    raise EpisodeError(f"actions of {type(space).__name__} cannot be written as text", reason="bad_settings")


def _element(space: spaces.Space[Any], text: str) -> Any:
    """Return the element that is written in a text. Raises ValueError."""
    if isinstance(space, spaces.Text):
        element: Any = text
    else:
        try:
            value = json_text.parse(text)
            element = int(value) if isinstance(space, spaces.Discrete) and value == int(value) else None
            if not isinstance(space, spaces.Discrete):
                element = np.asarray(value, dtype=space.dtype).reshape(space.shape or ())
        except (TypeError, ValueError, OverflowError) as exc:
            raise ValueError(f"expected {_action_text(space)}") from exc
    if element is None or not space.contains(element):
        raise ValueError(f"expected {_action_text(space)}")
    return element
