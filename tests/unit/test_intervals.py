"""Intervals, against published figures, and against what they promise in simulation."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, strategies as st

from streams.evaluation import intervals


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998), pp. 857-872, table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_agrees_with_the_published_table(successes: int, n: int, low: float, high: float) -> None:
    assert intervals.wilson(successes / n, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    # the usual table of Student's t
    [(0.975, 1, 12.706), (0.975, 10, 2.228), (0.95, 5, 2.015), (0.995, 30, 2.750), (0.975, 120, 1.980)],
)
def test_quantiles_of_t_agree_with_the_usual_table(probability: float, freedom: int, value: float) -> None:
    assert intervals.t_quantile(probability, freedom) == pytest.approx(value, abs=5e-4)


@given(st.floats(0.5, 0.999), st.sampled_from([1, 2]))
def test_quantiles_of_t_agree_with_the_closed_forms(probability: float, freedom: int) -> None:
    # one degree of freedom is Cauchy's distribution; that of two has a root in it
    alpha = 4 * probability * (1 - probability)
    closed = math.tan(math.pi * (probability - 0.5)) if freedom == 1 else (2 * probability - 1) * math.sqrt(2 / alpha)
    assert intervals.t_quantile(probability, freedom) == pytest.approx(closed, rel=1e-9, abs=1e-7)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        # airway hyper-responsiveness (Bentur et al. 2009), in Fagerland, Lydersen and Laake, BMC Med. Res. Methodol. 14
        ((1, 1, 7, 12), -0.507, -0.026),
        # Altman et al., Statistics with Confidence (2000), table 6.2
        ((14, 5, 0, 22), 0.011, 0.226),
    ],
)
def test_the_interval_of_paired_shares_agrees_with_published_examples(
    table: tuple[int, int, int, int], low: float, high: float
) -> None:
    assert intervals.newcombe(*table) == pytest.approx((low, high), abs=5e-4)


def test_pairs_that_all_agree_still_leave_room_for_doubt() -> None:
    same = [1.0] * 10 + [0.0] * 20
    found = intervals.difference(same, same)
    assert found.method == "newcombe"
    assert found.low < 0 < found.high


def test_rewards_between_zero_and_one_are_compared_by_the_t_interval_of_their_differences() -> None:
    found = intervals.difference([0.5, 0.75, 1.0, 0.25], [0.25, 0.5, 0.5, 0.25])
    # differences 0.25, 0.25, 0.5, 0: mean 0.25, s = 0.204124, t(3) = 3.182446
    assert (found.value, found.n, found.method) == (0.25, 4, "t")
    assert (found.low, found.high) == pytest.approx((-0.074807, 0.574807), abs=1e-6)


def test_the_first_against_the_second_is_the_second_against_the_first_turned_round() -> None:
    first, second = [1.0, 1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0, 0.0]
    there, back = intervals.difference(first, second), intervals.difference(second, first)
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low))


def test_one_task_proves_nothing() -> None:
    assert intervals.mean([0.5]) == (0.5, -math.inf, math.inf, 1)
    with pytest.raises(ValueError, match="no values"):
        intervals.mean([])
    with pytest.raises(ValueError):
        intervals.difference([1.0], [1.0, 0.0])


shares = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(shares, st.floats(0.5, 0.999))
def test_every_share_lies_in_its_interval_and_that_in_the_possible(share: tuple[int, int], confidence: float) -> None:
    observed = share[0] / share[1]
    low, high = intervals.wilson(observed, share[1], confidence)
    assert 0 <= low <= observed <= high <= 1


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_every_difference_lies_in_its_interval(pairs: list[tuple[bool, bool]]) -> None:
    found = intervals.difference([float(a) for a, _ in pairs], [float(b) for _, b in pairs])
    assert -1 <= found.low <= found.value <= found.high <= 1


def covered(share_better: float, share_worse: float, both: float, n: int, runs: int = 2000) -> float:
    """Return how often the interval of n pairs holds the true difference."""
    rng, hits = random.Random(7), 0
    weights = (both, share_better, share_worse, 1 - both - share_better - share_worse)
    for _ in range(runs):
        drawn = rng.choices(range(4), weights, k=n)
        low, high = intervals.newcombe(*(drawn.count(kind) for kind in range(4)))
        hits += low <= share_better - share_worse <= high
    return hits / runs


@pytest.mark.parametrize(("better", "worse", "both"), [(0.05, 0.05, 0.5), (0.2, 0.2, 0.3), (0.2, 0.02, 0.5)])
def test_the_interval_of_paired_shares_holds_the_truth_as_often_as_it_says(
    better: float, worse: float, both: float
) -> None:
    # 2,000 runs of 40 tasks with a fixed seed; 0.935 is 95 % less three standard errors
    assert covered(better, worse, both, 40) >= 0.935


def test_the_interval_of_a_mean_of_skewed_rewards_holds_the_truth_nearly_as_often_as_it_says() -> None:
    # 93 of 100 on thirty tasks, as the docstring admits
    rng, hits = random.Random(7), 0
    for _ in range(2000):
        found = intervals.mean([rng.choice((0.0, 0.2, 0.3, 1.0)) for _ in range(30)])
        hits += found.low <= 0.375 <= found.high
    assert hits / 2000 >= 0.92


@pytest.mark.parametrize(("confidence", "fewest"), [(0.9, 5), (0.95, 6), (0.99, 8), (0.75, 3)])
def test_fewest_unequal_pairs_that_could_prove_anything(confidence: float, fewest: int) -> None:
    # all of m fall on one side by chance in 2 of 2^m cases
    assert intervals.fewest_unequal(confidence) == fewest
    assert 2.0 ** (1 - fewest) <= 1 - confidence + 1e-9 < 2.0 ** (2 - fewest)
