"""A user's own environment with Gymnasium's interface: texts instead of messages, five results, an info.

    reset(seed) -> text | (text, info)          step(action) -> text, reward, terminated, truncated, info

`info` may have `success`, `ok` and `tool`; anything else in it is ignored. Observations and StepResults are passed
through. Any other result is refused, by name.
"""

from __future__ import annotations

from typing import Any

from plugins.environments.episodes.environment import Action, EpisodeError, Observation, StepResult
from schemas.events import Message, Tool


class AdaptedEnvironment:
    """Wraps an object with `version`, `reset` and `step`."""

    def __init__(self, name: str, inner: Any) -> None:
        """Raises EpisodeError(bad_result) if it is no environment."""
        self._name, self._inner = name, inner
        version = getattr(inner, "version", None)
        missing = [method for method in ("reset", "step") if not callable(getattr(inner, method, None))]
        if missing or not isinstance(version, str) or not version:
            lacks = missing[0] if missing else 'version, e.g. version = "1"'
            raise EpisodeError(f"{name} is no environment: it has no {lacks}", reason="bad_result")
        self.version = version

    def reset(self, seed: int) -> Observation:
        """Return the first observation. Raises EpisodeError(bad_result), or what the environment raises."""
        result = self._inner.reset(seed)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            result = result[0]
        return self._observation(result, "reset")

    def step(self, action: Action) -> StepResult:
        """Return the result of an action. Raises as `reset`."""
        result = self._inner.step(action)
        if isinstance(result, StepResult):
            return result
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)):
            expected = "a StepResult, or (observation, reward, terminated, truncated, info)"
            raise EpisodeError(f"{self._name}: step: expected {expected}, got {repr(result)[:80]}", reason="bad_result")
        observation, reward, terminated, truncated, info = result
        return StepResult(
            self._observation(observation, "step"),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            tool=info.get("tool"),
            ok=info.get("ok", True),
            success=info.get("success"),
        )

    def _observation(self, value: Any, method: str) -> Observation:
        if isinstance(value, Observation):
            return value
        if isinstance(value, str):
            tools = tuple(getattr(self._inner, "tools", ())) if method == "reset" else ()
            if all(isinstance(tool, Tool) for tool in tools):
                return Observation((Message(role="user", content=value),), tools)
        if isinstance(value, tuple | list) and all(isinstance(message, Message) for message in value):
            return Observation(tuple(value))
        expected = "a text, messages, or an Observation"
        raise EpisodeError(f"{self._name}: {method}: expected {expected}, got {repr(value)[:80]}", reason="bad_result")
