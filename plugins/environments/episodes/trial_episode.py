"""Try an environment before tasks name it: play the same episode from one seed several times.

    environment, seed, actions ──► three episodes ──► equal, byte for byte? ──► the steps of the first, or EpisodeError

An environment that passes for one seed and these actions may still not be deterministic; one that fails is not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from plugins.environments.episodes.environment import Action, Environment, EpisodeError, Observation, StepResult
from plugins.environments.episodes.running_episode import LiveEpisode
from schemas.events import EpisodeStart, Observed
from streams.engines.rendering.handwritten_calls import read_handwritten

WORDS = ("left", "right", "yes", "no", "stop", "red", "up", "down")
"""Of random actions, besides numbers."""


class TrialEpisode:
    """The observations and results of an episode, step by step."""

    def __init__(
        self, environment: Environment, start: EpisodeStart, max_turns: int, actions: Iterable[Action]
    ) -> None:
        """Play it. Raises EpisodeError."""
        self.own_max_turns: int | None = getattr(environment, "max_turns", None)
        """The turns that are enough, if the environment says so."""
        self._episode = LiveEpisode(environment, start.name, start.seed, max_turns)
        self.observation: Observation = self._episode.begin()
        self.observed: list[Observed] = [self._episode.observed]
        self.steps: list[tuple[Action, StepResult]] = []
        for action in actions:
            if self._episode.is_over:
                break
            self.steps.append((action, self._episode.act(action)))
            self.observed.append(self._episode.observed)

    @property
    def success(self) -> bool | None:
        """Whether the goal was reached; None if that is open."""
        return self._episode.success


def try_twice(
    opens: Callable[[EpisodeStart], Environment], start: EpisodeStart, max_turns: int, actions: Iterable[Action] | None
) -> TrialEpisode:
    """Return an episode that was equal from two resets of one object and from another object.

    Without `actions` they are random, drawn from the seed. Raises EpisodeError(bad_result) where two differ.
    """
    first = opens(start)
    script = list(random_actions(start.seed, max_turns) if actions is None else actions)
    environments = (first, first, opens(start))
    episodes = [TrialEpisode(environment, start, max_turns, script) for environment in environments]
    for other in episodes[1:]:
        _check_equal(start, episodes[0], other)
    return episodes[0]


def _check_equal(start: EpisodeStart, episode: TrialEpisode, other: TrialEpisode) -> None:
    """Raise EpisodeError(bad_result) where two episodes of one seed differ."""
    for number, (before, after) in enumerate(zip(episode.observed, other.observed, strict=False)):
        if before != after:
            place = f"after action {number}" if number else "at reset"
            raise EpisodeError(
                f"{start.name}: seed {start.seed} gave two episodes that differ {place}: {before} and {after}; draw "
                "from a generator of the seed, and from nothing else",
                reason="bad_result",
            )
    if len(episode.observed) != len(other.observed):
        raise EpisodeError(f"{start.name}: seed {start.seed} gave episodes of unequal length", reason="bad_result")


def handwritten_actions(texts: Sequence[str]) -> list[Action]:
    """Return the actions of a person that writes as a policy would: text, and calls of tools."""
    replies = (read_handwritten(text, f"action {number}") for number, text in enumerate(texts, 1))
    return [Action(reply.content, reply.tool_calls) for reply in replies]


def random_actions(seed: int, count: int) -> Iterator[Action]:
    """Yield actions of many kinds, the same for the same seed."""
    rng = random.Random(seed)  # noqa: S311 - for variety
    for _ in range(count):
        yield Action(rng.choice((str(rng.randrange(10)), rng.choice(WORDS))))
