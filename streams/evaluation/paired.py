"""Compare two versions on the tasks of one suite.

    outcomes of each version ──► pairs: the same task, scored for both ──► gain with interval, cost of each

A task counts only if both versions have a score for it. A task that one of them failed is in neither mean; the share of
failed slots shows their number. Both must be outcomes of the same suite: only there do equal indexes mean equal
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
    """Completion tokens per response, first over second; also None if the second wrote none."""
    latency_ratio: float | None
    """Ratio of the medians: a slow first round, which is normal, must not make a version look slow."""

    def metrics(self) -> dict[str, float]:
        """Return the figures that are numbers, by name."""
        figures = {
            "n": float(self.n),
            "mean_reward": self.reward,
            "mean_reward_against": self.reward_against,
            "success": self.success,
            "success_against": self.success_against,
            "tokens_ratio": self.tokens_ratio,
            "latency_ratio": self.latency_ratio,
        }
        for name, difference in (("gain", self.gain), ("success_gain", self.success_gain)):
            figures |= {name: difference.value, f"{name}_low": difference.low, f"{name}_high": difference.high}
        return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}


def pairs(first: Iterable[Outcome], second: Iterable[Outcome]) -> list[Pair]:
    """Return the tasks scored for both, by index."""
    by_index = {outcome.index: outcome for outcome in first if outcome.reward is not None}
    other = {outcome.index: outcome for outcome in second if outcome.reward is not None}
    return [Pair(by_index[index], other[index]) for index in sorted(by_index.keys() & other.keys())]


def by_scenario(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    """Return the pairs of each scenario, by name."""
    scenarios: dict[str, list[Pair]] = {}
    for pair in pairs:
        scenarios.setdefault(pair.first.scenario, []).append(pair)
    return dict(sorted(scenarios.items()))


def compare(pairs: Sequence[Pair], confidence: float = intervals.CONFIDENCE) -> Comparison:
    """Return first against second. Raises ValueError for no pairs."""
    reward, reward_against = rewards(pairs)
    latency = medians(pairs, "latency_ms")
    success, success_against = ([outcome.success or 0.0 for outcome in side] for side in zip(*pairs, strict=True))
    return Comparison(
        n=len(pairs),
        reward=_mean(reward),
        reward_against=_mean(reward_against),
        gain=intervals.difference(reward, reward_against, confidence),
        success=_mean(success),
        success_against=_mean(success_against),
        success_gain=intervals.difference(success, success_against, confidence),
        tokens_ratio=_ratio(costs(pairs, "tokens")),
        latency_ratio=_ratio(None if latency is None else [latency]),
    )


def rewards(pairs: Iterable[Pair]) -> tuple[list[float], list[float]]:
    """Return the rewards of first and second, in the order of the pairs."""
    scored = [(first.reward, second.reward) for first, second in pairs]
    both = [(first, second) for first, second in scored if first is not None and second is not None]
    return [first for first, _ in both], [second for _, second in both]


def costs(pairs: Iterable[Pair], name: str) -> list[tuple[float, float]] | None:
    """Return `tokens` or `latency_ms` of first and second; None unless all pairs have it."""
    values = [(getattr(first, name), getattr(second, name)) for first, second in pairs]
    return None if any(None in pair for pair in values) else values


def medians(pairs: Iterable[Pair], name: str) -> tuple[float, float] | None:
    """Return the medians of `tokens` or `latency_ms` of first and second; None unless all pairs have it."""
    values = costs(pairs, name)
    if not values:
        return None
    first, second = (statistics.median(side) for side in zip(*values, strict=True))
    return first, second


def _ratio(values: list[tuple[float, float]] | None) -> float | None:
    if not values:
        return None
    first, second = (math.fsum(side) for side in zip(*values, strict=True))
    return first / second if second else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
