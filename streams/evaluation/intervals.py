"""Confidence intervals of an observed share, mean or difference.

    successes of n              ──► share       Wilson's score interval
    values, one per task        ──► mean        Student's t
    two values per task, paired ──► difference  Newcombe's method 10 if all are 0 or 1, else Student's t

Tasks are the unit, never responses: the answers to one question resemble each other, and counting each as evidence
would make every interval too narrow. The intervals are about other questions from the same source; two versions that
answered the same questions are compared in pairs, which removes the difficulty of the questions.

Each interval may be checked once. One that is watched until it looks good proves nothing; the canary's test is made for
repeated looks (streams/evaluation/sequential.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Bounds on the true value at a given confidence, inclusive; they may be infinite."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A mean over `n` tasks and its interval."""

    value: float
    low: float
    high: float
    n: int


class MeanDifference(NamedTuple):
    """The mean of first minus second over `n` pairs, and its interval."""

    value: float
    low: float
    high: float
    n: int
    method: Literal["newcombe", "t"]


def wilson(share: float, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the score interval of a share that was observed on `n` tasks.

        (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n)        Wilson, JASA 22 (1927), p. 209

    It keeps its level at 0, at 1 and for few tasks, where p ± z·se does not. `share` may be a mean of shares per task
    (several responses each): values in [0, 1] with mean p vary at most as much as zeros and ones with mean p, so the
    interval is then wider than it need be, never narrower. Without tasks it is 0 to 1.

    Assumes tasks drawn independently of each other.
    """
    if n == 0:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(max(0.0, share * (1 - share)) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # at the ends the bound is the share itself, which rounding misses by a little
    return Interval(
        0.0 if share <= 0 else max(0.0, (middle - half) / scale),
        1.0 if share >= 1 else min(1.0, (middle + half) / scale),
    )


def mean(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean of one value per task, with Student's t interval: m ± t(n - 1) · s/√n.

    t and not the bootstrap: it needs no random numbers, so the same log gives the same bytes, and on few tasks the
    bootstrap's percentiles are too narrow. Assumes independent tasks, and a mean that is nearly normal: on thirty
    skewed rewards an interval of 95 % holds the truth in 93 of 100 cases. Values that are all equal give an interval of
    no width, and one value an infinite one.

    Raises ValueError for no values.
    """
    if not values:
        raise ValueError("a mean of no values")
    n = len(values)
    middle = math.fsum(values) / n
    if n == 1:
        return Estimate(middle, -math.inf, math.inf, 1)
    variance = math.fsum((value - middle) ** 2 for value in values) / (n - 1)
    half = t_quantile((1 + confidence) / 2, n - 1) * math.sqrt(variance / n) if variance else 0.0
    return Estimate(middle, middle - half, middle + half, n)


def difference(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> MeanDifference:
    """Return the mean of first minus second over pairs: values of the same task have the same index.

    Zeros and ones only: `newcombe`, since t would be sure of itself as soon as all pairs agree. Else the t interval of
    the differences, as `mean`.

    Raises ValueError for no pairs, or for sequences of different lengths.
    """
    pairs = list(zip(first, second, strict=True))
    if pairs and all(a in (0.0, 1.0) and b in (0.0, 1.0) for a, b in pairs):
        both_right = sum(a == b == 1.0 for a, b in pairs)
        only_first, only_second = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
        neither = len(pairs) - both_right - only_first - only_second
        low, high = newcombe(both_right, only_first, only_second, neither, confidence)
        return MeanDifference((only_first - only_second) / len(pairs), low, high, len(pairs), "newcombe")
    return MeanDifference(*mean([a - b for a, b in pairs], confidence), "t")


def newcombe(
    both_right: int, only_first: int, only_second: int, neither: int, confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of the difference of two paired shares, first minus second.

    Method 10 of Newcombe, Statistics in Medicine 17 (1998), pp. 2635-2650: the two Wilson intervals, squared and
    added, less what the correlation phi of the pairs explains. phi is corrected for continuity where it is positive,
    and 0 where a margin is empty.

    Raises ValueError for an empty table.
    """
    n = both_right + only_first + only_second + neither
    if n == 0:
        raise ValueError("a difference over no pairs")
    p1, p2 = (both_right + only_first) / n, (both_right + only_second) / n
    low1, high1 = wilson(p1, n, confidence)
    low2, high2 = wilson(p2, n, confidence)
    margins = (both_right + only_first) * (only_second + neither) * (both_right + only_second) * (only_first + neither)
    covariance: float = both_right * neither - only_first * only_second
    if covariance > 0:
        covariance = max(covariance - n / 2, 0.0)
    phi = covariance / math.sqrt(margins) if margins else 0.0

    def width(below: float, above: float) -> float:
        return math.sqrt(max(0.0, below * below - 2 * phi * below * above + above * above))

    middle = (only_first - only_second) / n
    return Interval(max(-1.0, middle - width(p1 - low1, high2 - p2)), min(1.0, middle + width(high1 - p1, p2 - low2)))


def fewest_unequal(confidence: float = CONFIDENCE) -> int:
    """Return how many pairs must differ before a sign test can be this sure: 2^(1 - m) <= 1 - confidence.

    Fewer all in one direction happen too often by chance (the sign test; for zeros and ones McNemar's, Psychometrika 12
    (1947)). A t interval does not know that: four gains among thirty pairs, and nothing else, look certain to it.

    >>> fewest_unequal(0.95)
    6
    """
    return math.ceil(1 - math.log2(1 - confidence) - 1e-9)


# --- Student's t ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t with this many degrees of freedom.

    Found by halving on the distribution function, to the last bits. Raises ValueError outside of 0.5 <= p < 1 or
    below 1 degree of freedom.

    >>> round(t_quantile(0.975, 10), 6)
    2.228139
    """
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ValueError(f"t_quantile({probability}, {freedom}): expected 0.5 <= probability < 1 and freedom >= 1")
    low, high = 0.0, 1.0
    while _t_below(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, freedom) < probability else (low, middle)
    return high


def _t_below(value: float, freedom: int) -> float:
    """Return the probability of a value below `value` >= 0."""
    return 1 - _beta(freedom / (freedom + value * value), freedom / 2, 0.5) / 2


def _beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, its mirror does not
        return 1 - _beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # evaluated from the left as a ratio of two recurrences (Lentz, Applied Optics 15 (1976), as modified by Thompson
    # and Barnett)
    tiny = 1e-300
    numerator, denominator, value = 1.0, 0.0, 1.0
    for step in range(400):
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator = 1 / ((1 + term * denominator) or tiny)
        numerator = (1 + term / numerator) or tiny
        value *= numerator * denominator
        if step and abs(numerator * denominator - 1) < 1e-15:
            break
    return front * (value - 1) / a
