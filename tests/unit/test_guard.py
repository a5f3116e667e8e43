"""The guard: promote on a proof of gain, reject on a proof of harm, ask about all between; each with its reasons."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from schemas.events import AdapterEvent, Outcome, OutsideModel, problems
from schemas.serde import decode, encode
from streams.adapters.versions import Version
from streams.errors import SettingsError
from streams.settings.model import Guard, Prices, Rollouts, Settings
from streams.stages.rollouts import guard
from streams.stages.rollouts.guard import GuardResult, Thresholds, TokenPrices
from streams.stages.rollouts.state import rule_of

SUITE = "sums@1f3c9a2b"
RULE = Guard()


def version(
    number: int,
    rewards: Sequence[float | None],
    *,
    scenarios: Sequence[str] = ("sums",),
    tokens: float = 4.0,
    latency_ms: float | None = 20.0,
    suite: str = SUITE,
) -> Version:
    """Return a version with one outcome per reward; None failed. Scenarios take turns."""
    outcomes = tuple(
        Outcome(index=index, scenario=scenarios[index % len(scenarios)], failed=1)
        if reward is None
        else Outcome(
            index=index,
            scenario=scenarios[index % len(scenarios)],
            success=float(reward == 1.0),
            reward=reward,
            tokens=tokens,
            latency_ms=latency_ms,
        )
        for index, reward in enumerate(rewards)
    )
    failed = float(list(rewards).count(None))
    metrics = {"n": len(rewards) - failed, "failed": failed}
    return Version(version=number, status="trained", evaluated={suite: metrics}, outcomes={suite: outcomes})


def judged(
    candidate: Version, incumbent: Version, rule: Guard = RULE, thresholds: Thresholds | None = None
) -> GuardResult:
    return guard.judge(candidate, incumbent, rule, SUITE, thresholds)


HALF = [1.0, 0.0] * 20
BETTER = [1.0] * 32 + [0.0] * 8
WORSE = [0.0] * 32 + [1.0] * 8


# --- the gain ---------------------------------------------------------------------------------------------------------


def test_a_version_that_is_surely_better_is_promoted_with_the_figures() -> None:
    found = judged(version(7, BETTER), version(3, HALF))
    assert found.verdict == "promote"
    assert found.reasons == (
        "mean reward 0.8 against 0.5 on 40 tasks: gain 0.3 (0.091 to 0.48), the rule asks for more than 0",
    )
    assert (found.metrics["gain"], found.metrics["n"], found.metrics["failed_share"]) == (pytest.approx(0.3), 40.0, 0.0)


def test_a_version_that_is_surely_worse_is_rejected() -> None:
    found = judged(version(7, WORSE), version(3, HALF))
    assert found.verdict == "reject"
    assert any(reason.startswith("mean reward 0.2 against 0.5") for reason in found.reasons)


def test_a_version_that_is_perhaps_better_needs_a_person() -> None:
    rewards = [1.0] * 3 + HALF[3:]
    assert judged(version(7, rewards), version(3, HALF)).verdict == "ask"


def test_a_version_that_answers_just_as_the_primary_does_needs_a_person() -> None:
    found = judged(version(7, HALF), version(3, HALF))
    assert found.verdict == "ask"
    assert "0 tasks came out differently, and 6 could first prove anything" in found.reasons[0]


def test_a_gain_that_rests_on_fewer_tasks_than_chance_needs_is_no_proof() -> None:
    # four gains of thirty look certain to a t interval, and fall on one side by chance once in eight
    graded = [0.25] * 30
    found = judged(version(7, [0.75] * 4 + graded[4:]), version(3, graded))
    assert found.metrics["gain_low"] > 0
    assert found.verdict == "ask"


def test_the_improvement_that_is_asked_for_can_be_set() -> None:
    rule = Guard(min_improvement=0.2)
    assert judged(version(7, BETTER), version(3, HALF), rule).verdict == "ask"
    assert judged(version(7, [1.0] * 40), version(3, HALF), rule).verdict == "promote"


def test_a_rule_that_allows_a_small_loss_promotes_what_is_as_good() -> None:
    assert judged(version(7, HALF * 5), version(3, HALF * 5), Guard(min_improvement=-0.1)).verdict == "promote"


def test_more_confidence_needs_more_proof() -> None:
    assert judged(version(7, BETTER), version(3, HALF), Guard(confidence=0.9999)).verdict == "ask"


def test_fewer_tasks_than_the_minimum_prove_nothing_in_either_direction() -> None:
    for rewards in ([1.0] * 29, [0.0] * 29):
        found = judged(version(7, rewards), version(3, [1.0 - reward for reward in rewards]))
        assert (found.verdict, found.reasons[0]) == (
            "ask", "29 tasks were scored for both versions, the rule asks for 30",
        )  # fmt: skip


def test_tasks_that_one_version_has_no_score_for_are_in_no_mean() -> None:
    found = judged(version(7, [*BETTER, 0.0]), version(3, [*HALF, None]))
    assert (found.verdict, found.metrics["n"]) == ("promote", 40.0)


def test_under_no_difference_a_promotion_or_rejection_is_as_rare_as_the_confidence_says() -> None:
    # 400 suites of 40 tasks, fixed seed; each side may fall 2.5 times in 100, and three standard errors more
    for share in (0.1, 0.3, 0.6):
        rng, verdicts = random.Random(share), []
        for _ in range(400):
            same = [float(rng.random() < 0.5) for _ in range(40)]
            sides = [[float(rng.random() < 0.5) if rng.random() < share else one for one in same] for _ in range(2)]
            verdicts.append(judged(version(7, sides[0]), version(3, sides[1]), Guard(max_scenario_loss=1)).verdict)
        assert verdicts.count("promote") <= 19 and verdicts.count("reject") <= 19


# --- scenarios and thresholds -----------------------------------------------------------------------------------------

TWO = ("easy", "hard")


def test_a_version_that_wins_on_average_and_fails_one_scenario_is_rejected() -> None:
    incumbent = version(3, [0.0, 0.0, 0.0, 1.0] * 20, scenarios=("easy", "easy", "easy", "hard"))
    candidate = version(7, [1.0, 1.0, 1.0, 0.0] * 20, scenarios=("easy", "easy", "easy", "hard"))
    found = judged(candidate, incumbent)
    assert found.verdict == "reject"
    assert found.reasons[0].startswith("scenario hard: mean reward 0 against 1 on 20 tasks, a change of -1 (")
    assert found.reasons[-1].startswith("mean reward 0.75 against 0.25 on 80 tasks")
    assert (found.metrics["scenario.hard.gain"], found.metrics["scenario.easy.n"]) == (-1.0, 60.0)


def test_a_scenario_that_looks_worse_and_is_not_surely_so_needs_a_person() -> None:
    incumbent = version(3, [0.0, 1.0] * 20, scenarios=TWO)
    candidate = version(7, [1.0, 1.0] * 18 + [1.0, 0.0] * 2, scenarios=TWO)
    found = judged(candidate, incumbent)
    assert found.verdict == "ask"
    assert found.reasons[0].startswith("scenario hard: mean reward 0.9 against 1 on 20 tasks")
    assert judged(candidate, incumbent, Guard(max_scenario_loss=0.1)).verdict == "promote"


def test_a_scenario_without_any_pair_of_scores_needs_a_person() -> None:
    incumbent = version(3, [0.0, 1.0] * 40, scenarios=TWO)
    candidate = version(7, [1.0, None] * 40, scenarios=TWO)
    found = judged(candidate, incumbent, Guard(max_failed=1))
    assert (found.verdict, found.reasons[0]) == (
        "ask", "scenario hard has no task that was scored for both versions",
    )  # fmt: skip


@pytest.mark.parametrize(("least", "verdict"), [(0.75, "promote"), (0.85, "ask"), (0.95, "reject")])
def test_a_threshold_of_the_suite_holds_whatever_the_primary_does(least: float, verdict: str) -> None:
    found = judged(version(7, BETTER), version(3, HALF), thresholds={"sums": {"success": least}})
    assert found.verdict == verdict
    assert found.gate["scenario.sums.success"] == f"{least:g}"


def test_a_threshold_may_be_on_the_mean_reward() -> None:
    found = judged(version(7, BETTER), version(3, HALF), thresholds={"sums": {"mean_reward": 0.99}})
    assert (found.verdict, found.reasons[0]) == (
        "reject", "scenario sums: mean_reward 0.8 on 40 tasks, the suite asks for 0.99",
    )  # fmt: skip


# --- costs ------------------------------------------------------------------------------------------------------------


def test_a_version_that_writes_twice_as_much_is_rejected() -> None:
    found = judged(version(7, BETTER, tokens=8.0), version(3, HALF))
    assert (found.verdict, found.reasons[0]) == (
        "reject", "8 tokens against 4 per response, the rule allows 1.5 times as many",
    )  # fmt: skip
    assert judged(version(7, BETTER, tokens=6.0), version(3, HALF)).verdict == "promote"


def test_a_slower_version_needs_a_person_since_the_hour_may_be_the_reason() -> None:
    found = judged(version(7, BETTER, latency_ms=80.0), version(3, HALF))
    assert (found.verdict, found.reasons[0]) == (
        "ask", "median of 80 ms against 20 per response, the rule allows 1.5 times as long",
    )  # fmt: skip


def test_milliseconds_that_any_first_round_costs_are_no_reason() -> None:
    assert judged(version(7, BETTER, latency_ms=8.0), version(3, HALF, latency_ms=1.0)).verdict == "promote"


def test_a_latency_that_was_not_recorded_is_not_compared() -> None:
    assert judged(version(7, BETTER, latency_ms=None), version(3, HALF)).verdict == "promote"


def test_failed_slots_above_the_limit_need_a_person() -> None:
    found = judged(version(7, [*BETTER, None]), version(3, [*HALF, 0.0]))
    assert (found.verdict, found.reasons[0]) == ("ask", "2.4% of the slots have no score, the rule allows 2.0%")
    half = judged(version(7, [*BETTER, *[None] * 40]), version(3, [*HALF, *[0.0] * 40]))
    assert half.reasons[0].startswith("50.0% of the slots have no score")


# --- what is missing --------------------------------------------------------------------------------------------------


def test_a_primary_that_was_not_asked_needs_asking() -> None:
    found = judged(version(7, BETTER), Version(version=3, status="primary"))
    assert (found.verdict, found.metrics) == ("ask", {})
    assert found.reasons == (
        f"version 3 has no result of suite {SUITE}; ask it with `streamward evaluate --version 3 --suite FILE`",
    )


def test_the_same_suite_with_other_questions_is_another_suite() -> None:
    found = judged(version(7, BETTER), version(3, HALF, suite="sums@00000000"))
    assert found.verdict == "ask"
    assert "it was asked sums@00000000, which are other questions" in found.reasons[0]


def test_a_result_without_outcomes_cannot_be_paired() -> None:
    old = Version(version=3, status="primary", evaluated={SUITE: {"n": 40.0, "failed": 0.0, "exact": 0.5}})
    found = judged(version(7, BETTER), old)
    assert found.verdict == "ask"
    assert "without telling its tasks apart" in found.reasons[0]


# --- the record -------------------------------------------------------------------------------------------------------


def event_of(found: GuardResult, **changed: object) -> AdapterEvent:
    given = {"policy": "p", "version": 7, "against": 3, "suite": SUITE, "created_at": 9} | changed
    return guard.event(found, **given)  # type: ignore[arg-type]


def test_the_event_names_verdict_reason_suite_primary_and_the_rule_in_force() -> None:
    found = judged(version(7, BETTER), version(3, HALF), Guard(min_tasks=20))
    event = event_of(found)
    assert (event.kind, event.verdict, event.version, event.expected_version, event.suite, event.created_at) == (
        "judged", "promote", 7, 3, SUITE, 9,
    )  # fmt: skip
    assert event.reason == "; ".join(found.reasons)
    assert (event.gate["guard.min_tasks"], event.gate["guard.decide"]) == ("20", "auto")
    assert list(problems(event)) == []
    assert decode(encode(event), AdapterEvent) == event


def test_the_same_judgement_under_the_same_rule_is_the_same_event() -> None:
    found = judged(version(7, BETTER), version(3, HALF))
    assert event_of(found) == event_of(judged(version(7, BETTER), version(3, HALF)))
    other = judged(version(7, BETTER), version(3, HALF), Guard(min_tasks=20))
    others = [event_of(found, **{name: other}) for name, other in (("against", 4), ("suite", "b@1"), ("policy", "q"))]
    assert len({event.event_id for event in (event_of(found), event_of(other), *others)}) == 5


rewards = st.lists(st.none() | st.sampled_from([0.0, 0.2, 0.5, 1.0]), min_size=1, max_size=50)


@given(rewards, rewards)
def test_no_pair_of_results_is_beyond_judging_and_none_is_better_than_itself(
    first: list[float | None], second: list[float | None]
) -> None:
    found = judged(version(7, first, scenarios=TWO), version(3, second, scenarios=TWO))
    assert found.reasons
    assert encode(event_of(found))
    back = judged(version(3, second, scenarios=TWO), version(7, first, scenarios=TWO))
    assert (found.verdict, back.verdict) != ("promote", "promote")
    assert judged(version(7, first), version(3, first)).verdict == "ask"


# --- cost and recoveries ----------------------------------------------------------------------------------------------

PRICES = TokenPrices(prompt=1.0, completion=10.0)


def with_tokens(number: int, rewards: Sequence[float], read: float, wrote: float, **counts: int) -> Version:
    """A version whose responses read and wrote so many tokens, and whose tool calls failed so often."""
    made = version(number, rewards)
    outcomes = (
        replace(outcome, prompt_tokens=read, sampled_tokens=wrote, **counts) for outcome in made.outcomes[SUITE]
    )
    return replace(made, outcomes={SUITE: tuple(outcomes)})


def test_cost_is_that_of_the_tokens_read_and_written_and_judged_only_if_the_rule_says_so() -> None:
    """Per response 100 read and 10 written are 200 millionths of a dollar; 300 and 10 are twice as much."""
    dear, cheap = with_tokens(2, BETTER, 300, 10), with_tokens(1, HALF, 100, 10)
    rule = Guard(max_cost_ratio=1.5)
    result = guard.judge(dear, cheap, rule, SUITE, None, PRICES)
    assert result.verdict == "reject"
    assert "0.0004 USD against 0.0002 per response, the rule allows 1.5 times as much" in result.reasons[0]
    assert result.metrics["cost_ratio"] == pytest.approx(2.0)
    assert (result.gate["guard.max_cost_ratio"], result.gate["prices.completion_usd"]) == ("1.5", "10")
    assert guard.judge(dear, cheap, Guard(max_cost_ratio=2.0), SUITE, None, PRICES).verdict == "promote"
    unset = guard.judge(dear, cheap, Guard(), SUITE, None, PRICES)
    assert unset.verdict == "promote" and not {"guard.max_cost_ratio", "prices.prompt_usd"} & unset.gate.keys()


def test_a_cost_that_is_not_recorded_is_asked_about() -> None:
    result = guard.judge(version(2, BETTER), with_tokens(1, HALF, 1, 1), Guard(max_cost_ratio=2), SUITE, None, PRICES)
    assert result.verdict == "ask" and "the tokens of 40 tasks are not recorded" in result.reasons[0]


@pytest.mark.parametrize(("recovered", "verdict"), [(8, "promote"), (7, "promote"), (2, "reject")])
def test_a_version_that_gives_up_after_failed_tools_is_rejected(recovered: int, verdict: str) -> None:
    rule = Guard(max_recovery_loss=0.2)
    gives_up = with_tokens(2, BETTER, 1, 1, failed_tools=10, recoveries=recovered)
    result = guard.judge(gives_up, with_tokens(1, HALF, 1, 1, failed_tools=10, recoveries=8), rule, SUITE)
    assert result.verdict == verdict
    assert result.metrics["recovery_gain"] == pytest.approx(recovered / 10 - 0.8)
    assert guard.judge(gives_up, with_tokens(1, HALF, 1, 1), rule, SUITE).verdict == "promote", "nothing to compare"


def test_a_cost_gate_without_prices_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"guard.max_cost_ratio is 1.5, and nothing says what tokens cost"):
        rule_of(Settings(guard=Guard(max_cost_ratio=1.5)), None)
    priced = Settings(guard=Guard(max_cost_ratio=1.5), prices=Prices(prompt_usd=1, completion_usd=10))
    assert rule_of(priced, None).prices == PRICES


@pytest.mark.parametrize("limit", [{"max_cost_ratio": 1.5}, {"max_recovery_loss": 0.1}])
def test_a_limit_that_a_canary_without_a_suite_cannot_judge_is_refused_by_name(limit: dict[str, float]) -> None:
    settings = Settings(rollouts=Rollouts(mode="canary"), guard=Guard(**limit))
    with pytest.raises(SettingsError, match=rf"guard\.{next(iter(limit))} has no effect on a canary alone"):
        rule_of(settings, None)


def test_an_outside_model_costs_what_was_recorded_with_it() -> None:
    """Its prompt tokens are ten times as dear, so the same tokens are more than the rule allows."""
    model = OutsideModel(url="http://h/v1", model="m", prompt_usd=10 * PRICES.prompt, completion_usd=PRICES.completion)
    theirs = replace(with_tokens(2, BETTER, 100, 1), outside=model)
    result = guard.judge(theirs, with_tokens(1, HALF, 100, 1), Guard(max_cost_ratio=2.0), SUITE, None, PRICES)
    assert result.verdict == "reject" and result.metrics["cost_ratio"] > 2
    unpriced = replace(theirs, outside=OutsideModel(url="http://h/v1", model="m"))
    asked = guard.judge(unpriced, with_tokens(1, HALF, 100, 1), Guard(max_cost_ratio=2.0), SUITE, None, PRICES)
    assert asked.verdict == "ask"
