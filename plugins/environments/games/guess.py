"""Guess a number from hints.

    1 to 8 ──► 4 ──► higher ──► 6 ──► right         1 - 0.05 for each guess before; what a run that misses gets is below

A run that misses gets 0.1 times its share of guesses that are numbers in the range, and 0.1 times the share that fit
the hints before them. The reward comes with the last guess, so no guess pays twice. A right guess pays far more than a
quick one: with 0.1 for a guess and 0.4 for a miss, a policy could settle on quick guesses that never reach one number
(docs/experiments.md).
"""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from plugins.environments.games.text_game import Command, Example, GameOptions, MoveOutcome, TextGame, unusable

GUESS_COST = 0.05
NUMBERS_REWARD = 0.1
FITTING_REWARD = 0.1


class GuessOptions(GameOptions):
    """Settings of `guess`."""

    highest: int = Field(8, ge=2, le=1000, description="numbers are 1 to this")
    guesses: int = Field(4, ge=1, le=10)


class Guess(TextGame[GuessOptions]):
    """The environment."""

    name = "guess"
    version = "2"
    options_type: ClassVar[type[GameOptions]] = GuessOptions
    command = Command("guess", "number", "Says whether the number is right, higher or lower.", bare=True)

    question_is_whole = False
    max_tokens = 6
    is_held_out_sampled = True
    """At temperature 0 a policy is one fixed tree of guesses: which numbers are in it is chance, not skill."""
    train_temperature = 1.3
    """A number that no run of its group guesses teaches nothing, so training varies more than what is asked later."""

    @property
    def max_turns(self) -> int:
        """Each guess."""
        return self.options.guesses

    def _begin(self, rng: random.Random) -> str:
        self._right = rng.randint(1, self.options.highest)
        self._low, self._high = 1, self.options.highest
        self._guesses = self._numbers = self._fitting = 0
        return f"1 to {self.options.highest}"

    def _about(self) -> str:
        return f"Guess the number in {self.options.guesses} guesses. Answer with only a number."

    def _example(self) -> tuple[str, tuple[Example, ...]]:
        middle = (1 + self.options.highest) // 2
        later = (middle + 1 + self.options.highest) // 2
        return f"1 to {self.options.highest}", (
            Example(str(middle), "higher", command=True),
            Example(str(later), "right", command=True),
        )

    def _move(self, argument: str) -> MoveOutcome:
        self._guesses += 1
        number = int(argument) if argument.isascii() and argument.isdecimal() else None
        if number is not None and 1 <= number <= self.options.highest:
            self._numbers += 1
            self._fitting += self._low <= number <= self._high
            if number == self._right:
                return MoveOutcome("right", 1 - GUESS_COST * (self._guesses - 1), ended=True, success=True)
            outcome = MoveOutcome("higher" if number < self._right else "lower")
            self._low = max(self._low, number + 1) if number < self._right else self._low
            self._high = min(self._high, number - 1) if number > self._right else self._high
        else:
            outcome = unusable(f"expected a number from 1 to {self.options.highest}")
        if self._guesses < self.options.guesses:
            return outcome
        shares = NUMBERS_REWARD * self._numbers + FITTING_REWARD * self._fitting
        return outcome._replace(reward=shares / self._guesses, ended=True, success=False)
