"""Any environment as a Gymnasium environment with texts, for Gymnasium's wrappers and checker."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from plugins.environments.episodes.environment import Action, Environment, Observation
from plugins.environments.episodes.running_episode import MAX_OBSERVATION

_PRINTABLE = frozenset(map(chr, (9, 10, 13, *range(32, 127))))


class _AnyText(spaces.Text):  # type: ignore[misc]
    """Texts of any characters; samples are printable."""

    def __init__(self) -> None:
        super().__init__(max_length=MAX_OBSERVATION, min_length=0, charset=_PRINTABLE)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= MAX_OBSERVATION


class GymnasiumView(gymnasium.Env[str, str]):  # type: ignore[misc]
    """`inner` as a gymnasium.Env. A reset without a seed draws one, as Gymnasium's own do."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as gymnasium.Env has it

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.observation_space, self.action_space = _AnyText(), spaces.Text(max_length=16, charset=_PRINTABLE)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Return the first observation as one text."""
        super().reset(seed=seed)
        episode_seed = int(self.np_random.integers(2**31)) if seed is None else seed
        return _text(self._inner.reset(episode_seed)), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return the result of a text."""
        result = self._inner.step(Action(action))
        info = {"ok": result.ok, "tool": result.tool, "success": result.success}
        return _text(result.observation), result.reward or 0.0, result.terminated, result.truncated, info


def check(environment: Environment) -> None:
    """Run Gymnasium's `check_env` on an environment. Raises what the check raises."""
    check_env(GymnasiumView(environment), skip_render_check=True)


def _text(observation: Observation) -> str:
    return "\n".join(message.content for message in observation.messages)
