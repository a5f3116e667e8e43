"""Pauses before retries, and the budget that the threads of a process share."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, strategies as st

from streams.egress import retry_budget
from streams.egress.retry_budget import BURST, SPACING_S, RetryBudget, budget_of
from streams.scorers.retries import persist
from streams.scorers.verdict import ScoreError


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_budget, "monotonic", lambda: 1000.0)


@given(retry=st.integers(1, 20))
def test_a_pause_doubles_up_to_its_limit_and_is_at_least_half_of_that(retry: int) -> None:
    whole = min(2.0, 0.1 * 2 ** (retry - 1))
    assert whole / 2 <= RetryBudget().pause_s(retry, 0.1, 2.0) <= whole


def test_retries_beyond_the_burst_are_one_after_the_other() -> None:
    budget = RetryBudget()
    pauses = [budget.pause_s(1, 0.0) for _ in range(BURST + 5)]
    assert pauses == pytest.approx([0.0] * BURST + [SPACING_S * number for number in range(1, 6)], abs=1e-9)


def test_a_budget_is_whole_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = RetryBudget()
    for _ in range(3 * BURST):
        budget.pause_s(1)
    later = 1000.0 + 3 * BURST * SPACING_S
    monkeypatch.setattr(retry_budget, "monotonic", lambda: later)
    assert [budget.pause_s(1, 0.0) for _ in range(BURST)] == pytest.approx([0.0] * BURST, abs=1e-9)


def test_a_server_has_one_budget_whatever_is_asked_of_it() -> None:
    assert budget_of("http://judge:1/v1/chat") is budget_of("http://judge:1/v1") is not budget_of("http://judge:2/v1")


def test_a_retry_waits_for_the_budget_of_its_server() -> None:
    budget, stopping, waits = RetryBudget(), threading.Event(), list[float]()
    stopping.wait = lambda timeout=None: bool(waits.append(timeout or 0.0))  # type: ignore[method-assign]
    failures = iter([ScoreError("busy", reason="timeout", again=True)] * (BURST + 2))

    def once() -> str:
        if (error := next(failures, None)) is not None:
            raise error
        return "answered"

    assert persist(once, BURST + 2, stopping, budget=budget).tries == BURST + 3
    assert len(waits) == BURST + 2 and waits[-1] >= 2 * SPACING_S
