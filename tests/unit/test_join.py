"""The join: a group is whole, leaves once, and is made of one sampling."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.conventions import OUTSIDE_ENGINE
from schemas.events import AdvantagedGroup, ResponseTurn, RewardSource, derive_id
from schemas.serde import decode, encode
from schemas.tokens import Logprobs, LossMask, TokenIds
from streams import references
from streams.advantage_formulas import FORMULA_VERSION
from streams.stages.advantages import digests
from streams.stages.advantages.credit import source_digests
from streams.stages.advantages.group_event import common_prompt
from streams.stages.advantages.state import GroupState, OpenGroup, QuotaUse
from tests.support.factories import PROGRAM, T0, control, response, reward, task
from tests.support.log.join_partition import Log, answers, left_out, scores

# --- a whole group ---------------------------------------------------------------------------------------------------


def test_a_group_is_held_until_its_last_sibling_is_scored() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots)[:3]])
    assert log.closes == []
    log.read(scores(slots)[3])
    assert len(log.closes) == 1


def test_a_whole_group_carries_what_was_sampled_and_how_it_was_judged() -> None:
    log, slots = Log(eps=0.0), answers()
    log.read_all([task(metadata={"suite": "s"}, traceparent="00-a-b-01"), *slots, *scores(slots)])
    group = log.group()
    assert (group.complete, group.dropped_reason, group.left_out) == (True, None, ())
    assert (group.sampling_id, group.adapter_version, group.group_size) == ("s1", 0, 4)
    assert (group.base_digest, group.tokenizer_digest) == ("b" * 64, "c" * 64)
    assert (group.prompt_token_ids, group.sampling) == (TokenIds.of((1, 2, 3)), slots[0].sampling)
    assert (group.traceparent, group.metadata) == ("00-a-b-01", {"suite": "s"})
    assert [r.slot for r in group.responses] == [0, 1, 2, 3]
    assert [r.reward for r in group.responses] == [0.0, 1.0, 1.0, 2.0]
    # worked by hand: mean 1, sample standard deviation sqrt(2/3)
    assert [r.advantage for r in group.responses] == pytest.approx([-(1.5**0.5), 0.0, 0.0, 1.5**0.5])
    assert group.reward_mean == 1.0
    assert group.reward_std == pytest.approx((2 / 3) ** 0.5)
    assert [(r.partition, r.offset) for r in group.responses] == [(5, 0), (5, 1), (5, 2), (5, 3)]
    assert group.responses[2].completion_token_ids == slots[2].completion_token_ids
    assert group.responses[2].logprobs == slots[2].logprobs
    assert decode(encode(group), AdvantagedGroup) == group


@pytest.mark.parametrize("values", ["[1.0]", "[float('nan')] * 4", "1 / 0"])
def test_a_group_whose_own_formula_fails_is_recorded_as_dropped_for_that(
    values: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_formula.py").write_text(f"def fails(rewards, *, eps, ddof):\n    return {values}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "failing_formula", raising=False)
    references.load.cache_clear()
    source_digests.cache_clear()
    log, slots = Log(formula="failing_formula:fails"), answers()
    log.read_all([task(), *slots, *scores(slots)])
    group = log.group()
    assert (group.dropped_reason, group.reward_mean, len(group.left_out)) == ("formula_failed", 1.0, 4)


def test_a_group_has_the_id_of_its_task_and_the_tokens_that_its_prompts_share_once() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots)])
    assert log.group().group_id == derive_id(task().task_id, "group", FORMULA_VERSION)
    prompts = [TokenIds.of((1, 2, 3, *rest)).data for rest in ((), (4, 5), (4, 6), (7,))]
    shared = [TokenIds(common_prompt(some)) for some in (prompts, prompts[1:3])]
    assert shared == [TokenIds.of((1, 2, 3)), TokenIds.of((1, 2, 3, 4))]


def test_what_an_outside_model_says_of_its_tokens_is_in_the_group() -> None:
    log = Log()
    said = {"engine": OUTSIDE_ENGINE, "prompt_tokens": 7, "completion_tokens": 3}
    nothing = {
        "prompt_token_ids": TokenIds(),
        "completion_token_ids": TokenIds(),
        "logprobs": Logprobs(),
        "loss_mask": LossMask(),
    }
    slots = answers(**said, **nothing)
    log.read_all([task(), *slots, *scores(slots)])
    elsewhere = [member.elsewhere for member in log.group().responses]
    assert [(one.prompt_tokens, one.completion_tokens) for one in elsewhere if one is not None] == [(7, 3)] * 4


def test_a_score_without_parts_takes_no_digest_of_them() -> None:
    assert (digests.parts_digest({}, ()), len(digests.parts_digest({"a": 0.5}, ()))) == ("", 8)


def test_a_group_says_how_many_batches_its_version_had_taken_and_which_tool_calls_failed() -> None:
    turns = tuple(ResponseTurn(number=n, start=n, end=n + 1, tool="add", ok=ok) for n, ok in enumerate((False, True)))
    log, slots = (
        Log(),
        [dataclasses.replace(one, adapter_version=7, trained_batches=5, turns=turns) for one in answers()],
    )
    log.read_all([task(), *slots, *scores(slots)])
    group = log.group()
    assert (group.adapter_version, group.trained_batches, group.batches) == (7, 5, 5)
    assert {(one.failed_tools, one.recoveries) for one in group.responses} == {(1, 1)}


def test_a_group_says_of_each_response_which_agent_gave_it_and_what_was_run() -> None:
    log, slots = Log(), answers(agent_id="calc")
    slots[1] = dataclasses.replace(slots[1], program=PROGRAM)
    log.read_all([task(), *slots, *scores(slots)])
    said = [(one.agent_id, one.program) for one in log.group().responses]
    assert said == [("calc", None), ("calc", PROGRAM), ("calc", None), ("calc", None)]


def test_responses_stand_in_slot_order_however_they_came() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *reversed(slots), *scores(slots)])
    assert [r.slot for r in log.group().responses] == [0, 1, 2, 3]
    assert [r.offset for r in log.group().responses] == [3, 2, 1, 0]


def test_the_reward_of_a_response_is_the_weighted_sum_over_the_tasks_sources() -> None:
    sources = (RewardSource(name="exact", weight=2.0), RewardSource(name="length", weight=-0.5))
    log, slots = Log(), answers()
    exact, length = scores(slots), scores(slots, (4.0, 4.0, 4.0, 4.0), source="length", components={"tokens": 9.0})
    log.read_all([task(reward_sources=sources), *slots, *exact, *length])
    group = log.group()
    assert [r.reward for r in group.responses] == [-2.0, 0.0, 0.0, 2.0]
    assert group.responses[3].components == {"exact": 2.0, "exact.match": 1.0, "length": 4.0, "length.tokens": 9.0}


def test_every_source_must_have_spoken() -> None:
    sources = (RewardSource(name="exact"), RewardSource(name="judge"))
    log, slots = Log(), answers()
    log.read_all([task(reward_sources=sources), *slots, *scores(slots), *scores(slots, source="judge")[:3]])
    assert log.closes == []


def test_equal_rewards_give_zero_advantages() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots, (0.3,) * 4)])
    assert [r.advantage for r in log.group().responses] == [0.0] * 4


def test_created_at_is_the_newest_record_it_was_made_of() -> None:
    log, slots = Log(), answers()
    log.read(task())
    for slot, at_ms in zip(slots, (T0 + 11, T0 + 99, T0 + 12, T0 + 13), strict=True):
        log.read(slot, at_ms)
    log.read_all(scores(slots))
    assert log.group().created_at == T0 + 99


def test_a_serve_task_without_judges_leaves_when_it_is_answered() -> None:
    log = Log()
    log.read_all([task(purpose="serve", reward_sources=(), group_size=1), *answers(1)])
    assert (log.group().complete, len(log.group().responses)) == (True, 1)


# --- at least once, in any order -------------------------------------------------------------------------------------


def test_a_reward_before_its_response_is_normal() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *scores(slots), *slots])
    assert len(log.group().responses) == 4


def test_a_task_that_comes_last_finds_everything_waiting() -> None:
    log, slots = Log(), answers()
    log.read_all([*scores(slots), *slots])
    assert log.closes == []
    log.read(task())
    assert (len(log.group().responses), log.rejects) == (4, [])


def test_a_reward_delivered_twice_counts_once() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots)[:3], *scores(slots)[:3]])
    assert (log.closes, log.rejects) == ([], [])
    log.read(scores(slots)[3])
    assert log.group().reward_mean == 1.0


def test_feedback_enters_no_group_and_leaves_no_dead_letter_whenever_it_comes() -> None:
    log, slots = Log(), answers()
    opinion = reward(slots[0], source="feedback/ada", value=0.1)
    log.read_all([opinion, task(), *slots, opinion, *scores(slots), opinion])
    assert len(log.closes) == 1 and log.rejects == []
    assert not any("feedback/ada" in one.components for one in log.group().responses)


def uncounted(log: Log) -> GroupState:
    """Return the state without the use of its quota, which grows with each record."""
    return log.state and log.state._replace(quota=QuotaUse())


def test_the_same_event_again_leaves_the_state_as_it_is() -> None:
    slots = answers()
    for early in ([], [task()]):
        log = Log()
        log.read_all([*early, *slots, *scores(slots)[:2]])
        before = uncounted(log)
        log.read_all([*early, *slots, *scores(slots)[:2]])
        assert (uncounted(log), log.rejects) == (before, [])


def test_what_comes_again_after_the_group_left_is_a_no_op() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots)])
    closed = uncounted(log)
    log.read_all([task(), *slots, *scores(slots)])
    assert (len(log.closes), log.rejects, uncounted(log)) == (1, [], closed)


def test_a_group_leaves_once_even_if_it_expires_afterwards() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots), control()])
    assert len(log.closes) == 1


def test_the_task_may_be_submitted_again_under_another_trace() -> None:
    log = Log()
    log.read_all([task(traceparent="00-a-b-01"), task(traceparent="00-c-d-01", created_at=T0 + 5)])
    assert log.rejects == []


@pytest.mark.parametrize(
    "changes",
    [
        {"group_size": 8},
        {"messages": task().messages * 2},
        {"sampling": dataclasses.replace(task().sampling, temperature=0.5)},
        {"verifier": '{"answer": "12"}'},
        {"reward_sources": (RewardSource(name="exact", weight=2.0),)},
    ],
)
def test_another_task_under_the_same_id_is_contradictory(changes: dict[str, Any]) -> None:
    log = Log()
    log.read_all([task(), task(**changes)])
    assert log.reasons() == [("tasks@1", "contradictory")]
    assert "Give a changed task a new task_id" in log.rejects[0].error


def test_another_value_under_the_same_reward_id_is_contradictory_and_the_first_wins() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, reward(slots[0], value=0.0), reward(slots[0], value=9.0), *scores(slots)[1:]])
    assert log.reasons() == [("rewards@1", "contradictory")]
    assert "the value 9.0, but rewards[5]@0 already has 0.0" in log.rejects[0].error
    assert log.group().responses[0].reward == 0.0


def test_repetitions_before_the_task_do_not_make_the_state_grow() -> None:
    log, slots = Log(), answers()
    log.read_all([*slots, *scores(slots)] * 20)
    assert isinstance(log.state, OpenGroup)
    assert len(log.state.early) == 8


# --- one sampling ----------------------------------------------------------------------------------------------------


def test_of_two_samplings_the_one_that_was_whole_first_is_taken() -> None:
    first, second = answers(sampling_id="s1"), answers(sampling_id="s2", adapter_version=1)
    log = Log()
    # s2 begins first and ends last
    log.read_all([task(), second[0], *first, *second[1:], *scores(second), *scores(first)])
    group = log.group()
    assert (group.sampling_id, group.adapter_version) == ("s1", 0)
    assert {r.response_id for r in group.responses} == {r.response_id for r in first}


def test_the_other_sampling_is_superseded_whether_read_before_or_after() -> None:
    first, second = answers(sampling_id="s1"), answers(sampling_id="s2")
    before, after = Log(), Log()
    before.read_all([task(), *first, *second, *scores(first)])
    after.read_all([task(), *first, *scores(first), *second])
    assert before.reasons() == after.reasons() == [(f"responses@{n}", "superseded") for n in (4, 5, 6, 7)]
    assert encode(before.group()) == encode(after.group())


def test_a_sampling_by_two_versions_is_contradictory() -> None:
    log, slots = Log(), answers()
    slots[2] = response(slot=2, adapter_version=1)
    log.read_all([task(), *slots])
    assert log.reasons() == [("responses@2", "contradictory")]
    assert "sampling s1 began with adapter version 0, but slot 2 has 1" in log.rejects[0].error


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_token_ids": (9, 9)},
        {"tokenizer_digest": "x"},
        {"base_digest": "x"},
        {"trained_batches": 1},
        {"sampling": dataclasses.replace(response().sampling, temperature=0.5)},
    ],
)
def test_slots_that_do_not_share_what_their_group_says_once_are_contradictory(changes: dict[str, Any]) -> None:
    log = Log()
    log.read_all([task(), response(slot=0, error="oom"), response(slot=1), response(slot=2, **changes)])
    assert log.reasons() == [("responses@2", "contradictory")]


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_a_zero_is_shared_whatever_its_sign_also_after_a_restart(name: str) -> None:
    log = Log()
    log.read(task())
    for slot, zero in enumerate((0.0, -0.0)):
        digests._shared_digest.cache_clear()
        log.read(response(slot=slot, sampling=dataclasses.replace(response().sampling, **{name: zero})))
    assert log.rejects == []


def test_each_slot_may_have_its_own_seed() -> None:
    log = Log()
    seeded = [response(slot=n, sampling=dataclasses.replace(response().sampling, seed=n)) for n in range(4)]
    log.read_all([task(), *seeded])
    assert log.rejects == []


@pytest.mark.parametrize(
    ("asked", "answered", "says"),
    [
        ({}, {"group_size": 8}, "the task has group_size 4, but this response says 8"),
        ({}, {"policy": "other"}, "policy 'default', but this response is of 'other'"),
        ({"adapter_version": 3}, {"adapter_version": 2}, "adapter version 3 pinned, but version 2 answered"),
    ],
)
@pytest.mark.parametrize("task_first", [True, False])
def test_a_response_at_odds_with_its_task_is_rejected(
    asked: dict[str, Any], answered: dict[str, Any], says: str, task_first: bool
) -> None:
    log, wrong = Log(), response(**answered)
    log.read_all([task(**asked), wrong] if task_first else [wrong, task(**asked)])
    assert log.reasons() == [("responses@0", "contradictory")]
    assert says in log.rejects[0].error


def test_a_pinned_version_that_answers_makes_its_group() -> None:
    log, slots = Log(), answers(adapter_version=3)
    log.read_all([task(adapter_version=3, purpose="eval"), *slots, *scores(slots)])
    assert (log.group().adapter_version, log.group().metadata["pinned_version"]) == (3, "3")


# --- what failed -----------------------------------------------------------------------------------------------------


def test_a_failed_slot_is_left_out_of_the_baseline_and_listed() -> None:
    log, slots = Log(), answers()
    slots[1] = response(slot=1, error="out of memory")
    log.read_all([task(), *slots, *scores([slots[0], slots[2], slots[3]], (0.0, 1.0, 2.0))])
    group = log.group()
    assert (group.complete, group.reward_mean, left_out(group)) == (True, 1.0, [(1, "response_failed")])
    assert [left.response_id for left in group.left_out] == [slots[1].response_id]


def test_a_serve_task_whose_answers_failed_is_unscored_only_if_it_was_cut() -> None:
    asked = task(purpose="serve", reward_sources=(), group_size=2)
    failed = [response(slot=slot, group_size=2, error="out of memory") for slot in range(2)]
    whole, cut = Log(), Log()
    whole.read_all([asked, *failed])
    cut.read_all([asked, failed[0], control()])
    assert (whole.group().dropped_reason, cut.group().dropped_reason) == (None, "unscored")


def test_a_source_without_an_opinion_is_left_out_of_the_sum_and_of_the_components() -> None:
    sources = (RewardSource(name="exact", weight=2.0), RewardSource(name="length", weight=-0.5))
    log, slots = Log(), answers()
    silent = reward(slots[3], source="length", abstained=True)
    log.read_all([task(reward_sources=sources), *slots, *scores(slots), *scores(slots[:3], source="length"), silent])
    group = log.group()
    assert [r.reward for r in group.responses] == [0.0, 1.5, 1.5, 4.0]
    assert group.responses[3].components == {"exact": 2.0, "exact.match": 1.0}
    assert (group.complete, group.left_out) == (True, ())


def test_a_response_of_which_no_source_has_an_opinion_is_left_out_at_once() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots[:3], (1.0, 2.0, 3.0)), reward(slots[3], abstained=True)])
    group = log.group()
    assert (group.complete, group.reward_mean, left_out(group)) == (True, 2.0, [(3, "abstained")])
    nobody = Log()
    nobody.read_all([task(), *slots, *(reward(slot, abstained=True) for slot in slots)])
    assert (nobody.group().dropped_reason, nobody.group().responses) == ("unscored", ())
    assert left_out(nobody.group()) == [(slot, "abstained") for slot in range(4)]


def test_no_opinion_and_a_failure_of_one_source_contradict_each_other_before_and_after_the_group_left() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, reward(slots[0], abstained=True), reward(slots[0], error="timeout")])
    log.read_all([*scores(slots[1:]), reward(slots[0], abstained=True), reward(slots[0], error="late", components={})])
    assert len(log.closes) == 1
    assert {reason for _, reason in log.reasons()} == {"contradictory"}


def test_a_failed_score_is_missing_and_never_zero() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots, (1.0, 2.0, 3.0)), reward(slots[3], error="timeout")])
    group = log.group()
    assert (group.complete, group.reward_mean, left_out(group)) == (True, 2.0, [(3, "score_failed")])


def test_a_score_of_a_failed_slot_changes_nothing() -> None:
    # some scorers judge errors too; whether that was read before the group left depends on the order
    slots = [*answers()[:3], response(slot=3, error="oom")]
    stray = reward(slots[3], created_at=T0 + 500)
    before, after = Log(), Log()
    before.read_all([task(), *slots, stray, *scores(slots[:3])])
    after.read_all([task(), *slots, *scores(slots[:3]), stray])
    assert encode(before.group()) == encode(after.group())


def test_a_group_of_failures_is_recorded_with_its_reason() -> None:
    log = Log()
    log.read_all([task(), *(response(slot=n, error="oom") for n in range(4))])
    group = log.group()
    assert (group.complete, group.dropped_reason, group.responses) == (True, "unscored", ())
    assert left_out(group) == [(n, "response_failed") for n in range(4)]


def test_a_train_group_with_too_few_scores_is_dropped_and_its_members_say_so() -> None:
    log, slots = Log(min_group=3), answers()
    slots[0], slots[1] = response(slot=0, error="oom"), response(slot=1, error="oom")
    log.read_all([task(), *slots, *scores(slots[2:])])
    group = log.group()
    assert (group.dropped_reason, group.responses) == ("too_few_scored", ())
    assert [reason for _, reason in left_out(group)] == ["response_failed"] * 2 + ["too_few_scored"] * 2
    assert (group.sampling_id, group.reward_mean) == ("s1", 0.5)
