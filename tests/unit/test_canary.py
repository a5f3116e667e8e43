"""What a canary's groups show, and what follows from it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from schemas.events import AdapterEvent, AdvantagedGroup, LeftOut
from streams.adapters.serving import place
from streams.evaluation import intervals
from streams.settings.model import Canary
from streams.stages.rollouts import canary
from streams.stages.rollouts.canary import SETTLED_MS, CanaryTrial, Evidence
from streams.stages.rollouts.guard import TokenPrices
from tests.support.factories import T0, changed, counted_outside, group

RULE = Canary(step_groups=10, max_groups=200)
TRIAL = CanaryTrial("canary", version=2, primary=1, steps=((0.05, T0),))


def answered(
    number: int,
    version: int,
    *,
    reward: float = 0.5,
    tokens: int = 2,
    cut: bool = False,
    latency_ms: float = 10.0,
    failed: int = 0,
    **changes: Any,
) -> AdvantagedGroup:
    """Return a group of four slots, `failed` of which have no score."""
    one = group().responses[0]
    response = changed(
        one,
        reward=reward,
        components={"exact": reward},
        finish_reason="length" if cut else "stop",
        latency_ms=latency_ms,
        completion_token_ids=tuple(range(tokens)),
        logprobs=(-0.5,) * tokens,
        loss_mask=(True,) * tokens,
    )
    fields: dict[str, Any] = {
        "task_id": f"t{number}",
        "created_at": T0 + number,
        "adapter_version": version,
        "group_size": 4,
        "reward_mean": reward,
        "responses": (response,) * (4 - failed),
        "left_out": tuple(LeftOut(slot=slot, reason="response_failed") for slot in range(4 - failed, 4)),
    }
    return group(**fields | changes)


def after(groups: Iterable[AdvantagedGroup], trial: CanaryTrial = TRIAL, evidence: Evidence | None = None) -> Evidence:
    evidence = evidence or Evidence()
    for offset, one in enumerate(groups, evidence.next_offset):
        evidence = canary.load(canary.dump(canary.count(evidence, trial, one, offset)))
    return evidence


def both(n: int, candidate: dict[str, Any], primary: dict[str, Any] | None = None) -> Iterator[AdvantagedGroup]:
    """Yield n groups of each arm, with a reward that varies by a tenth."""
    draw = random.Random(0)
    for number in range(n):
        for version, what in ((2, candidate), (1, primary or {})):
            noise = draw.uniform(-0.1, 0.1)
            yield answered(number, version, **{**what, "reward": what.get("reward", 0.5) + noise})


def decided(groups: Iterable[AdvantagedGroup], rule: Canary = RULE, trial: CanaryTrial = TRIAL) -> AdapterEvent | None:
    return canary.decide(after(groups, trial), trial, rule, policy="p", at_ms=T0 + 99)[1]


# --- the evidence -----------------------------------------------------------------------------------------------------


def test_before_the_first_group_of_a_step_it_has_none() -> None:
    assert Evidence().groups_in_step("candidate", TRIAL) == 0


def test_a_group_is_one_piece_of_evidence_however_many_responses_it_has() -> None:
    evidence = after([answered(1, 2), answered(2, 1), answered(3, 1)])
    assert (evidence.groups("candidate"), evidence.groups("primary")) == (1, 2)


@pytest.mark.parametrize(
    "other",
    [
        {"version": 3},
        {"version": -1},
        {"version": 2, "purpose": "eval"},
        {"version": 2, "metadata": {"pinned_version": "2"}},
        {"version": 2, "metadata": {"policy_lag": "0"}},
        {"version": 1, "created_at": T0 - 1},
    ],
    ids=["another version", "nobody answered", "eval", "pinned", "another line's", "before the canary"],
)
def test_groups_that_say_nothing_of_the_canary_do_not_count(other: dict[str, Any]) -> None:
    assert after([answered(1, **other)]).steps in ((), ((canary.NOTHING, canary.NOTHING),))


def test_each_arm_has_the_share_of_its_right_answers_with_wilsons_interval() -> None:
    evidence = after([answered(1, 2, reward=1.0), answered(2, 2, reward=0.0), answered(3, 1, reward=0.9)])
    found = canary.metrics(evidence, RULE)
    assert (found["candidate_success"], found["primary_success"]) == (0.5, 0.0)
    assert (found["candidate_success_low"], found["candidate_success_high"]) == intervals.wilson(0.5, 2)


def test_a_run_in_an_environment_is_right_if_that_says_so_whatever_its_reward() -> None:
    reached = changed(group().responses[0], reward=0.3, success=True)
    missed = changed(reached, reward=1.0, success=False)
    assert canary.figures(answered(1, 2, responses=(reached, missed)))["success"] == 0.5


def test_an_answer_that_nobody_judges_is_neither_right_nor_wrong() -> None:
    unjudged = changed(group().responses[0], components={})
    assert "success" not in canary.figures(answered(1, 2, purpose="serve", responses=(unjudged,)))


def test_a_group_that_is_read_again_counts_once() -> None:
    evidence = after([answered(1, 2)])
    assert canary.count(evidence, TRIAL, answered(1, 2), 0) == evidence


def test_a_dropped_group_keeps_its_reward_and_its_scored_slots_do_not_count_as_failed() -> None:
    left = tuple(LeftOut(slot=slot, reason=reason) for slot, reason in enumerate(["too_few_scored", *["unscored"] * 3]))
    dropped = answered(1, 2, reward=0.7, responses=(), left_out=left, dropped_reason="too_few_scored")
    assert canary.figures(dropped) == {"reward": 0.7, "failed": 0.75}


def test_a_group_without_any_score_has_failed_and_has_no_reward() -> None:
    assert canary.figures(answered(1, 2, failed=4, reward_mean=0.0)) == {"failed": 1.0}


def test_a_task_that_nobody_scores_has_no_reward() -> None:
    bare = answered(1, 2, purpose="serve")
    bare = replace(bare, responses=tuple(replace(one, components={}) for one in bare.responses))
    assert "reward" not in canary.figures(bare)


def test_a_group_counts_for_the_step_in_which_it_ended() -> None:
    trial = TRIAL._replace(steps=((0.05, T0), (0.5, T0 + 10)))
    evidence = after([answered(9, 2), answered(10, 2), answered(11, 1)], trial)
    assert [(pair.candidate.n, pair.primary.n) for pair in evidence.pairs("reward")] == [(1, 0), (1, 1)]


def test_evidence_of_another_canary_is_forgotten() -> None:
    evidence = after([answered(1, 2), answered(2, 1)])
    evidence = after([answered(3, 3)], CanaryTrial("next", 3, 1, ((0.05, T0),)), evidence)
    assert (evidence.groups("candidate"), evidence.groups("primary")) == (1, 0)


# --- what follows -----------------------------------------------------------------------------------------------------


def test_nothing_follows_from_a_few_groups() -> None:
    assert decided(both(9, {"reward": 0.0})) is None


def test_a_step_that_broke_no_guardrail_goes_on_to_the_next_share() -> None:
    event = decided(both(10, {}))
    assert event is not None
    assert (event.kind, event.share, event.version, event.expected_version) == ("canary_advanced", 0.25, 2, 1)
    assert (event.metrics["candidate_groups"], event.metrics["primary_groups"]) == (10.0, 10.0)
    assert event.gate["canary.step_groups"] == "10"


def test_what_was_said_is_not_said_again() -> None:
    evidence, event = canary.decide(after(both(10, {})), TRIAL, RULE, policy="p", at_ms=T0)
    assert event is not None
    assert canary.decide(evidence, TRIAL, RULE, policy="p", at_ms=T0 + 1) == (evidence, None)


def test_the_same_decision_has_the_same_id_and_another_canary_another() -> None:
    one, again = decided(both(10, {})), decided(both(11, {}))
    other = decided(both(10, {}), trial=TRIAL._replace(id="another"))
    assert one is not None and again is not None and other is not None
    assert one.event_id == again.event_id != other.event_id


def test_a_share_of_one_is_entered_only_once_the_test_has_spoken() -> None:
    trial = TRIAL._replace(steps=((0.5, T0),))
    assert decided(both(40, {}), trial=trial) is None
    event = decided(both(40, {"reward": 0.8}), trial=trial)
    assert event is not None
    assert (event.kind, event.share) == ("canary_advanced", 1.0)


def test_after_the_last_step_comes_the_promotion_though_no_primary_answers_in_it() -> None:
    trial = TRIAL._replace(steps=((0.5, T0),))
    evidence, _ = canary.decide(after(both(40, {"reward": 0.8}), trial), trial, RULE, policy="p", at_ms=T0)
    last = trial._replace(steps=((0.5, T0), (1.0, T0 + 50)))
    alone = [answered(number, 2, reward=0.8) for number in range(100, 109)]
    evidence = after(alone, last, evidence)
    assert canary.decide(evidence, last, RULE, policy="p", at_ms=T0)[1] is None
    evidence, event = canary.decide(
        after([answered(110, 2, reward=0.8)], last, evidence), last, RULE, policy="p", at_ms=T0
    )
    assert event is not None
    assert (event.kind, event.expected_version) == ("promoted", 1)
    assert event.metrics["low"] > 0
    assert canary.decide(evidence, last, RULE, policy="p", at_ms=T0) == (evidence, None)


def test_with_decide_ask_a_person_promotes() -> None:
    rule = RULE.model_copy(update={"decide": "ask", "steps": "0.5"})
    event = decided(both(40, {"reward": 0.8}), rule, TRIAL._replace(steps=((0.5, T0),)))
    assert event is not None
    assert (event.kind, event.verdict) == ("judged", "promote")


def test_a_candidate_that_is_worse_is_rejected_though_a_person_decides() -> None:
    event = decided(both(40, {"reward": 0.2}), RULE.model_copy(update={"decide": "ask"}))
    assert event is not None
    assert event.kind == "rejected"
    assert event.metrics["high"] < 0


def test_a_gain_below_the_one_that_was_asked_for_is_no_promotion() -> None:
    rule = RULE.model_copy(update={"min_improvement": 0.2, "steps": "0.5"})
    event = decided(both(150, {"reward": 0.55}), rule, TRIAL._replace(steps=((0.5, T0),)))
    assert event is not None
    assert (event.kind, event.metrics["low"] > 0) == ("rejected", True)


def test_a_person_is_asked_when_many_groups_brought_no_verdict() -> None:
    trial = TRIAL._replace(steps=((0.5, T0),))
    event = decided(both(200, {}), RULE, trial)
    assert event is not None
    assert (event.kind, event.verdict) == ("judged", "ask")
    assert "200 groups of the candidate" in event.reason


HALF = TRIAL._replace(steps=((0.5, T0),))


def of_the_candidate(n: int, since: int = T0) -> list[AdvantagedGroup]:
    """Return n groups that are the candidate's at half of the tasks, answered by the primary, each begun at `since`."""
    numbers = (number for number in itertools.count() if place(2, f"t{number}") < 0.5)
    return [answered(number, 1, created_at=since + 10, latency_ms=10.0) for number in itertools.islice(numbers, n)]


def test_a_person_is_told_when_the_candidate_answers_nothing() -> None:
    alone = of_the_candidate(10, T0 + SETTLED_MS)
    event = decided(alone, trial=HALF)
    assert decided(alone[:9], trial=HALF) is None
    assert event is not None
    assert (event.kind, event.verdict) == ("judged", "ask")
    assert "could load it" in event.reason


def test_tasks_that_were_under_way_when_the_share_grew_are_no_sign_that_the_candidate_answers_nothing() -> None:
    assert decided(of_the_candidate(200, T0 + SETTLED_MS - 1), trial=HALF) is None


def test_what_is_the_primarys_by_its_task_is_no_sign_that_the_candidate_answers_nothing() -> None:
    theirs = [number for number in range(200) if place(2, f"t{number}") >= 0.5]
    assert decided([answered(number, 1, created_at=T0 + 2 * SETTLED_MS) for number in theirs], trial=HALF) is None


def test_what_a_candidate_missed_at_one_share_does_not_count_at_the_next() -> None:
    evidence = after(of_the_candidate(9, T0 + SETTLED_MS), HALF)
    grown = HALF._replace(steps=(*HALF.steps, (1.0, T0 + 2 * SETTLED_MS)))
    evidence = after(of_the_candidate(1, T0 + 3 * SETTLED_MS), grown, evidence)
    assert evidence.missed == 1


@pytest.mark.parametrize(
    ("candidate", "figure"),
    [({"cut": True}, "truncated"), ({"failed": 3}, "failed"), ({"tokens": 4}, "tokens"), ({"latency_ms": 25.0}, "lat")],
)
def test_a_guardrail_rolls_a_candidate_back_whatever_it_gains(candidate: dict[str, Any], figure: str) -> None:
    event = decided(both(12, {**candidate, "reward": 0.9}))
    assert event is not None
    assert event.kind == "rejected"
    assert event.reason.startswith(f"canary: {figure}")


@pytest.mark.parametrize("candidate", [{"tokens": 2}, {"latency_ms": 19.0}, {"failed": 0}])
def test_what_is_within_its_limit_trips_nothing(candidate: dict[str, Any]) -> None:
    assert canary.tripped(after(both(100, candidate)), RULE) == []


def test_a_guardrail_is_silent_before_there_are_enough_groups_of_each_arm() -> None:
    assert canary.tripped(after(both(9, {"cut": True})), RULE) == []


def test_a_guardrail_seldom_trips_over_chance_though_every_group_is_looked_at() -> None:
    draw, alarms = random.Random(7), 0
    for _ in range(30):
        evidence, tripped = Evidence(), False
        for offset in range(80):
            one = answered(offset, draw.choice((1, 2)), cut=draw.random() < 0.3, failed=draw.choice((0, 0, 1)))
            evidence = canary.count(evidence, TRIAL, one, offset)
            tripped = tripped or bool(canary.tripped(evidence, RULE))
        alarms += tripped
    assert alarms <= 2


def test_a_row_of_another_version_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="another consumer group"):
        canary.load(b'{"v": 0}')


# --- cost and recovery ------------------------------------------------------------------------------------------------


def test_each_arm_has_what_it_costs_by_its_own_prices_and_how_often_it_recovers() -> None:
    """The candidate is an outside model of other prices; its tokens are counted by its server."""
    theirs = [
        replace(counted_outside(slot, prompt=10, completion=5), failed_tools=2, recoveries=slot) for slot in (0, 1)
    ]
    ours = [replace(one, failed_tools=1, recoveries=1) for one in group().responses]
    evidence = after([answered(1, 2, responses=tuple(theirs)), answered(2, 1, responses=tuple(ours))])
    prices: canary.ArmPrices = {"candidate": TokenPrices(2.0, 4.0), "primary": TokenPrices(1.0, 1.0)}
    found = canary.metrics(evidence, RULE, prices)
    assert found["candidate_cost_usd"] == pytest.approx((10 * 2 + 5 * 4) / 1e6)
    assert found["primary_cost_usd"] == pytest.approx((3 + 2) / 1e6)
    assert found["cost_ratio"] == pytest.approx(8.0)
    assert (found["candidate_recovery"], found["primary_recovery"]) == (0.25, 1.0)
    unpriced = canary.metrics(evidence, RULE)
    assert not {"candidate_cost_usd", "primary_cost_usd", "cost_ratio"} & unpriced.keys()
