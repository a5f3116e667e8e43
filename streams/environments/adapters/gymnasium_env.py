"""An environment of Gymnasium as text: observations and actions are JSON.

    observation ──► render("ansi") where there is one, else JSON of the array      "2", "[0.1, -0.3]"
    text ──► an element of the action space                                        "3", "[0.5]"

An action that is no element of its space is answered by what one is, and leaves the environment where it was. The sum
of Gymnasium's rewards says nothing about a goal, so `success` is that of its info (`is_success` or `success`), if it
has one. What Gymnasium itself checks of an environment is in gymnasium_view.py.
"""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from schemas import json_text
from schemas.events import Message
from streams.environments.episodes.environment import Action, EpisodeError, Shown, StepResult


class GymnasiumEnvironment:
    """Wraps `gymnasium.make(environment_id)`."""

    def __init__(self, environment_id: str, prompt: str = "", **settings: Any) -> None:
        """`prompt` is shown first; `settings` are arguments of `gymnasium.make`.

        Raises EpisodeError: unknown_environment, bad_settings; bad_result for one that its authors call random.
        """
        try:
            made = gymnasium.make(environment_id, **settings)
        except gymnasium.error.Error as exc:
            raise EpisodeError(f"gymnasium:{environment_id}: {exc}", reason="unknown_environment") from exc
        if made.spec is not None and made.spec.nondeterministic:
            what = f"gymnasium:{environment_id} is registered as nondeterministic: one seed gives different episodes"
            raise EpisodeError(what, reason="bad_result")
        self._made, self._prompt = made, prompt
        self.version = gymnasium.__version__

    def reset(self, seed: int) -> Shown:
        """Return the first observation, behind what an action is."""
        observation, _ = self._made.reset(seed=seed)
        self._made.action_space.seed(seed)
        system = "\n".join(
            part for part in (self._prompt, f"Answer with only {_asked(self._made.action_space)}.") if part
        )
        return Shown((Message(role="system", content=system), *self._told(observation).messages))

    def step(self, action: Action) -> StepResult:
        """Take the action that the text says."""
        try:
            element = _element(self._made.action_space, action.text.strip())
        except ValueError as exc:
            return StepResult(Shown((Message(role="user", content=f"error: {exc}"),)), reward=0.0, ok=False)
        observation, reward, terminated, truncated, info = self._made.step(element)
        success = info.get("is_success", info.get("success"))
        return StepResult(
            self._told(observation),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            success=None if success is None else bool(success),
        )

    def _told(self, observation: Any) -> Shown:
        drawn = self._made.render() if self._made.render_mode == "ansi" else None
        text = drawn if isinstance(drawn, str) else json.dumps(_plain(observation))
        return Shown((Message(role="user", content=text),))


def _plain(value: Any) -> Any:
    """Return an observation as JSON knows it; floats to six digits, so that they read the same everywhere."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _asked(space: spaces.Space[Any]) -> str:
    """Return what an element of a space is called. Raises EpisodeError(bad_settings) for a space that has no text."""
    if isinstance(space, spaces.Discrete):
        return f"a number from {space.start} to {space.start + space.n - 1}"
    if isinstance(space, spaces.Text):
        return "a text"
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
        return f"a JSON list of {int(np.prod(space.shape or (1,)))} numbers"
    raise EpisodeError(f"actions of {type(space).__name__} cannot be written as text", reason="bad_settings")


def _element(space: spaces.Space[Any], text: str) -> Any:
    """Return the element that a text says. Raises ValueError."""
    if isinstance(space, spaces.Text):
        element: Any = text
    else:
        try:
            given = json_text.parse(text)
            element = int(given) if isinstance(space, spaces.Discrete) and given == int(given) else None
            if not isinstance(space, spaces.Discrete):
                element = np.asarray(given, dtype=space.dtype).reshape(space.shape or ())
        except (TypeError, ValueError, OverflowError) as exc:
            raise ValueError(f"expected {_asked(space)}") from exc
    if element is None or not space.contains(element):
        raise ValueError(f"expected {_asked(space)}")
    return element
