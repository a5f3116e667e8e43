"""Search among given prompts: which is asked next, and when one is better than the first.

    versions: the one in use, and candidates ──► stages: half of the candidates leave by their mean ──► one against it
    answers so far ──► next_step ──► questions to ask, or the verdict

There are two separate decisions. Ranks decide which candidate stays (sequential halving, Karnin, Koren and Somekh, ICML
2013), without a claim about the others. The e-value of its differences to the version in use, on the questions that
both have answered, decides whether it is better; it may be looked at after each question: the last candidate is better
once it passes (candidates) / alpha. So the probability of replacing the version in use by one that is not better is at
most alpha, whichever were dropped on the way.

    rewards of both on a question, in [0, 1] ──► d ──► wealth of each bet on "mean d > 0" ──► e-value

        W_b = Π (1 + b d_i)        e-value = mean of the W_b over the bet sizes

If the first earns no more than the second, the e-value is a nonnegative supermartingale that begins at 1: with
probability 1 - alpha it never passes 1 / alpha (Ville 1939), however often it is looked at and whenever one stops. The
bets are those of Waudby-Smith and Ramdas (arXiv:2010.09686, section 4), a mixture of fixed ones in place of an
adaptive one: small bets find small differences late, large ones large differences early. The interval of
streams/evaluation/sequential.py is asymptotic and needs groups of each arm; pairs of answers are few and uneven, and
this test holds for any number of them.

A function of the answers alone: a process that was killed reads them again and asks what is missing.

Not promised: that the best candidate is the one that stays. docs/prompts.md has the simulated figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

Arm = TypeVar("Arm")
CHUNK = 4
"""Questions that are asked at once: the evidence is looked at after each chunk."""
BETS = (1 / 4, 1 / 2)
"""Bet sizes, parts of the largest that cannot lose everything at once."""
LAST_STAGE = 0.5
"""Share of the answers that is kept for the last candidate and the version in use."""


class Ask(NamedTuple):
    """A question with a version."""

    version: int
    question: int


class Asking(NamedTuple):
    """The versions in play, and the questions that have no answer yet."""

    arms: tuple[int, ...]
    """The versions that are still compared, the one in use first."""
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Versions to compare, the questions, and the most answers."""

    versions: tuple[int, ...]
    """The one in use first."""
    questions: tuple[int, ...]
    """In the order in which they are asked."""
    max_answers: int
    alpha: float = 0.05

    @property
    def threshold(self) -> float:
        """The e-value at which a candidate is better."""
        return (len(self.versions) - 1) / self.alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchVerdict:
    """The outcome of a search."""

    winner: int | None
    """None: none was shown to be better than the version in use."""
    candidate: int
    """The last one."""
    e_value: float
    pairs: int
    gain: float
    """Of the candidate over the version in use, on the questions of both."""
    answers: int
    means: Mapping[int, float]
    """Of each version, over its answers."""

    def metrics(self) -> dict[str, float]:
        """Return its figures as an event has them."""
        return {
            "e_value": self.e_value,
            "pairs": float(self.pairs),
            "gain": self.gain,
            "answers": float(self.answers),
            **{f"mean_reward.{version}": mean for version, mean in self.means.items()},
        }


Answers = Mapping[Ask, float | None]
"""Rewards in [0, 1]; None: it failed, or has no score."""


def next_step(plan: SearchPlan, answers: Answers) -> Asking | SearchVerdict:
    """Return the next questions to ask, or the outcome of the search."""
    base, alive = plan.versions[0], list(plan.versions[1:])
    asked = 0
    used: list[Ask] = []
    for share in _stages(len(alive)):
        arms = (base, *alive)
        end = min(len(plan.questions), asked + max(1, int(plan.max_answers * share) // len(arms)))
        while asked < end:
            chunk = [Ask(arm, question) for question in plan.questions[asked : min(end, asked + CHUNK)] for arm in arms]
            if missing := [ask for ask in chunk if ask not in answers]:
                return Asking(arms, tuple(missing))
            used += chunk
            asked = min(end, asked + CHUNK)
            if len(alive) == 1 and _evidence(base, alive[0], used, answers)[0] >= plan.threshold:
                break
        if len(alive) > 1:
            means = {arm: _mean(arm, used, answers) for arm in plan.versions if arm in alive}
            alive = better_half(tuple(means), means)
    return _verdict(plan, alive[0], used, answers)


def better_half(arms: Sequence[Arm], means: Mapping[Arm, float]) -> list[Arm]:
    """Return the half of the arms with the higher means, the best first; of equal ones the earlier.

    >>> better_half(["a", "b", "c"], {"a": 0.1, "b": 0.4, "c": 0.1})
    ['b', 'a']
    """
    return sorted(arms, key=lambda arm: -means[arm])[: math.ceil(len(arms) / 2)]


def _stages(candidates: int) -> Sequence[float]:
    """Return the share of the answers that each stage has; the last is between one candidate and the version in use.

    >>> _stages(4), _stages(1)
    ([0.25, 0.25, 0.5], [1.0])
    """
    halvings = math.ceil(math.log2(candidates)) if candidates > 1 else 0
    return [(1 - LAST_STAGE) / halvings] * halvings + [LAST_STAGE] if halvings else [1.0]


def _mean(arm: int, used: Sequence[Ask], answers: Answers) -> float:
    rewards = [reward for ask in used if ask.version == arm and (reward := answers[ask]) is not None]
    return math.fsum(rewards) / len(rewards) if rewards else 0.0


def _evidence(base: int, arm: int, used: Sequence[Ask], answers: Answers) -> tuple[float, list[float]]:
    """Return the e-value of a candidate, and its differences to the version in use."""
    differences = []
    for ask in used:
        if ask.version == arm:
            first, second = answers[ask], answers.get(Ask(base, ask.question))
            if first is not None and second is not None:
                differences.append(first - second)
    return e_value(differences), differences


def _verdict(plan: SearchPlan, candidate: int, used: Sequence[Ask], answers: Answers) -> SearchVerdict:
    base = plan.versions[0]
    evidence, differences = _evidence(base, candidate, used, answers)
    return SearchVerdict(
        winner=candidate if evidence >= plan.threshold else None,
        candidate=candidate,
        e_value=evidence,
        pairs=len(differences),
        gain=math.fsum(differences) / len(differences) if differences else 0.0,
        answers=len(used),
        means={version: _mean(version, used, answers) for version in plan.versions},
    )


def e_value(differences: Iterable[float]) -> float:
    """Return the evidence for a mean above 0, of differences in [-1, 1] in the order in which they came.

    >>> e_value([]), round(e_value([1.0] * 5), 2), e_value([-1.0] * 50) < 0.01
    (1.0, 5.32, True)
    """
    logs = [0.0] * len(BETS)
    for difference in differences:
        clipped = min(1.0, max(-1.0, difference))
        logs = [log + math.log1p(bet * clipped) for bet, log in zip(BETS, logs, strict=True)]
    return math.fsum(math.exp(min(log, 300.0)) for log in logs) / len(logs)
