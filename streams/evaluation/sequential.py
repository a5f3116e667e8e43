"""Test whether one arm's mean is above the other's, valid at every look.

    one number a group ──► Arm: count, mean, spread ──► interval of candidate - primary, step by step ──► low, high

The interval is an asymptotic confidence sequence: with probability 1 - alpha it holds the true difference at every
look, so one may look after every group and stop at any time. An ordinary 95% interval that is looked at so often
excludes the truth sooner or later. The boundary is Robbins' normal mixture (Annals of Mathematical Statistics 41,
1970), in the form of Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence
sequences" (Annals of Statistics 49, 2021, equation 14); with estimated variances it is that of Waudby-Smith, Arbour,
Sinha, Kennedy, Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences" (Annals of Statistics
52, 2024).

Why it fits two arms: in a step with a fixed share, (mean - mean) / V with V = var/n + var/n is a Brownian motion in the
time 1/V (Jennison and Turnbull, JASA 92, 1997). The share grows when the groups so far allow it, so each step is
compared within itself, and the steps are added by their weight 1/V. If tasks become easier or harder in a later step,
they do so in both arms.

Departures, all conservative: an arm's variance is never taken below that of both arms together, since 20 equal rewards
say little about the 21st; and without any spread there is no interval.

It is asymptotic, so there is no interval before `BURN_IN` groups of each arm, and its error rate is measured in a
simulation (docs/rollout.md). Groups are assumed to be independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

BURN_IN = 10
"""Minimum groups of each arm for an interval, whatever the settings."""
TIGHTEST = 50.0
"""Effective groups, n m / (n + m), at which the interval is tightest for its time: 100 of each arm, or 53 and 950."""
NO_SPREAD = 1e-9
"""A standard deviation below this part of the rewards' size is rounding."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Count, mean and spread of the numbers of one arm in one step."""

    n: int = 0
    mean: float = 0.0
    spread: float = 0.0
    """Sum of squared deviations from the mean."""

    def add(self, value: float) -> Arm:
        """Return the arm with one more number (Welford's update: sums of squares would cancel)."""
        n, away = self.n + 1, value - self.mean
        mean = self.mean + away / n
        return Arm(n, mean, self.spread + away * (value - mean))


ArmName = Literal["candidate", "primary"]
ARMS: tuple[ArmName, ...] = ("candidate", "primary")


class ArmPair(NamedTuple):
    """Both arms of one step."""

    candidate: Arm
    primary: Arm

    def arm(self, name: ArmName) -> Arm:
        """Return one of the two."""
        return self.candidate if name == "candidate" else self.primary

    def add(self, name: ArmName, value: float) -> ArmPair:
        """Return the pair with one more number in an arm."""
        return self._replace(**{name: self.arm(name).add(value)})


class ConfidenceSequence(NamedTuple):
    """The interval of candidate - primary."""

    estimate: float
    low: float
    high: float


def interval(steps: Sequence[ArmPair], alpha: float) -> ConfidenceSequence | None:
    """Return the difference of the means, with an interval that holds at every look with probability 1 - alpha.

        D = sum(I_k D_k) / sum(I_k),  I_k = 1 / (var_c / n_ck + var_p / m_k),  t = var * sum(I_k)
        D +- sqrt(var) / t * sqrt((t + r) ln((t + r) / (r alpha^2)))

    `r` makes it tightest at t = TIGHTEST. Steps in which an arm has no group do not count. Return None
    below BURN_IN groups of an arm, and as long as all rewards are equal.
    """
    compared = [pair for pair in steps if pair.candidate.n and pair.primary.n]
    if min(sum(pair.arm(name).n for pair in compared) for name in ARMS) < BURN_IN:
        return None
    common = _common_variance(compared)
    if common is None:
        return None
    candidate, primary = (max(common, _variance([pair.arm(name) for pair in compared])) for name in ARMS)
    weights = [1 / (candidate / pair.candidate.n + primary / pair.primary.n) for pair in compared]
    total = math.fsum(weights)
    differences = [pair.candidate.mean - pair.primary.mean for pair in compared]
    estimate = math.fsum(w * d for w, d in zip(weights, differences, strict=True)) / total
    margin = math.sqrt(common) * boundary(common * total, alpha) / (common * total)
    return ConfidenceSequence(estimate, estimate - margin, estimate + margin)


def boundary(time: float, alpha: float) -> float:
    """Return the bound that the size of a standard Brownian motion never exceeds with probability 1 - alpha."""
    rho = TIGHTEST / _at_tightest(alpha)
    return math.sqrt((time + rho) * math.log((time + rho) / (rho * alpha**2)))


def estimate(steps: Sequence[ArmPair]) -> float | None:
    """Return the difference of the means over the steps that have both arms, weighted by their groups; None without
    any. The weight is n m / (n + m), as in `interval` while the variances are equal.
    """
    weighed = _weighted_means(steps)
    return None if weighed is None else weighed[0] - weighed[1]


def level(steps: Sequence[ArmPair]) -> float:
    """Return the primary's mean over the same steps, by the same weights; 0 without any."""
    weighed = _weighted_means(steps)
    return 0.0 if weighed is None else weighed[1]


def _weighted_means(steps: Sequence[ArmPair]) -> tuple[float, float] | None:
    compared = [(_weight(pair), pair) for pair in steps if pair.candidate.n and pair.primary.n]
    total = math.fsum(weight for weight, _ in compared)
    if not compared:
        return None
    candidate, primary = (math.fsum(weight * pair.arm(name).mean for weight, pair in compared) / total for name in ARMS)
    return candidate, primary


def _at_tightest(alpha: float) -> float:
    """Return t / rho at which the margin is least for its t: the root of x = ln(1 + x) + 2 ln(1 / alpha)."""
    x = 1.0
    for _ in range(60):
        x = math.log1p(x) + 2 * math.log(1 / alpha)
    return x


def _variance(arms: Sequence[Arm]) -> float:
    """Return the variance of one arm within its steps; 0 if no step has two groups."""
    free = sum(arm.n - 1 for arm in arms)
    return math.fsum(arm.spread for arm in arms) / free if free else 0.0


def _common_variance(pairs: Sequence[ArmPair]) -> float | None:
    """Return the variance of both arms together within each step; None if it is only rounding."""
    spread = math.fsum(pair.candidate.spread + pair.primary.spread + _spread_between_arms(pair) for pair in pairs)
    groups = sum(arm.n for pair in pairs for arm in pair)
    size = math.fsum(arm.n * arm.mean**2 for pair in pairs for arm in pair) / groups
    variance = spread / (groups - len(pairs))
    return variance if variance > NO_SPREAD**2 * size else None


def _spread_between_arms(pair: ArmPair) -> float:
    return _weight(pair) * (pair.candidate.mean - pair.primary.mean) ** 2


def _weight(pair: ArmPair) -> float:
    return pair.candidate.n * pair.primary.n / (pair.candidate.n + pair.primary.n)
