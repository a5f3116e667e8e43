"""Advantage formulas: how much better a response was than its siblings.

    rewards of one group ──► FORMULAS[name], or module:function ──► one advantage per reward, in the same order

All-equal rewards give zeros under every formula: there is nothing to learn from them, and the batch stage counts them.
Equal means up to rounding, also of scorers that compute in float32: 0.1 + 0.2 and 0.3 are one reward, and no formula
may scale their difference up to 1. Code that has to know whether rewards differ uses `are_equal`, or the advantages.

`batch_std` needs the spread over a whole batch, which no group knows. Here it gives the centred rewards, and the
trainer divides by the batch's standard deviation when it collates.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from streams import references

log = logging.getLogger(__name__)

SETTING = "advantages.formula"
FORMULA_VERSION = 3
"""Raised when any formula, or the reducer, would decide otherwise about the same records; part of every group's id.

`tests/histories` holds what was decided under each version.
"""


class FormulaError(Exception):
    """A formula of the user's own failed on the rewards of a group."""


ROUNDING = 1e-6
"""Rewards closer than this, relative to the largest (absolute below 1), are equal: the rest is rounding of float32."""


def are_equal(rewards: Collection[float]) -> bool:
    """Return whether rewards, at least one, differ by rounding at most: then there is nothing to learn from them.

    >>> are_equal([0.3, 0.30000001192092896]), are_equal([0.3, 0.3001])
    (True, False)
    """
    low, high = min(rewards), max(rewards)
    return high - low <= ROUNDING * max(1.0, abs(low), abs(high))


def mean_and_std(rewards: Sequence[float], ddof: int) -> tuple[float, float]:
    """Return the mean and the standard deviation (dividing by n - ddof); std is 0 for fewer than ddof + 1 rewards.

    Sums are exact (math.fsum), so the result does not depend on the order of the rewards.
    """
    mean = math.fsum(rewards) / len(rewards)
    if len(rewards) <= ddof:
        return mean, 0.0
    return mean, math.sqrt(math.fsum([(reward - mean) ** 2 for reward in rewards]) / (len(rewards) - ddof))


def grpo(rewards: Sequence[float], *, eps: float, ddof: int) -> list[float]:
    """Return A_i = (r_i - mean) / (std + eps): GRPO, arXiv:2402.03300 section 4.1.2; eps as TRL adds it.

    >>> grpo([0.0, 1.0], eps=0.0, ddof=0)
    [-1.0, 1.0]
    """
    mean, std = mean_and_std(rewards, ddof)
    return [(reward - mean) / (std + eps) for reward in rewards]


def dr_grpo(rewards: Sequence[float], *, eps: float, ddof: int) -> list[float]:
    """Return A_i = r_i - mean: Dr. GRPO, arXiv:2503.20783, without the division that favours easy tasks.

    >>> dr_grpo([0.0, 1.0], eps=0.0, ddof=0)
    [-0.5, 0.5]
    """
    mean, _ = mean_and_std(rewards, ddof)
    return [reward - mean for reward in rewards]


def rloo(rewards: Sequence[float], *, eps: float, ddof: int) -> list[float]:
    """Return A_i = r_i - mean of the others: REINFORCE leave-one-out, arXiv:2402.14740 section 2.2.

    >>> rloo([0.0, 0.0, 3.0], eps=0.0, ddof=0)
    [-1.5, -1.5, 3.0]
    """
    total, others = math.fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


class Formula(NamedTuple):
    """One formula by name."""

    advantages: Callable[..., list[float]]
    """(rewards, eps=, ddof=) -> one advantage per reward."""
    recount: Callable[[float, int, float, float], float]
    """(reward - mean, number of rewards, their std, eps) -> the advantage of that reward: a second implementation, by
    which the audit checks what the first one wrote."""


FORMULAS: dict[str, Formula] = {
    "grpo": Formula(grpo, lambda distance, n, std, eps: distance / (std + eps)),
    "dr_grpo": Formula(dr_grpo, lambda distance, n, std, eps: distance),
    "rloo": Formula(rloo, lambda distance, n, std, eps: distance * n / (n - 1)),
    "batch_std": Formula(dr_grpo, lambda distance, n, std, eps: distance),
}
"""The names that `advantages.formula` takes: settings, the stream worker and the audit read this alone."""


def advantages(formula: str, rewards: Sequence[float], *, eps: float, ddof: int) -> list[float]:
    """Return one advantage per reward under the named formula; zeros where all rewards are equal or there is one.

    `formula` is one of FORMULAS, or `module:function` with the same signature. Raises ValueError if `rewards` is empty,
    FormulaError if a function of the user's own fails, SettingsError if it cannot be imported.
    """
    if not rewards:
        raise ValueError("no rewards; a group needs at least one scored response")
    if are_equal(rewards):
        return [0.0] * len(rewards)
    if formula in FORMULAS:
        return FORMULAS[formula].advantages(rewards, eps=eps, ddof=ddof)
    return _own(formula, rewards, eps=eps, ddof=ddof)


def _own(formula: str, rewards: Sequence[float], *, eps: float, ddof: int) -> list[float]:
    function = references.load(SETTING, formula)
    try:
        values = [float(value) for value in function(rewards, eps=eps, ddof=ddof)]
    except Exception as exc:  # the function is the user's, and may raise anything
        log.warning("%s failed on rewards %s: %s: %s", formula, list(rewards), type(exc).__name__, exc)
        raise FormulaError(formula) from exc
    if len(values) != len(rewards) or not all(map(math.isfinite, values)):
        log.warning("%s returned %s, expected a finite number for each of %s", formula, values, list(rewards))
        raise FormulaError(formula)
    return values
