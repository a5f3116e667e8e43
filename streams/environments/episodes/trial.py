"""Try an environment before tasks name it: the same episode twice from one seed, and what came of it.

    environment, seed, actions ──► two episodes ──► equal, byte for byte? ──► the steps of the first, and a verdict

What is wrong is an EpisodeError. An environment that passes for one seed and these actions is not proven to be
deterministic; one that fails is proven not to be.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

from schemas.events import EpisodeStart, Observed
from streams.environments.episodes.environment import Action, Environment, EpisodeError, Shown, StepResult
from streams.environments.episodes.running_episode import RunningEpisode

WORDS = ("left", "right", "yes", "no", "stop", "red", "up", "down")
"""Of random actions, beside numbers and what the environment itself has shown."""


class TriedEpisode:
    """What an episode showed, step by step."""

    def __init__(
        self, environment: Environment, start: EpisodeStart, max_turns: int, actions: Iterable[Action]
    ) -> None:
        """Play it. Raises EpisodeError."""
        self._episode = RunningEpisode(environment, start.name, start.seed, max_turns)
        self.shown: Shown = self._episode.begin()
        self.observed: list[Observed] = [self._episode.observed]
        self.steps: list[tuple[Action, StepResult]] = []
        for action in actions:
            if self._episode.ended:
                break
            self.steps.append((action, self._episode.act(action)))
            self.observed.append(self._episode.observed)

    @property
    def success(self) -> bool | None:
        """Whether the goal was reached; None if that is open."""
        return self._episode.success


def try_twice(
    opens: Callable[[EpisodeStart], Environment], start: EpisodeStart, max_turns: int, actions: Iterable[Action] | None
) -> TriedEpisode:
    """Return an episode that came out the same from two resets of one object, and from an object of its own.

    Without `actions` they are random, drawn from the seed. Raises EpisodeError(bad_result) where two differ.
    """
    first = opens(start)
    chosen = None if actions is None else list(actions)
    plays = []
    for environment in (first, first, opens(start)):
        mine = random_actions(start.seed, max_turns) if chosen is None else iter(chosen)
        plays.append(TriedEpisode(environment, start, max_turns, mine))
    for other in plays[1:]:
        for number, (one, two) in enumerate(zip(plays[0].observed, other.observed, strict=False)):
            if one != two:
                where = f"after action {number}" if number else "at reset"
                what = f"{start.name}: seed {start.seed} gave two episodes that differ {where}: {one} and {two}"
                raise EpisodeError(
                    f"{what}; draw from a generator of the seed, and from nothing else", reason="bad_result"
                )
        if len(plays[0].observed) != len(other.observed):
            raise EpisodeError(f"{start.name}: seed {start.seed} gave episodes of unequal length", reason="bad_result")
    return plays[0]


def random_actions(seed: int, count: int) -> Iterator[Action]:
    """Yield actions of many kinds, the same for the same seed."""
    rng = random.Random(seed)  # noqa: S311 - for variety
    for _ in range(count):
        yield Action(rng.choice((str(rng.randrange(10)), rng.choice(WORDS))))
