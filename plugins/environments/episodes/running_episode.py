"""One episode, step by step; everything that an environment returns is checked.

    begin() ──► Observation, and its digest ──► act(action) ──► StepResult, and its record for the log ──► … ──► over

Pure: the same environment, seed and actions give the same results. An agent that plays an episode and a replay from the
log both use this, so they see the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from typing import TypeVar

from plugins.environments.episodes.environment import Action, Environment, EpisodeError, Observation, StepResult, digest
from schemas.events import MAX_REWARD, Message, Observed, Task
from streams.processes.worker_pipe import describe_exception

MAX_OBSERVATION = 256 * 1024
"""Most bytes, as JSON, of one observation: it becomes part of a prompt."""
T = TypeVar("T")


class LiveEpisode:
    """An environment in one episode."""

    def __init__(self, environment: Environment, name: str, seed: int, max_turns: int) -> None:
        """`name`: of the environment in tasks. After `max_turns` actions the episode is cut off."""
        self._environment, self._name, self._seed, self._max_turns = environment, name, seed, max_turns
        self._observed: Observed | None = None
        self.turns = 0
        """Actions so far."""
        self.is_over = False
        self.success: bool | None = None
        """Whether the goal was reached; None while that is open, and where the environment does not say."""

    @property
    def observed(self) -> Observed:
        """The last observation, as the log records it."""
        assert self._observed is not None, "call begin first"  # noqa: S101 - a mistake of the caller
        return self._observed

    def begin(self) -> Observation:
        """Return the first observation. Raises EpisodeError."""
        observation = _run(self._name, "reset", lambda: self._environment.reset(self._seed))
        self._check(observation)
        if not observation.messages:
            raise EpisodeError(f"{self._name}: reset shows no message; a prompt needs one", reason="bad_result")
        self._observed = Observed(environment=self._full_name(), seed=self._seed, digest=digest(observation))
        return observation

    def act(self, action: Action) -> StepResult:
        """Return the result of an action. Raises EpisodeError."""
        if self._observed is None or self.is_over:
            state = "is over" if self.is_over else "has not begun"
            raise EpisodeError(f"{self._name}: an action, and the episode {state}", reason="bad_result")
        result = _run(self._name, "step", lambda: self._environment.step(action))
        if not isinstance(result, StepResult):
            raise _wrong(self._name, "step", "a StepResult", result)
        self._check(result.observation)
        _check_numbers(self._name, result)
        self.turns += 1
        if self.turns >= self._max_turns and not result.is_over:
            result = replace(result, truncated=True)
        if result.truncated and not result.terminated and result.success is None:
            result = replace(result, success=False)
        self.is_over, self.success = result.is_over, result.success
        self._observed = Observed(
            environment=self._full_name(),
            seed=self._seed,
            digest=digest(result.observation),
            tool=result.tool,
            ok=result.ok,
            reward=None if result.reward is None else float(result.reward),
        )
        return result

    def close(self) -> None:
        """Release the session of an environment that has one on a server; its process ends where that fails."""
        if end := getattr(self._environment, "end_session", None):
            with contextlib.suppress(EpisodeError):
                end()

    def _full_name(self) -> str:
        return f"{self._name}@{self._environment.version}"

    def _check(self, observation: Observation) -> None:
        """Raises EpisodeError: bad_result, too_large."""
        if not isinstance(observation, Observation):
            raise _wrong(self._name, "reset", "an Observation", observation)
        if not all(
            isinstance(message, Message) and isinstance(message.content, str) for message in observation.messages
        ):
            raise _wrong(self._name, "the observation", "messages whose content is text", observation.messages)
        try:
            size = len(json.dumps([asdict(message) for message in observation.messages], ensure_ascii=False).encode())
        except (TypeError, ValueError) as exc:  # half of a surrogate pair is a UnicodeError, which is a ValueError
            raise EpisodeError(f"{self._name}: its observation cannot be stored: {exc}", reason="bad_result") from exc
        if size > MAX_OBSERVATION:
            message = f"{self._name}: an observation of {size} bytes, expected at most {MAX_OBSERVATION}; show less"
            raise EpisodeError(message, reason="too_large")


def begin_task(episode: LiveEpisode, task: Task) -> Observation:
    """Begin the episode of a task, and return all that its first call reads: what the environment shows, or of a fork
    the recorded conversation, whose actions it repeats.

    Raises EpisodeError; with the reason not_repeatable if it shows something else than is recorded.
    """
    first = episode.begin()
    if task.fork is None:
        return first
    _compare(task, 0, first.messages)
    place, turn = len(first.messages), 0
    while place < len(task.messages):
        if episode.is_over:
            raise _not_repeatable(task, f"it is over after {turn} actions")
        reply = task.messages[place]
        shown = episode.act(Action(reply.content, reply.tool_calls)).observation.messages
        place, turn = place + 1, turn + 1
        is_replaced = task.fork.mode == "tool_result" and turn == task.fork.turn
        if not is_replaced:
            _compare(task, place, shown, turn)
        place += len(shown)
    if turn != task.fork.turn or episode.is_over:
        raise _not_repeatable(task, f"its {turn} recorded actions lead to another turn")
    return Observation(task.messages, first.tools)


def _compare(task: Task, place: int, shown: Sequence[Message], turn: int = 0) -> None:
    """Raise EpisodeError unless these messages are recorded at this place of a task's conversation."""
    recorded = task.messages[place : place + len(shown)]
    if tuple(shown) != recorded:
        differ = next((pair for pair in zip_longest(shown, recorded) if pair[0] != pair[1]), (None, None))
        now, then = ("nothing" if message is None else repr(message.content[:80]) for message in differ)
        raise _not_repeatable(task, f"before turn {turn} it shows {now}, and showed {then}")


def _not_repeatable(task: Task, difference: str) -> EpisodeError:
    name = "" if task.environment is None else task.environment.name
    text = (
        f"{name}: its recorded actions do not lead to turn {0 if task.fork is None else task.fork.turn}: {difference}"
    )
    return EpisodeError(f"{text}; fork only runs of environments that repeat themselves", reason="not_repeatable")


def play(episode: LiveEpisode, actions: Iterable[Action]) -> list[StepResult]:
    """Return the results of actions, up to the end of the episode, which has begun. Raises EpisodeError."""
    results: list[StepResult] = []
    for action in actions:
        if episode.is_over:
            break
        results.append(episode.act(action))
    return results


def _run(name: str, method: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except EpisodeError:
        raise
    except Exception as exc:  # an environment's own code may raise anything
        raise EpisodeError(f"{name}: {describe_exception(method, exc)}", reason="exception") from exc


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


def _wrong(name: str, field: str, expected: str, value: object) -> EpisodeError:
    return EpisodeError(f"{name}: {field}: expected {expected}, got {repr(value)[:80]}", reason="bad_result")
