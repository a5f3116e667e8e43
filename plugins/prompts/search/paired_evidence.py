"""Evidence that one prompt earns more than another on the same questions, valid at every look.

    rewards of both on a question, in [0, 1] ──► d ──► wealth of each bet on "mean d > 0" ──► e-value

        W_b = Π (1 + b d_i)        e-value = mean of the W_b over the bet sizes

If the first earns no more than the second, the e-value is a nonnegative supermartingale that begins at 1: with
probability 1 - alpha it never passes 1 / alpha (Ville 1939), however often it is looked at and whenever one stops. The
bets are those of Waudby-Smith and Ramdas (arXiv:2010.09686, section 4), a mixture of fixed ones in place of an
adaptive one: small bets find small differences late, large ones large differences early.

The interval of streams/evaluation/sequential.py is asymptotic and needs groups of each arm; pairs of answers are few
and uneven, and this test holds for any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

BETS = (1 / 4, 1 / 2)
"""Bet sizes, parts of the largest that cannot lose everything at once."""


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
