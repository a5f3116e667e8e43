"""One episode, step by step, with everything checked that an environment may get wrong.

    begin() ──► Shown, and its digest ──► act(action) ──► StepResult, and what the log records of it ──► … ──► ended

Pure: the same environment, seed and actions give the same results. The agent that plays an episode and whoever replays
one from the log both go through here, so they see the same bytes.
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import TypeVar

from schemas.events import MAX_REWARD, Message, Observed
from streams.environments.episodes.environment import Action, Environment, EpisodeError, Shown, StepResult, digest

MAX_SHOWN = 256 * 1024
"""Most characters, as JSON, of what is shown at once: it becomes part of a prompt."""
T = TypeVar("T")


class RunningEpisode:
    """An environment in one episode."""

    def __init__(self, environment: Environment, name: str, seed: int, max_turns: int) -> None:
        """`name`: as tasks name the environment. After `max_turns` actions the episode is cut off."""
        self._environment, self._name, self._seed, self._max_turns = environment, name, seed, max_turns
        self._observed: Observed | None = None
        self.turns = 0
        """Actions so far."""
        self.ended = False
        self.success: bool | None = None
        """Whether the goal was reached; None while that is open, and where the environment does not say."""

    @property
    def observed(self) -> Observed:
        """What was shown last, as the log records it."""
        assert self._observed is not None, "call begin first"  # noqa: S101 - a mistake of the caller
        return self._observed

    def begin(self) -> Shown:
        """Return what is shown first. Raises EpisodeError."""
        shown = self._checked(_run(self._name, "reset", lambda: self._environment.reset(self._seed)))
        if not shown.messages:
            raise EpisodeError(f"{self._name}: reset shows no message; a prompt needs one", reason="bad_result")
        self._observed = Observed(environment=self._full_name(), seed=self._seed, digest=digest(shown))
        return shown

    def act(self, action: Action) -> StepResult:
        """Return what came of an action. Raises EpisodeError."""
        if self._observed is None or self.ended:
            what = "has ended" if self.ended else "has not begun"
            raise EpisodeError(f"{self._name}: an action, and the episode {what}", reason="bad_result")
        result = _run(self._name, "step", lambda: self._environment.step(action))
        if not isinstance(result, StepResult):
            raise _wrong(self._name, "step", "a StepResult", result)
        self._checked(result.shown)
        _check_numbers(self._name, result)
        self.turns += 1
        if self.turns >= self._max_turns and not result.ended:
            result = replace(result, truncated=True)
        if result.truncated and not result.terminated and result.success is None:
            result = replace(result, success=False)
        self.ended, self.success = result.ended, result.success
        self._observed = Observed(
            environment=self._full_name(),
            seed=self._seed,
            digest=digest(result.shown),
            tool=result.tool,
            ok=result.ok,
            reward=None if result.reward is None else float(result.reward),
        )
        return result

    def _full_name(self) -> str:
        return f"{self._name}@{self._environment.version}"

    def _checked(self, shown: Shown) -> Shown:
        """Return what is shown. Raises EpisodeError: bad_result, too_large."""
        if not isinstance(shown, Shown):
            raise _wrong(self._name, "reset", "a Shown", shown)
        if not all(isinstance(message, Message) and isinstance(message.content, str) for message in shown.messages):
            raise _wrong(self._name, "what is shown", "messages whose content is text", shown.messages)
        try:
            size = len(json.dumps([asdict(message) for message in shown.messages], ensure_ascii=False).encode())
        except (TypeError, ValueError) as exc:  # half of a surrogate pair is a UnicodeError, which is a ValueError
            raise EpisodeError(f"{self._name}: what it shows cannot be stored: {exc}", reason="bad_result") from exc
        if size > MAX_SHOWN:
            what = f"it shows {size} bytes at once, expected at most {MAX_SHOWN}; show less"
            raise EpisodeError(f"{self._name}: {what}", reason="too_large")
        return shown


def play(episode: RunningEpisode, actions: Iterable[Action]) -> list[StepResult]:
    """Return the results of actions, up to the end of the episode, which has begun. Raises EpisodeError."""
    results: list[StepResult] = []
    for action in actions:
        if episode.ended:
            break
        results.append(episode.act(action))
    return results


def _run(name: str, what: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except EpisodeError:
        raise
    except Exception as exc:  # an environment's own code may raise anything
        at = traceback.extract_tb(exc.__traceback__)[-1]
        said = f"{what} raised {type(exc).__name__}: {str(exc)[:1000]} ({at.filename}, line {at.lineno})"
        raise EpisodeError(f"{name}: {said}", reason="exception") from exc


def _check_numbers(name: str, result: StepResult) -> None:
    reward = result.reward
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise _wrong(name, "the reward", "a number or None", reward)
    if reward is not None and not (math.isfinite(reward) and abs(reward) <= MAX_REWARD):
        raise _wrong(name, "the reward", f"a finite number of at most {MAX_REWARD:g}", reward)
    for field in ("terminated", "truncated", "ok"):
        if not isinstance(getattr(result, field), bool):
            raise _wrong(name, field, "True or False", getattr(result, field))
    if result.tool is not None and not isinstance(result.tool, str):
        raise _wrong(name, "the tool", "a name or None", result.tool)
    if result.success is not None and not isinstance(result.success, bool):
        raise _wrong(name, "success", "True, False or None", result.success)


def _wrong(name: str, what: str, expected: str, got: object) -> EpisodeError:
    shown = repr(got)[:80]
    return EpisodeError(f"{name}: {what}: expected {expected}, got {shown}", reason="bad_result")
