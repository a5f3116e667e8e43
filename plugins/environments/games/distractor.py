"""Three turns of which one decides: the other two pay by chance, and nothing can be learned from them.

    word: red ──► turn 1: red or blue? ──► turn 2: … ──► turn 3: …          1 for the word in the turn that decides

In every other turn the seed draws for each of the two words whether it pays 1 or 0. Over seeds neither word is better,
so this adds only noise to a trajectory's reward; credit per turn keeps it in its turn. With p_t the probability of the
first word in turn t, and r_t(w) what word w pays there, the gradient is known exactly:

    dJ / d logit(p_t) = p_t (1 - p_t) (r_t(first) - r_t(second))
"""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field, model_validator

from plugins.environments.games.text_game import Command, Example, GameOptions, MoveOutcome, TextGame, unusable

COLOURS = ("red", "blue", "green", "black", "white", "pink", "gold", "gray")


class DistractorOptions(GameOptions):
    """Settings of `distractor`."""

    turns: int = Field(3, ge=1, le=20)
    decides: int = Field(2, ge=1, description="the turn in which the word counts")
    noise: float = Field(1.0, ge=0, le=100, description="what the other turns pay, by chance")

    @model_validator(mode="after")
    def _one_decides(self) -> DistractorOptions:
        if self.decides > self.turns:
            raise ValueError(f"decides is {self.decides}; there are {self.turns} turns")
        return self


class Distractor(TextGame[DistractorOptions]):
    """The environment."""

    name = "distractor"
    version = "1"
    options_type: ClassVar[type[GameOptions]] = DistractorOptions
    command = Command("say", "word", "Says one of the two words.", bare=True)

    question_is_whole = False
    max_tokens = 6

    @property
    def max_turns(self) -> int:
        """Each turn."""
        return self.options.turns

    def _begin(self, rng: random.Random) -> str:
        self._words = rng.sample(COLOURS, 2)
        self._right = rng.choice(self._words)
        noise = [
            {word: self.options.noise * rng.randint(0, 1) for word in self._words} for _ in range(self.options.turns)
        ]
        noise[self.options.decides - 1] = {word: float(word == self._right) for word in self._words}
        self._pays, self._turn, self._success = noise, 0, False
        return f"word: {self._right}\n{self._question()}"

    def _about(self) -> str:
        return f"Say the word in turn {self.options.decides}. Answer with only one of the two words."

    def _example(self) -> tuple[str, tuple[Example, ...]]:
        questions = [f"turn {turn}: brown or silver?" for turn in range(1, self.options.turns + 1)]
        turns = [Example("silver", answer, command=True) for answer in [*questions[1:], "end"]]
        return f"word: silver\n{questions[0]}", tuple(turns)

    def payments(self) -> list[dict[str, float]]:
        """Return what each word pays in each turn of this episode."""
        return [dict(turn) for turn in self._pays]

    def _move(self, argument: str) -> MoveOutcome:
        pays, word = self._pays[self._turn], argument.lower()
        self._turn += 1
        self._success |= self._turn == self.options.decides and word == self._right
        is_last = self._turn == self.options.turns
        if word in pays:
            outcome = MoveOutcome("end" if is_last else self._question(), pays[word])
        else:
            outcome = unusable("end" if is_last else self._question())
        return outcome._replace(ended=True, success=self._success) if is_last else outcome

    def _question(self) -> str:
        return f"turn {self._turn + 1}: {self._words[0]} or {self._words[1]}?"
