"""Successive halving over recipes: which one to train, score or drop next, and the outcome of the sweep.

    results of each recipe ──► next_step ──► Train, Score, or the verdict

    round 0    every recipe trains first_steps versions and answers the questions to search by
    round r    the better half continues to first_steps · 2^r versions, and answers them again
    at last    the one that is left and the settings as they are answer the questions of the report

Successive halving (Jamieson and Talwalkar, AISTATS 2016). Training continues where a round ended, so a recipe is never
paid for twice. The current settings take part in each round and are never dropped. The best of many is partly lucky, so
its gain is measured once, in pairs, on questions that were not used to choose.

A function of the results alone: a process that was killed reads them again and does the missing work.

Not promised: that the best recipe stays. One that starts slowly is dropped early; more first_steps help.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from schemas.events import Outcome
from streams.evaluation import paired
from streams.evaluation.paired import Comparison

Side = Literal["search", "report"]


class Train(NamedTuple):
    """Train a recipe until it has so many versions."""

    recipe: str
    versions: int


class Score(NamedTuple):
    """Ask a version of a recipe the questions of one side."""

    recipe: str
    version: int
    side: Side


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Recipes to compare, by the names of their experiments."""

    recipes: tuple[str, ...]
    """The settings as they are first."""
    first_steps: int


@dataclass(frozen=True, slots=True)
class RecipeResult:
    """What the log has of a recipe."""

    versions: int = 0
    batches: int | None = None
    """All that there are to train on; None: not cut yet."""
    outcomes: Mapping[tuple[Side, int], tuple[Outcome, ...]] = field(default_factory=dict)
    """By side and version."""

    def reach(self, steps: int) -> int:
        """Return the version after so many steps: there is one per batch."""
        return steps if self.batches is None else min(steps, self.batches)


Results = Mapping[str, RecipeResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepVerdict:
    """The outcome of a sweep."""

    best: str | None
    """The recipe that was left, or was ahead when the budget ended it; None: no round was whole."""
    version: int | None
    """Of the best."""
    gain: Comparison | None
    """Of the best over the settings as they are, on the questions of the report; None: they were not asked."""
    rounds: int
    """That were whole."""
    is_level: bool = False
    """Whether all recipes and the settings as they are had the same mean reward in each round."""
    over_budget: str | None = None

    @property
    def is_better(self) -> bool:
        """Whether the interval of its gain is above 0."""
        return self.gain is not None and self.gain.gain.low > 0


def next_step(plan: SweepPlan, results: Results, over_budget: str | None = None) -> Train | Score | SweepVerdict:
    """Return what is to be done now, or the verdict; with `over_budget` nothing more is paid for."""
    base, alive, rounds = plan.recipes[0], list(plan.recipes[1:]), 0
    version: int | None = None
    is_level = True
    while True:
        steps = plan.first_steps * 2**rounds
        if (missing := _missing(results, (base, *alive), steps)) is not None:
            if over_budget is None:
                return missing
            best = alive[0] if rounds else None
            return SweepVerdict(best=best, version=version, gain=None, rounds=rounds, over_budget=over_budget)
        means = {name: _mean(_scores(results, name, steps, "search")) for name in alive}
        ahead = sorted(alive, key=lambda name: -means[name])[: math.ceil(len(alive) / 2)]  # of equal ones the earlier
        rounds += 1
        version = results[ahead[0]].reach(steps)
        is_level &= {*means.values()} == {_mean(_scores(results, base, steps, "search"))}
        if len(ahead) == 1:
            outcome = _report(results, base, ahead[0], steps, rounds, over_budget)
            return replace(outcome, is_level=is_level) if isinstance(outcome, SweepVerdict) else outcome
        alive = ahead


def rounds_of(recipes: int) -> int:
    """Return the number of rounds that so many recipes need, without the settings as they are.

    >>> rounds_of(1), rounds_of(2), rounds_of(5)
    (1, 1, 3)
    """
    return max(1, math.ceil(math.log2(recipes)))


def _missing(results: Results, names: Sequence[str], steps: int) -> Train | Score | None:
    """Return what a round lacks first."""
    for name in names:
        result = results.get(name, RecipeResult())
        version = result.reach(steps)
        if result.versions < version:
            return Train(name, version)
        if ("search", version) not in result.outcomes:
            return Score(name, version, "search")
    return None


def _report(
    results: Results, base: str, best: str, steps: int, rounds: int, over_budget: str | None
) -> Score | SweepVerdict:
    """Return what the report lacks, or the verdict with it."""
    for name in (base, best):
        version = results[name].reach(steps)
        if ("report", version) not in results[name].outcomes and over_budget is None:
            return Score(name, version, "report")
    pairs = paired.pairs(*(_scores(results, name, steps, "report") for name in (best, base)))
    return SweepVerdict(
        best=best,
        version=results[best].reach(steps),
        gain=paired.compare(pairs) if pairs else None,
        rounds=rounds,
        over_budget=over_budget if not pairs else None,
    )


def _scores(results: Results, name: str, steps: int, side: Side) -> tuple[Outcome, ...]:
    result = results[name]
    return result.outcomes.get((side, result.reach(steps)), ())


def _mean(outcomes: Sequence[Outcome]) -> float:
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    return math.fsum(rewards) / len(rewards) if rewards else -math.inf
