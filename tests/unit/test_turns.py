"""Turns by weight: nobody starves, and who was idle has saved up nothing."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from streams.engines.fair_share import Turns, next_turn, take_turn

POLICIES = "abcd"


def taken(waiting: list[set[str]], weights: dict[str, float]) -> list[str | None]:
    """Who takes each turn, with these policies waiting for it."""
    turns, found = Turns(), list[str | None]()
    for some in waiting:
        found.append(next_turn(turns, some))
        if found[-1] is not None:
            turns = take_turn(turns, found[-1], weights.__getitem__)
    return found


def test_equal_weights_take_turns_one_after_the_other() -> None:
    assert taken([{"a", "b", "c"}] * 6, dict.fromkeys("abc", 1.0)) == ["a", "b", "c", "a", "b", "c"]


def test_a_policy_of_weight_two_has_two_turns_to_one() -> None:
    assert sorted(taken([{"a", "b"}] * 9, {"a": 2.0, "b": 1.0})) == ["a"] * 6 + ["b"] * 3


def test_who_was_idle_has_saved_up_nothing() -> None:
    found = taken([{"a"}] * 50 + [{"a", "b"}] * 4, {"a": 1.0, "b": 1.0})
    assert sorted(found[50:]) == ["a", "a", "b", "b"]


def test_turns_taken_at_once_are_paid_for_by_waiting() -> None:
    turns, takers = take_turn(Turns(), "a", lambda _: 1.0, 5), ""
    for _ in range(7):
        policy = next_turn(turns, "ab") or ""
        turns, takers = take_turn(turns, policy, lambda _: 1.0), takers + policy
    assert takers == "bbbbbab"


def test_without_anybody_waiting_it_is_nobodys_turn() -> None:
    assert next_turn(Turns(), ()) is None


@given(
    st.lists(st.sets(st.sampled_from(POLICIES)), max_size=80),
    st.fixed_dictionaries({policy: st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0]) for policy in POLICIES}),
)
def test_two_policies_that_both_wait_get_turns_by_their_weights(
    waiting: list[set[str]], weights: dict[str, float]
) -> None:
    """In any stretch in which both wait for every turn: |n_a / w_a - n_b / w_b| <= 1 / w_a + 1 / w_b."""
    found = taken(waiting, weights)
    for some, policy in zip(waiting, found, strict=True):
        assert policy in some if some else policy is None
    for a, b in pairwise(POLICIES):
        for begin in range(len(waiting)):
            counts = {a: 0, b: 0}
            for some, policy in zip(waiting[begin:], found[begin:], strict=True):
                if not {a, b} <= some:
                    break
                if policy in counts:
                    counts[policy] += 1
                apart = abs(counts[a] / weights[a] - counts[b] / weights[b])
                assert apart <= 1 / weights[a] + 1 / weights[b] + 1e-9


@given(st.lists(st.sets(st.sampled_from(POLICIES)), max_size=80))
def test_whoever_waits_has_a_turn_before_anybody_has_a_third(waiting: list[set[str]]) -> None:
    found = taken(waiting, dict.fromkeys(POLICIES, 1.0))
    for policy in POLICIES:
        others = dict.fromkeys(POLICIES, 0)
        for some, turn in zip(waiting, found, strict=True):
            if policy not in some or turn == policy:
                others = dict.fromkeys(POLICIES, 0)
            elif turn is not None:
                others[turn] += 1
            assert max(others.values()) <= 2
