"""An environment of one's own, in the plain words of Gymnasium: texts instead of messages, five results, an info.

    reset(seed) -> text | (text, info)          step(action) -> text, reward, terminated, truncated, info

`info` may have `success`, `ok` and `tool`; anything else in it is ignored. What returns Shown and StepResult already is
passed through. What is neither is refused, by name.
"""

from __future__ import annotations

from typing import Any

from schemas.events import Message, Tool
from streams.environments.episodes.environment import Action, EpisodeError, Shown, StepResult


class AdaptedEnvironment:
    """Wraps an object with `version`, `reset` and `step`."""

    def __init__(self, name: str, inner: Any) -> None:
        """Raises EpisodeError(bad_result) if it is no environment."""
        self._name, self._inner = name, inner
        version = getattr(inner, "version", None)
        missing = [what for what in ("reset", "step") if not callable(getattr(inner, what, None))]
        if missing or not isinstance(version, str) or not version:
            lacks = missing[0] if missing else 'version, e.g. version = "1"'
            raise EpisodeError(f"{name} is no environment: it has no {lacks}", reason="bad_result")
        self.version = version

    def reset(self, seed: int) -> Shown:
        """Return what is shown first. Raises EpisodeError(bad_result), or what the environment raises."""
        given = self._inner.reset(seed)
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict):
            given = given[0]
        return self._shown(given, "reset")

    def step(self, action: Action) -> StepResult:
        """Return what came of the action. Raises as `reset`."""
        given = self._inner.step(action)
        if isinstance(given, StepResult):
            return given
        if not (isinstance(given, tuple) and len(given) == 5 and isinstance(given[4], dict)):
            expected = "a StepResult, or (observation, reward, terminated, truncated, info)"
            raise EpisodeError(f"{self._name}: step: expected {expected}, got {repr(given)[:80]}", reason="bad_result")
        observation, reward, terminated, truncated, info = given
        return StepResult(
            self._shown(observation, "step"),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            tool=info.get("tool"),
            ok=info.get("ok", True),
            success=info.get("success"),
        )

    def _shown(self, given: Any, what: str) -> Shown:
        if isinstance(given, Shown):
            return given
        if isinstance(given, str):
            tools = tuple(getattr(self._inner, "tools", ())) if what == "reset" else ()
            if all(isinstance(tool, Tool) for tool in tools):
                return Shown((Message(role="user", content=given),), tools)
        if isinstance(given, tuple | list) and all(isinstance(one, Message) for one in given):
            return Shown(tuple(given))
        expected = "a text, messages, or a Shown"
        raise EpisodeError(f"{self._name}: {what}: expected {expected}, got {repr(given)[:80]}", reason="bad_result")
