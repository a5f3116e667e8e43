"""Answers without a score, and why: permanent failures without a decision yet.

dead-letters of scoring, rewards that are errors ──► the answers without a score, by scorer ──► first and last error
decisions about those dead letters ──► no longer counted
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from schemas.conventions import SCORELESS
from schemas.events import Coordinates, DeadLetter, Reward
from streams.stages.scoring.breaker import failed_scorer
from streams.tools.dead_letters.letters import STAGE as DECISIONS, source_of


@dataclass(frozen=True, slots=True)
class FailingScorer:
    """A scorer, how many answers it left without a score, and its errors."""

    scorer: str
    answers: int
    first_error: str
    last_error: str

    def __str__(self) -> str:
        answers = "1 answer has" if self.answers == 1 else f"{self.answers} answers have"
        return f"{answers} no score: {self.last_error}"


@dataclass(slots=True)
class ScoreFailures:
    """The answers without a score, in the log as read."""

    _scorers: dict[Coordinates | str, str] = field(default_factory=dict)
    """By the answer's coordinates, or by the id of a reward that is an error."""
    _errors: dict[str, list[str]] = field(default_factory=dict)
    """By scorer: the first error and the last."""

    def take_letter(self, letter: DeadLetter) -> None:
        """Count the answer that a dead letter is about; after a decision, no longer."""
        if letter.stage == DECISIONS:
            self._scorers.pop(source_of(letter), None)
        elif letter.reason in SCORELESS:
            scorer, error = failed_scorer(letter)
            self._note(source_of(letter), scorer, error)

    def take_reward(self, reward: Reward) -> None:
        """Count an answer with an error as its score."""
        if reward.error is not None:
            self._note(reward.reward_id, reward.source, f"{reward.source}: {reward.error}")

    def _note(self, answer: Coordinates | str, scorer: str, error: str) -> None:
        self._scorers[answer] = scorer
        self._errors[scorer] = [self._errors.get(scorer, [error])[0], error]

    @property
    def rescorable(self) -> int:
        """Answers that can still get a score."""
        return sum(isinstance(answer, Coordinates) for answer in self._scorers)

    def scorers(self) -> list[FailingScorer]:
        """Return each scorer with answers that have no score, the worst first."""
        counts = Counter(self._scorers.values()).most_common()
        return [FailingScorer(scorer, answers, *self._errors[scorer]) for scorer, answers in counts]
