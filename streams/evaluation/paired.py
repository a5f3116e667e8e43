"""Two versions side by side on the tasks of one suite.

    outcomes of each version ──► pairs: the same task, scored for both ──► gain with interval, cost of each

A task counts only if both versions have a score for it. What one of them failed at is in neither mean; the share of
failed slots says how much that is. Both must be outcomes of the same suite: only there do equal indexes mean equal
questions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.events import Outcome
from streams.evaluation import intervals
from streams.evaluation.intervals import MeanDifference


class Pair(NamedTuple):
    """The outcomes of one task for both versions."""

    first: Outcome
    second: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """First against second over `n` tasks. Means are per task; costs are None unless every pair has them."""

    n: int
    reward: float
    reward_against: float
    gain: MeanDifference
    success: float
    success_against: float
    success_gain: MeanDifference
    tokens_ratio: float | None
    """Completion tokens per response, first over second; None too if the second wrote none."""
    latency_ratio: float | None
    """Of the medians: a slow first round, which is normal, must not make a version look slow."""

    def metrics(self) -> dict[str, float]:
        """Return the figures that are numbers, by name."""
        found = {
            "n": float(self.n),
            "mean_reward": self.reward,
            "mean_reward_against": self.reward_against,
            "success": self.success,
            "success_against": self.success_against,
            "tokens_ratio": self.tokens_ratio,
            "latency_ratio": self.latency_ratio,
        }
        for name, one in (("gain", self.gain), ("success_gain", self.success_gain)):
            found |= {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}
        return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def pairs(first: Iterable[Outcome], second: Iterable[Outcome]) -> list[Pair]:
    """Return the tasks that both were scored on, by index."""
    theirs = {outcome.index: outcome for outcome in second if outcome.reward is not None}
    ours = {outcome.index: outcome for outcome in first if outcome.reward is not None}
    return [Pair(ours[index], theirs[index]) for index in sorted(ours.keys() & theirs.keys())]


def by_scenario(found: Iterable[Pair]) -> dict[str, list[Pair]]:
    """Return the pairs of each scenario, by name."""
    scenarios: dict[str, list[Pair]] = {}
    for pair in found:
        scenarios.setdefault(pair.first.scenario, []).append(pair)
    return dict(sorted(scenarios.items()))


def compare(found: Sequence[Pair], confidence: float = intervals.CONFIDENCE) -> Comparison:
    """Return first against second. Raises ValueError for no pairs."""
    ours, theirs = rewards(found)
    latency = medians(found, "latency_ms")
    right, right_against = ([one.success or 0.0 for one in side] for side in zip(*found, strict=True))
    return Comparison(
        n=len(found),
        reward=_mean(ours),
        reward_against=_mean(theirs),
        gain=intervals.difference(ours, theirs, confidence),
        success=_mean(right),
        success_against=_mean(right_against),
        success_gain=intervals.difference(right, right_against, confidence),
        tokens_ratio=_ratio(costs(found, "tokens")),
        latency_ratio=_ratio(None if latency is None else [latency]),
    )


def rewards(found: Iterable[Pair]) -> tuple[list[float], list[float]]:
    """Return the rewards of first and second, in the order of the pairs."""
    scored = [(one.reward, other.reward) for one, other in found]
    kept = [(one, other) for one, other in scored if one is not None and other is not None]
    return [one for one, _ in kept], [other for _, other in kept]


def costs(found: Iterable[Pair], name: str) -> list[tuple[float, float]] | None:
    """Return `tokens` or `latency_ms` of first and second; None unless all pairs have it."""
    every = [(getattr(one, name), getattr(other, name)) for one, other in found]
    return None if any(None in pair for pair in every) else every


def medians(found: Iterable[Pair], name: str) -> tuple[float, float] | None:
    """Return the medians of `tokens` or `latency_ms` of first and second; None unless all pairs have it."""
    every = costs(found, name)
    if not every:
        return None
    first, second = (statistics.median(side) for side in zip(*every, strict=True))
    return first, second


def _ratio(every: list[tuple[float, float]] | None) -> float | None:
    if not every:
        return None
    first, second = (math.fsum(side) for side in zip(*every, strict=True))
    return first / second if second else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
