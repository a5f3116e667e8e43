"""Credit: each turn gets what it earned, no rule can be farmed, and none is biased where it says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from schemas.events import ResponseTurn, Reward, RewardSource
from streams.settings.model import Advantages
from streams.stages.advantages.credit import CREDIT, Episode, Turns, return_to_go
from tests.support.factories import task
from tests.support.log.join_partition import Log, answers, left_out, scores

RULES = {name: Advantages(formula="rloo", credit=name) for name in CREDIT}  # type: ignore[arg-type]


def episode(*rewards: float) -> Episode:
    """An episode in which each turn is shown something of its own."""
    return Episode(rewards, [f"{place}" for place in range(len(rewards))])


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CREDIT)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=4), min_size=2, max_size=5))
def test_equal_episodes_have_nothing_to_learn_from_and_every_turn_has_an_advantage(
    name: str, rewards: list[list[int]]
) -> None:
    episodes = [episode(*map(float, each)) for each in rewards]
    assert [len(turns) for turns in CREDIT[name](episodes, RULES[name])] == [len(each) for each in rewards]
    alike = CREDIT[name]([episodes[0]] * 3, RULES[name])
    assert alike == [[0.0] * len(rewards[0])] * 3


def test_a_return_crosses_every_turn_between() -> None:
    """An earlier turn gets what came after it, however many turns of others' tokens lie between."""
    earned, nothing = episode(0, 0, 0, 1), episode(0, 0, 0, 0)
    assert return_to_go([earned, nothing], RULES["return_to_go"]) == [[1.0] * 4, [-1.0] * 4]
    discounted = RULES["return_to_go"].model_copy(update={"gamma": 0.5})
    assert return_to_go([earned, nothing], discounted)[0] == [0.125, 0.25, 0.5, 1.0]


def test_a_sibling_that_has_ended_counts_as_nothing_and_not_as_absent() -> None:
    (_, second), _, _ = return_to_go([episode(0, 1), episode(1), episode(1)], RULES["return_to_go"])
    assert second == 1.0  # absent siblings would leave nothing to compare with


def test_one_observation_is_one_step_group_wherever_it_was_shown() -> None:
    rule = RULES["gigpo"]
    early, late = Episode([1.0], ["door"]), Episode([0.0, 0.0], ["hall", "door"])
    (first,), (hall, door) = CREDIT["gigpo"]([early, late], rule)
    assert (first, hall, door) == (2.0, -1.0, -2.0)
    assert CREDIT["gigpo"]([late, early], rule) == [[-1.0, -2.0], [2.0]]  # what was shown once only comes first
    alone = CREDIT["gigpo"]([early, late], rule.model_copy(update={"turn_weight": 0.0}))
    assert alone == [[1.0], [-1.0, -1.0]]


# --- against the gradient in closed form ------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """A way in which the two-turn bandit may end: stop at once, or go on and draw again."""

    chance: float
    rewards: tuple[float, ...]
    slopes: tuple[tuple[float, float], ...]
    """Of each turn's log probability along the two parameters."""


P, Q = 0.6, 0.3
"""Chances to go on, and to draw well then: sigmoids of the two parameters."""
STOPPED, WENT_ON, BADLY, WELL = 0.7, 0.4, -0.2, 1.0
"""What each choice earns."""
BANDIT = (
    Outcome(1 - P, (STOPPED,), ((-P, 0.0),)),
    Outcome(P * (1 - Q), (WENT_ON, BADLY), ((1 - P, 0.0), (0.0, -Q))),
    Outcome(P * Q, (WENT_ON, WELL), ((1 - P, 0.0), (0.0, 1 - Q))),
)
SECOND = Q * WELL + (1 - Q) * BADLY
ALONG_P, ALONG_Q = P * (1 - P), Q * (1 - Q)
"""Slopes of the sigmoids."""
TRUE = np.array([ALONG_P * (WENT_ON + SECOND - STOPPED), P * ALONG_Q * (WELL - BADLY)])
"""The gradient of the expected reward."""


def gradients(of: Callable[[Sequence[Episode]], Turns], size: int) -> np.ndarray:
    """Return the exact expectation of what a group of this size estimates, over all the ways it may end."""
    total = np.zeros(2)
    for group in product(BANDIT, repeat=size):
        chance = math.prod(one.chance for one in group)
        total += chance * estimate(group, of)
    return total


def estimate(group: Sequence[Outcome], of: Callable[[Sequence[Episode]], Turns]) -> np.ndarray:
    found = of([Episode(one.rewards, ["begin", "second"][: len(one.rewards)]) for one in group])
    each = [np.dot(turns, one.slopes) for turns, one in zip(found, group, strict=True)]
    return np.mean(each, axis=0)


def expected(name: str, size: int) -> np.ndarray:
    """Return what a rule says that it estimates."""
    if name == "gigpo":  # beside the whole: every turn against those that saw the same, of whom there may be none
        somebody = 1 - (1 - P) ** (size - 1)
        return np.array([2 * TRUE[0], (1 + somebody) * TRUE[1]])
    return TRUE  # of turn_outcome too: here no turn changes what another one earns by itself


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", CREDIT)
def test_no_rule_is_biased(name: str, size: int) -> None:
    found = gradients(lambda episodes: CREDIT[name](episodes, RULES[name]), size)
    assert found == pytest.approx(expected(name, size), abs=1e-12)


@pytest.mark.parametrize("name", CREDIT)
def test_the_bias_of_100_000_samples_is_below_a_hundredth_of_the_signal(name: str) -> None:
    drawn = np.random.default_rng(11).choice(3, (25_000, 4), p=[one.chance for one in BANDIT])
    kinds, counts = np.unique(np.sort(drawn, axis=1), axis=0, return_counts=True)  # a group's order changes nothing
    of = [estimate([BANDIT[one] for one in kind], lambda each: CREDIT[name](each, RULES[name])) for kind in kinds]
    found, wanted = np.average(of, axis=0, weights=counts), expected(name, 4)
    assert np.linalg.norm(found - wanted) < 0.01 * np.linalg.norm(wanted)


def test_normalising_over_those_alone_that_have_the_turn_pays_for_taking_another() -> None:
    """The trap: what is subtracted then depends on how many turns the policy chooses to take."""

    def per_index(episodes: Sequence[Episode]) -> Turns:
        columns = [[one.rewards[turn] for one in episodes if turn < len(one.rewards)] for turn in range(2)]
        summed = [sum(r - math.fsum(columns[k]) / len(columns[k]) for k, r in enumerate(e.rewards)) for e in episodes]
        return [[value] * len(one.rewards) for value, one in zip(summed, episodes, strict=True)]

    size = 4
    whole = [math.fsum(one.rewards) for one in BANDIT]
    unbiased = TRUE * (size - 1) / size  # a mean over all of the group, itself included
    assert min(whole) < STOPPED < max(whole)
    assert abs(gradients(per_index, size)[0] - unbiased[0]) > 0.2 * abs(TRUE[0])


# --- in groups -------------------------------------------------------------------------------------------------------


def turns_of(*ends: int, shown: Sequence[str | None] = ("a", "b", "c")) -> tuple[ResponseTurn, ...]:
    begins = (0, *ends)
    return tuple(
        ResponseTurn(number=number, start=begins[number], end=end, observation=shown[number])
        for number, end in enumerate(ends)
    )


def judged(log: Log, steps: Sequence[Sequence[float]], *, turns: Sequence[tuple[ResponseTurn, ...]]) -> None:
    """Read a whole group of responses with these turns, of which a scorer says so much each."""
    slots = [replace(one, turns=each) for one, each in zip(answers(len(turns)), turns, strict=True)]
    rewards: list[Reward] = [
        replace(one, steps=tuple(each)) for one, each in zip(scores(slots, list(map(sum, steps))), steps, strict=True)
    ]
    log.read_all([task(group_size=len(turns)), *slots, *rewards])


def credit(log: Log) -> Iterator[list[tuple[int, int, float | None, float]]]:
    for member in log.group().responses:
        yield [(span.start, span.end, span.reward, span.advantage) for span in member.spans]


def test_a_group_has_the_credit_of_each_turn_beside_that_of_the_response() -> None:
    log = Log(formula="rloo", credit="return_to_go")
    judged(log, [(0.0, 1.0), (1.0, 0.0)], turns=[turns_of(1, 2), turns_of(1, 2)])
    group = log.group()
    assert (group.credit, [member.advantage for member in group.responses]) == ("return_to_go", [0.0, 0.0])
    assert list(credit(log)) == [[(0, 1, 0.0, 0.0), (1, 2, 1.0, 1.0)], [(0, 1, 1.0, 0.0), (1, 2, 0.0, -1.0)]]
    assert not group.flat  # nobody was better on the whole, and yet there is something to learn


def test_a_group_has_what_the_environment_says_of_each_run() -> None:
    log = Log()
    slots = [replace(one, success=reached) for one, reached in zip(answers(3), (True, False, None), strict=True)]
    log.read_all([task(group_size=3), *slots, *scores(slots, (1.0, 0.0, 0.5))])
    assert [member.success for member in log.group().responses] == [True, False, None]


def test_by_default_every_turn_has_the_advantage_of_its_response() -> None:
    log = Log()
    judged(log, [(0.0, 1.0), (0.0, 0.0)], turns=[turns_of(1, 2), turns_of(1, 2)])
    assert (log.group().credit, list(credit(log))) == ("trajectory", [[], []])


def test_what_no_turn_is_told_belongs_to_the_last_one() -> None:
    log = Log(formula="rloo", credit="return_to_go")
    slots = [replace(one, turns=turns_of(1, 2)) for one in answers(2)]
    log.read_all([task(group_size=2), *slots, *scores(slots, (1.0, 0.0))])
    assert list(credit(log)) == [[(0, 1, None, 1.0), (1, 2, None, 1.0)], [(0, 1, None, -1.0), (1, 2, None, -1.0)]]


def test_an_answer_without_turns_is_one_turn() -> None:
    log, slots = Log(formula="rloo", credit="return_to_go"), answers(2)
    log.read_all([task(group_size=2), *slots, *scores(slots, (1.0, 0.0))])
    tokens = len(slots[0].completion_token_ids)
    assert list(credit(log)) == [[(0, tokens, None, 1.0)], [(0, tokens, None, -1.0)]]


def test_more_turns_earn_no_more_than_the_reward() -> None:
    """Steps only say which turn earned what of the reward: the rest belongs to the last."""
    log = Log(formula="rloo", credit="return_to_go")
    slots = [replace(one, turns=turns) for one, turns in zip(answers(2), (turns_of(1, 2), turns_of(2)), strict=True)]
    steps = [(5.0, 5.0), ()]
    rewards = [replace(one, steps=each) for one, each in zip(scores(slots, (1.0, 1.0)), steps, strict=True)]
    log.read_all([task(group_size=2), *slots, *rewards])
    (first, _), (only,) = credit(log)
    assert (first[3], only[3]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("rule", "steps", "shown", "reason"),
    [
        ("return_to_go", (1.0, 2.0, 3.0), ("a", "b"), "steps_mismatch"),
        ("gigpo", (1.0, 2.0), ("a", None), "no_observations"),
    ],
)
def test_a_group_whose_turns_cannot_be_compared_is_recorded_as_dropped(
    rule: str, steps: tuple[float, ...], shown: Sequence[str | None], reason: str
) -> None:
    log = Log(credit=rule)
    judged(log, [steps, (0.0, 0.0)], turns=[turns_of(1, 2, shown=shown), turns_of(1, 2)])
    group = log.group()
    assert (group.dropped_reason, group.responses, left_out(group)) == (reason, (), [(0, reason), (1, reason)])


def test_sources_that_speak_of_different_numbers_of_turns_are_no_credit() -> None:
    log = Log(credit="return_to_go")
    slots = [replace(one, turns=turns_of(1, 2)) for one in answers(2)]
    exact = [replace(one, steps=(1.0, 0.0)) for one in scores(slots, (1.0, 1.0))]
    style = [replace(one, steps=(1.0,)) for one in scores(slots, (1.0, 1.0), source="style")]
    sources = (RewardSource(name="exact"), RewardSource(name="style"))
    log.read_all([task(group_size=2, reward_sources=sources), *slots, *exact, *style])
    assert log.group().dropped_reason == "steps_mismatch"


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"gamma": 0.9}, "gamma has no effect with credit trajectory; set credit=return_to_go or gigpo"),
        ({"turn_weight": 0.5, "credit": "return_to_go"}, "turn_weight has no effect with credit return_to_go"),
        ({"credit": "gigpo", "formula": "batch_std"}, "credit gigpo compares turns; set formula=rloo or dr_grpo"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(rule: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Advantages(**rule)  # type: ignore[arg-type]
