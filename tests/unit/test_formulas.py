"""Advantages: hand-worked numbers, a second implementation, and what holds for any group."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from schemas.events import MAX_REWARD
from streams.advantage_formulas import FORMULAS, advantages, mean_and_std

rewards = st.lists(st.floats(-1e6, 1e6) | st.sampled_from([0.0, 0.2, 0.3, 1.0]), min_size=1, max_size=16)
formula = st.sampled_from(sorted(FORMULAS))
ddof = st.sampled_from([0, 1])


def peer(name: str, values: list[float], eps: float, ddof: int) -> Any:
    """The same formulas as numpy says them."""
    r = np.array(values, dtype=np.float64)
    match name:
        case "grpo":
            return (r - r.mean()) / (r.std(ddof=ddof) + eps)
        case "rloo":
            others = (r.sum() - r) / (len(r) - 1)
            return r - others
        case "dr_grpo" | "batch_std":
            return r - r.mean()
    raise AssertionError(f"say with numpy what {name} is")


@pytest.mark.parametrize(
    ("name", "ddof", "expected"),
    [
        # rewards 0, 1, 1, 2: mean 1, deviations -1 0 0 1, squares sum to 2
        ("grpo", 1, [-1 / math.sqrt(2 / 3), 0.0, 0.0, 1 / math.sqrt(2 / 3)]),
        ("grpo", 0, [-1 / math.sqrt(2 / 4), 0.0, 0.0, 1 / math.sqrt(2 / 4)]),
        ("dr_grpo", 1, [-1.0, 0.0, 0.0, 1.0]),
        ("batch_std", 1, [-1.0, 0.0, 0.0, 1.0]),
        # the mean of the others: 4/3, 1, 1, 2/3
        ("rloo", 1, [-4 / 3, 0.0, 0.0, 4 / 3]),
    ],
)
def test_a_group_worked_by_hand(name: str, ddof: int, expected: list[float]) -> None:
    assert advantages(name, [0.0, 1.0, 1.0, 2.0], eps=0.0, ddof=ddof) == pytest.approx(expected, abs=1e-15)


def test_eps_is_added_to_the_standard_deviation_as_trl_does() -> None:
    # 0 and 1: sample standard deviation sqrt(0.5)
    assert advantages("grpo", [0.0, 1.0], eps=0.1, ddof=1)[1] == pytest.approx(0.5 / (math.sqrt(0.5) + 0.1))


@given(formula, rewards, st.sampled_from([1e-4, 1e-2]), ddof)
def test_any_group_agrees_with_numpy(name: str, values: list[float], eps: float, ddof: int) -> None:
    if max(values) - min(values) <= 1e-6:
        return
    ours = advantages(name, values, eps=eps, ddof=ddof)
    np.testing.assert_allclose(ours, peer(name, values, eps, ddof), rtol=1e-6, atol=1e-6)


@given(rewards, ddof)
def test_mean_and_deviation_agree_with_numpy(values: list[float], ddof: int) -> None:
    mean, std = mean_and_std(values, ddof)
    expected = float(np.std(values, ddof=ddof)) if len(values) > ddof else 0.0
    assert mean == pytest.approx(float(np.mean(values)), rel=1e-9, abs=1e-6)
    assert std == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(formula, rewards, ddof)
def test_advantages_keep_the_order_of_the_rewards(name: str, values: list[float], ddof: int) -> None:
    ours = advantages(name, values, eps=1e-4, ddof=ddof)
    by_reward = [advantage for _, advantage in sorted(zip(values, ours, strict=True))]
    slack = 1e-9 * max(1.0, *map(abs, by_reward))
    assert all(low <= high + slack for low, high in itertools.pairwise(by_reward))


@given(formula, rewards, ddof)
def test_the_advantages_of_a_group_sum_to_zero(name: str, values: list[float], ddof: int) -> None:
    ours = advantages(name, values, eps=1e-4, ddof=ddof)
    assert math.fsum(ours) == pytest.approx(0, abs=1e-8 * max(1.0, *map(abs, values)) * max(1.0, *map(abs, ours)))


@given(formula, rewards, ddof, st.integers(0, 2**32))
@example("grpo", [0.1, 0.2, 0.3, 0.7, 1e6], 1, 3)
def test_shuffled_rewards_give_the_same_advantages_to_the_last_bit(
    name: str, values: list[float], ddof: int, seed: int
) -> None:
    order = list(range(len(values)))
    random.Random(seed).shuffle(order)
    straight = advantages(name, values, eps=1e-4, ddof=ddof)
    shuffled = advantages(name, [values[i] for i in order], eps=1e-4, ddof=ddof)
    assert [straight[i] for i in order] == shuffled


NOISE = [0.3, 0.30000001192092896, 0.29999998211860657]
"""One reward, as scorers in float32 give it."""


@pytest.mark.parametrize("name", sorted(FORMULAS))
@pytest.mark.parametrize(
    "values", [[0.7], [0.0, 0.0], [1.0] * 8, [0.3, 0.1 + 0.2], [1e6, 1e6 + 1e-7], [0.0, 1e-170], NOISE]
)
def test_equal_rewards_teach_nothing_and_rounding_is_no_difference(name: str, values: list[float]) -> None:
    # without eps, grpo would blow 5e-17 up to 0.7
    assert advantages(name, values, eps=0.0, ddof=1) == [0.0] * len(values)


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_the_largest_rewards_and_weights_give_numbers(name: str) -> None:
    ours = advantages(name, [MAX_REWARD**2, -(MAX_REWARD**2), 0.0], eps=0.0, ddof=1)
    assert all(math.isfinite(value) and abs(value) < 3e38 for value in ours)


def test_no_rewards_are_no_group() -> None:
    with pytest.raises(ValueError, match="needs at least one scored response"):
        advantages("grpo", [], eps=1e-4, ddof=1)
