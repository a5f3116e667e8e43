"""Retry attempts that may succeed, with growing pauses (streams/egress/retry_budget.py), and add up their costs.

once() ──► a value ──► Tries          ScoreError that may pass ──► pause ──► once() again, `retries` times at most
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from streams.egress.retry_budget import RetryBudget
from streams.scorers.verdict import ScoreError

T = TypeVar("T")


class Tries(NamedTuple, Generic[T]):
    """The value of the successful attempt."""

    value: T
    tries: int
    spent: dict[str, float]
    """Components of the failed attempts, e.g. a judge's tokens."""


def persist(
    once: Callable[[], T],
    retries: int,
    stopping: threading.Event,
    on_failure: Callable[[ScoreError], None] = lambda exc: None,
    *,
    budget: RetryBudget | None = None,
) -> Tries[T]:
    """Return the first result of `once`; `on_failure` is called with each error. `budget`: of the server that is asked.

    Raises the last ScoreError, with the number and the components of all attempts; the first error once `stopping` is
    set.
    """
    spent: dict[str, float] = {}
    budget = budget or RetryBudget()
    for tries in range(1, retries + 2):
        try:
            return Tries(once(), tries, spent)
        except ScoreError as exc:
            spent = sum_of(exc.spent, spent)
            on_failure(exc)
            is_last = not exc.again or tries > retries
            if is_last or stopping.wait(budget.pause_s(tries)):
                raise _after(exc, tries, spent) from exc
    raise AssertionError("unreachable: the loop returns or raises")


def sum_of(components: Mapping[str, float], spent: Mapping[str, float]) -> dict[str, float]:
    """Return components including those of earlier attempts."""
    return dict(components) | {name: number + components.get(name, 0.0) for name, number in spent.items()}


def _after(exc: ScoreError, tries: int, spent: dict[str, float]) -> ScoreError:
    text = f"{exc} (after {tries} tries)" if tries > 1 else str(exc)
    error = ScoreError(text, reason=exc.reason, again=exc.again, version=exc.version)
    error.tries, error.spent, error.of_request = tries, spent, exc.of_request
    return error
