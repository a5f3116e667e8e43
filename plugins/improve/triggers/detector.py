"""Detect that a mean has fallen, however often it is looked at.

    values in [0, 1] ──► the first `window` are the reference ──► m, its lower 99 % bound ┐
                     ──► each later one x ──► five sums, each with its own bet on "below m" ┴──► e-value ──► fallen?

For each bet size b the sum is that of Shiryaev and Roberts, over an e-value that a mean of at least m cannot make grow:

    M_b ← (M_b + 1) (1 + b (m - x))        e-value = mean of the M_b over the bet sizes

Shin, Ramdas and Rinaldo (E-detectors, arXiv:2203.03532, definitions 2.2 and 2.6) show that such a sum, whenever it is
looked at, first passes THRESHOLD after THRESHOLD values on average or later, if nothing has changed: there is no limit
on the number of looks, and values may depend on each other. The bets are those of Waudby-Smith and Ramdas
(arXiv:2010.09686). m is the bound of Hoeffding (1963, theorem 1), which holds for all values in [0, 1]:

    m = min {q: n KL(mean, q) <= ln(1 / 0.01)}       KL of two coins

Not promised: that a fall smaller than the width of that bound is found; that the reference is good: a drift before its
end is a part of it; and that m is not too high: it is, for at most one reference in a hundred, which gives false
alarms. docs/improve.md has the simulated figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

THRESHOLD = 20_000.0
"""The e-value at which a mean has fallen: the least average number of values between two false alarms."""
BOUND_ERROR = 0.01
"""For what share of references the bound may be above the mean."""
BETS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Bet sizes, each a part of the largest that cannot lose everything, 1 / (1 - m): small ones find small falls."""
WINDOW = 500
"""Values of the reference."""


@dataclass(frozen=True, slots=True)
class Detector:
    """What it has seen, as a few numbers: the same values in the same order make an equal one."""

    window: int = WINDOW
    reference_count: int = 0
    reference_sum: float = 0.0
    count: int = 0
    """Values after the reference."""
    sum: float = 0.0
    sums: tuple[float, ...] = (0.0,) * len(BETS)
    """M_b of each bet size."""
    peak: float = 0.0
    """The largest e-value: once it has fallen, it has."""

    @property
    def has_reference(self) -> bool:
        """Whether the reference is complete."""
        return self.reference_count >= self.window

    @property
    def reference_low(self) -> float:
        """m: with 99 % certainty the mean was at least this."""
        return lower_bound(self.reference_sum / self.window, self.window) if self.has_reference else 0.0

    @property
    def e_value(self) -> float:
        """The evidence of a fall now."""
        return math.fsum(self.sums) / len(self.sums)

    @property
    def has_fallen(self) -> bool:
        """Whether the mean has fallen."""
        return self.peak >= THRESHOLD

    def figures(self) -> dict[str, float]:
        """Return the evidence as an event has it."""
        return {
            "reference": float(self.reference_count),
            "reference_mean": self.reference_sum / max(1, self.reference_count),
            "bound": self.reference_low,
            "values": float(self.count),
            "mean": self.sum / max(1, self.count),
            "e_value": self.peak,
        }


@lru_cache(maxsize=256)
def lower_bound(mean: float, count: int, error: float = BOUND_ERROR) -> float:
    """Return what the mean of the source of `count` values in [0, 1] with this mean is above, but for `error`.

    >>> round(lower_bound(0.6, 500), 3), lower_bound(0.0, 500), round(lower_bound(1.0, 500), 3)
    (0.533, 0.0, 0.991)
    """
    limit = math.log(1 / error) / count
    low, high = 0.0, mean
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _divergence(mean, middle) > limit else (low, middle)
    return low


def _divergence(mean: float, other: float) -> float:
    """Return the Kullback-Leibler divergence of two coins, in nats; `other` is at most `mean`."""
    if other <= 0:
        return math.inf if mean > 0 else 0.0
    heads = mean * math.log(mean / other)
    return heads if mean >= 1 else heads + (1 - mean) * math.log((1 - mean) / (1 - other))


def fold(detector: Detector, value: float) -> Detector:
    """Return the detector after one more value in [0, 1]."""
    if not detector.has_reference:
        return Detector(detector.window, detector.reference_count + 1, detector.reference_sum + value)
    bound = detector.reference_low
    largest = 1 / (1 - bound) if bound < 1 else 1.0
    sums = tuple(
        min((total + 1) * (1 + bet * largest * (bound - value)), 1e300)
        for bet, total in zip(BETS, detector.sums, strict=True)
    )
    e_value = math.fsum(sums) / len(sums)
    return Detector(
        detector.window,
        detector.reference_count,
        detector.reference_sum,
        detector.count + 1,
        detector.sum + value,
        sums,
        max(detector.peak, e_value),
    )
