"""The canary's test: its interval, against a second implementation, in a small simulation, and at its edges."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streams.evaluation.sequential import (
    BURN_IN,
    TIGHTEST,
    Arm,
    ArmPair,
    ConfidenceSequence,
    boundary,
    estimate,
    interval,
    level,
)
from tests.benchmarks import sequential as simulation
from tests.benchmarks.sequential import always_valid, hits, normal, peeking_t, simulate
from tests.support.thoroughness import examples


def arm(values: Sequence[float]) -> Arm:
    found = Arm()
    for value in values:
        found = found.add(value)
    return found


def drawn(n: int, mean: float, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(mean, 1) for _ in range(n)]


values = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)


@given(values)
def test_an_arm_knows_mean_and_spread_of_what_was_added(numbers: list[float]) -> None:
    found = arm(numbers)
    assert found.mean == pytest.approx(statistics.fmean(numbers), abs=1e-6)
    assert found.spread == pytest.approx(statistics.variance(numbers) * (len(numbers) - 1), rel=1e-6, abs=1e-3)


def test_a_small_spread_around_a_large_mean_is_not_lost() -> None:
    assert arm([1e9, 1e9 + 1, 1e9 + 2]).spread == pytest.approx(2)


def test_the_boundary_is_robbins_normal_mixture() -> None:
    # Howard et al. 2021, equation 14, worked by hand for rho = 1, time 1, alpha 0.05: sqrt(2 ln(2 / 0.0025))
    rho = boundary(0, 0.05) ** 2 / math.log(1 / 0.05**2)
    assert boundary(rho, 0.05) == pytest.approx(math.sqrt(rho) * math.sqrt(2 * math.log(2 / 0.0025)))


def test_the_boundary_is_tightest_for_its_time_where_it_says() -> None:
    def at(rho: float) -> float:
        return math.sqrt((TIGHTEST + rho) * math.log((TIGHTEST + rho) / (rho * 0.05**2)))

    assert boundary(TIGHTEST, 0.05) == pytest.approx(min(at(rho / 100) for rho in range(10, 5000)), rel=1e-6)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=4), st.integers(0, 999))
def test_the_interval_is_that_of_the_simulation(sizes: list[tuple[int, int]], seed: int) -> None:
    draw = random.Random(seed)
    steps, arms = [], simulation.Arms(1, len(sizes))
    for step, both in enumerate(sizes):
        found = []
        for side, n in enumerate(both):
            numbers = [draw.gauss(step, 1 + side) for _ in range(n)]
            for value in numbers:
                arms.add(np.array([side]), np.array([step]), np.array([value]))
            found.append(arm(numbers))
        steps.append(ArmPair(*found))
    (low,), (high,) = always_valid(arms, 0.05)
    ours = interval(steps, 0.05)
    assert (ours is None) == math.isinf(low)
    if ours is not None:
        assert (ours.low, ours.high) == pytest.approx((low, high))


def test_there_is_no_interval_before_the_burn_in_of_each_arm() -> None:
    many, few = arm(drawn(500, 3.0)), arm(drawn(BURN_IN - 1, 0.0))
    assert interval([ArmPair(many, few)], 0.05) is None
    assert interval([ArmPair(few, many)], 0.05) is None


def test_a_step_in_which_one_arm_is_silent_says_nothing() -> None:
    pair = ArmPair(arm(drawn(40, 0.0)), arm(drawn(40, 0.0, seed=2)))
    alone = ArmPair(arm(drawn(500, 9.0)), Arm())
    assert interval([pair, alone], 0.05) == interval([pair], 0.05)
    assert (estimate([pair, alone]), level([pair, alone])) == (estimate([pair]), level([pair]))


def test_constant_rewards_give_no_interval_whatever_rounding_does_to_them() -> None:
    ours, other = arm([0.1] * 300), arm([0.1 * 3 / 3] * 300)
    assert ours.mean != other.mean
    assert interval([ArmPair(ours, other)], 0.05) is None
    assert interval([ArmPair(arm([0.0] * 300), arm([0.0] * 300))], 0.05) is None


def test_constant_rewards_that_differ_are_told_apart() -> None:
    found = interval([ArmPair(arm([1.0] * 20), arm([0.0] * 20))], 0.05)
    assert isinstance(found, ConfidenceSequence)
    assert 0 < found.low < 1 < found.high


def test_an_arm_without_spread_is_not_taken_for_certain() -> None:
    # 20 right of 20, where the primary has 98 of 100: by its own variance, 0, the candidate would be better for sure
    found = interval([ArmPair(arm([1.0] * 20), arm([1.0] * 392 + [0.0] * 8))], 0.05)
    assert found is not None
    assert found.low < 0


def test_what_both_arms_have_in_common_in_a_later_step_weighs_on_neither() -> None:
    # few candidate groups while tasks are easy, many once they are hard: pooled, the candidate would look worse by 2
    easy = ArmPair(arm(drawn(20, 5.0)), arm(drawn(380, 5.0, seed=2)))
    hard = ArmPair(arm(drawn(200, 0.0, seed=3)), arm(drawn(200, 0.0, seed=4)))
    found = interval([easy, hard], 0.05)
    assert found is not None
    assert found.low < 0 < found.high
    assert abs(found.estimate) < 0.3


@pytest.mark.parametrize("draw", [normal(), hits(0.98), hits(0.02)], ids=["normal", "0.98", "0.02"])
def test_no_difference_is_promoted_in_few_runs_though_every_group_is_looked_at(draw: simulation.Draw) -> None:
    found = simulate(simulation.Case("", draw, (0.2, 0.5)), always_valid, runs=250, max_groups=120)
    assert np.mean(found.verdict == 1) <= 0.05
    assert np.mean(found.verdict != 0) <= 0.05


def test_a_t_test_that_peeks_as_often_is_wrong_far_more_often() -> None:
    found = simulate(simulation.Case("", normal(), (0.5,)), peeking_t, runs=250, max_groups=120)
    assert np.mean(found.verdict != 0) > 0.15


def test_a_clear_gain_is_found_in_every_run() -> None:
    found = simulate(simulation.Case("", normal(1.0), (0.2, 0.5)), always_valid, runs=100, max_groups=100)
    assert np.mean(found.verdict == 1) > 0.99
