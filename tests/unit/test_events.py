"""Events: ids say what a record is about, and rules that a type cannot say are asked on write and on read."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from schemas.events import (
    EVENTS,
    NAMESPACE,
    AdapterEvent,
    CallLora,
    CallOrigin,
    Coordinates,
    EpisodeStart,
    Event,
    OutsideModel,
    RewardSource,
    Sampling,
    TunedGroup,
    Tuning,
    derive_id,
    problems,
)
from tests.support.factories import (
    counted_outside,
    group,
    memory_event,
    one_of_each,
    outside,
    response,
    reward,
    task,
    thread_event,
    trained,
    training_call,
    training_result,
)

EPISODE = {"agent": "environment", "environment": EpisodeStart(name="guess", seed=1), "max_turns": 4}


def test_an_id_is_the_uuid5_of_its_parts_under_one_namespace() -> None:
    assert derive_id("s1", 3) == str(uuid.uuid5(NAMESPACE, "s1\x1f3"))
    for number in range(100):  # whatever bits the digest has
        assert derive_id("ä", number) == str(uuid.uuid5(NAMESPACE, f"ä\x1f{number}"))


def test_the_namespace_never_changes() -> None:
    # every id in every log was derived under it
    assert derive_id("sampling", 0) == "86c34729-6d59-5976-92f6-a662376640f5"


def test_parts_of_an_id_do_not_run_into_each_other() -> None:
    assert derive_id("a", "b1") != derive_id("ab", "1")


def test_coordinates_print_as_topic_partition_offset() -> None:
    assert str(Coordinates("streamward.rewards", 3, 1041)) == "streamward.rewards[3]@1041"


def test_the_factories_make_one_good_event_of_every_kind() -> None:
    made = one_of_each()
    assert Counter(type(event) for event in made) == Counter(EVENTS)
    assert [problem for event in made for problem in problems(event)] == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"group_size": 0}, "group_size is 0; a group needs at least 1"),
        ({"group_size": -3}, "group_size is -3"),
        ({"group_size": 2_000_000_000}, "group_size is 2000000000; expected at most 1024"),
        ({"messages": ()}, "messages is empty"),
        ({"reward_sources": ()}, "reward_sources is empty; a task of purpose train needs at least one scorer"),
        ({"reward_sources": (RewardSource(name="a"), RewardSource(name="a"))}, "has a name twice"),
        ({"reward_sources": (RewardSource(name="a", weight=1e200),)}, "weight 1e+200; expected at most 1e+12"),
        ({"sampling": Sampling(max_tokens=0)}, "max_tokens is 0"),
        ({"sampling": Sampling(temperature=-0.5)}, "temperature is -0.5; expected 0 (greedy) or more"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p is 0.0"),
        ({"sampling": Sampling(top_p=1.5)}, "top_p is 1.5"),
        ({"agent": "a", "max_turns": 0}, "max_turns is 0; at least 1 model call must be allowed"),
        ({**EPISODE, "max_turns": 10_000}, "max_turns is 10000; in an environment, expected 1 to 1024"),
        ({**EPISODE, "max_turns": None}, "max_turns is None; in an environment, expected 1 to 1024"),
        ({**EPISODE, "agent": None}, "environment is set and agent is not; name the agent"),
    ],
)
def test_a_task_that_cannot_be_answered_says_what_is_wrong(changes: dict[str, Any], says: str) -> None:
    (problem,) = problems(task(**changes))
    assert says in problem


def test_only_a_serve_task_may_go_without_a_judge() -> None:
    assert not list(problems(task(reward_sources=(), purpose="serve")))
    assert list(problems(task(reward_sources=(), purpose="eval")))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"slot": 4}, "slot is 4; expected 0 to 3 for group_size 4"),
        ({"slot": -1}, "slot is -1"),
        ({"response_id": "mine"}, "response_id is not uuid5(sampling_id, slot)"),
        ({"finish_reason": "error"}, "finish_reason is error but error is None"),
        ({"error": "out of memory", "finish_reason": "stop"}, "finish_reason is stop but error is 'out of memory'"),
        ({"logprobs": (-0.5,)}, "completion_token_ids has 2 entries, logprobs 1, loss_mask 2"),
        ({"loss_mask": ()}, "loss_mask 0"),
    ],
)
def test_a_response_at_odds_with_itself_says_what_is_wrong(changes: dict[str, Any], says: str) -> None:
    (problem,) = problems(response(**changes))
    assert says in problem


def test_an_empty_completion_is_a_response_like_any_other() -> None:
    assert not list(problems(response(text="", completion_token_ids=(), logprobs=(), loss_mask=())))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"value": None}, "value is None, error is None and abstained is False; exactly one"),
        ({"value": 1.0, "error": "timeout"}, "exactly one"),
        ({"value": float("nan")}, "a reward is a finite number"),
        ({"value": float("inf")}, "a reward is a finite number"),
        ({"value": -1e200}, "expected at most 1e+12 in size"),
        ({"components": {str(n): 0.5 for n in range(257)}}, "components has 257 entries; expected at most 256"),
        ({"components": {"x" * 201: 0.5}}, "components has a name of 201 characters; expected at most 200"),
        ({"rationale": "x" * 10_001}, "rationale has 10001 characters; expected at most 10000"),
        ({"reward_id": "mine"}, "reward_id is not uuid5(response_id, source)"),
    ],
)
def test_a_reward_that_is_none_says_what_is_wrong(changes: dict[str, Any], says: str) -> None:
    assert any(says in problem for problem in problems(reward(**changes)))


def test_a_failed_score_has_an_error_and_no_value() -> None:
    assert not list(problems(reward(error="timeout")))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": -3, "parent_version": None, "first_batch": None, "last_batch": None}, "version is -3"),
        ({"version": 0, "parent_version": None, "first_batch": None, "last_batch": None}, "0 is the base model"),
        ({"parent_version": 2}, "parent_version is 2; expected 0 to 1"),
        ({"parent_version": -1}, "parent_version is -1"),
        ({"last_batch": 2}, "batches are 0 to 2; expected a range within 0 to 1"),
        ({"first_batch": 1, "last_batch": 0}, "batches are 1 to 0"),
        ({"last_batch": None}, "set both or neither"),
    ],
)
def test_a_version_that_no_batch_can_have_made_is_no_event(changes: dict[str, Any], says: str) -> None:
    (problem,) = problems(replace(trained(2), **changes))
    assert says in problem


# --- tuning -----------------------------------------------------------------------------------------------------------


def tuning(**changes: Any) -> Tuning:
    """What a version was tuned on: two answers of one group of policy p."""
    whole: dict[str, Any] = {
        "method": "sft", "start_version": 1, "examples": 2, "loss_tokens": 4, "digest": "d" * 64, "groups_policy": "p",
        "groups_partition": 0, "groups": (TunedGroup(offset=7, slots=(0, 2)),),
    }  # fmt: skip
    return Tuning(**whole | changes)


def tuned(made: Tuning, **changes: Any) -> AdapterEvent:
    return replace(trained(2), **{"first_batch": None, "last_batch": None, "tuning": made} | changes)


ORIGIN = CallOrigin(call_id="c1", model="s1:train:0", seq_id=3, path="tinker://s1:train:0/weights/a", optimizer=True)
FILE: dict[str, Any] = {
    "file": "f.jsonl", "file_sha256": "f" * 64, "groups_policy": None, "groups_partition": None, "groups": ()
}  # fmt: skip


@pytest.mark.parametrize("good", [{}, FILE, {"start_policy": "grpo", "start_version": 9}, {"method": "dpo"}])
def test_a_version_is_tuned_on_groups_or_a_file_from_a_version_of_its_own_or_another_policy(
    good: dict[str, Any],
) -> None:
    parent = None if "start_policy" in good else 1
    assert not list(problems(tuned(tuning(**good), parent_version=parent)))


@pytest.mark.parametrize(
    ("changes", "of_event", "says"),
    [
        ({}, {"first_batch": 0, "last_batch": 1}, "expected trained and no batches"),
        ({}, {"kind": "evaluated"}, "expected trained and no batches"),
        ({}, {"parent_version": 0}, "parent_version is 0, but it was tuned from version 1 of default"),
        ({"start_policy": "grpo"}, {}, "tuned from version 1 of grpo; expected that, or null"),
        ({"start_policy": "grpo", "start_version": -1}, {"parent_version": None}, "start_version is -1"),
        (FILE | {"file_sha256": None}, {}, "expected file and file_sha256, what begins with groups, or dataset"),
        (FILE | {"groups_policy": "p"}, {}, "has no source of its examples, or parts of several"),
        ({"groups": ()}, {}, "has no source of its examples, or parts of several"),
        ({"method": "dpo", "groups": (TunedGroup(offset=7, slots=(0,)),)}, {}, "expected 2 or more, and at most 2"),
        ({"groups": (TunedGroup(offset=7, slots=()),)}, {}, "the group at 7 has slots (); expected 1 or more"),
    ],
)
def test_a_tuning_that_cannot_be_is_no_event(changes: dict[str, Any], of_event: dict[str, Any], says: str) -> None:
    (problem,) = problems(tuned(tuning(**changes), **{"parent_version": 1} | of_event))
    assert says in problem


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (training_call(lora=None), "kind is create_model and lora is missing; create_model alone need it"),
        (training_call(kind="optim_step", lora=None), "optimizer is missing"),
        (training_call(kind="sample"), "kind is sample and lora is set"),
        (training_call(lora=CallLora(rank=0)), "lora.rank is 0"),
        (training_call(model="s1:train:1"), "a model is named by the call that makes it"),
        (training_call(examples=-1), "examples is -1"),
        (training_call(data_uri="calls/1"), "expected bytes, or the other two"),
        (training_call(data_uri="calls/1", data_sha256="A"), "data_sha256 is no SHA-256"),
        (training_result(error="out of memory"), "category is None and error 'out of memory'; set both or neither"),
        (training_result(prompt_tokens=-1), "prompt_tokens is -1"),
        (training_result(outputs_sha256="a" * 64), "outputs has 0 bytes"),
        (tuned(tuning(), parent_version=1, origin=ORIGIN), "what a call saved is trained by it alone"),
    ],
)
def test_a_call_or_a_result_that_cannot_be_is_no_event(broken: Event, says: str) -> None:
    assert says in next(problems(broken))


# --- outside models ---------------------------------------------------------------------------------------------------


def test_an_outside_model_is_a_version_without_weights_or_parent() -> None:
    assert not list(problems(outside(2)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "promoted"}, "kind is promoted and outside is set"),
        ({"uri": "/store/default/2"}, "and so are uri"),
        ({"parent_version": 1, "first_batch": 0, "last_batch": 1}, "parent_version, first_batch"),
        ({"outside": OutsideModel(url="http://key@host/v1", model="m")}, "outside.url is 'http://key@host/v1'"),
        ({"outside": OutsideModel(url="https://host/v1?key=1", model="m")}, "outside.url is"),
        ({"outside": OutsideModel(url="file:///etc/passwd", model="m")}, "outside.url is"),
        ({"outside": OutsideModel(url="https://host/v1", model=" ")}, "outside.model is empty"),
        ({"outside": OutsideModel(url="https://host/v1", model="m", prompt_usd=1.0)}, "outside has the prices"),
        (
            {"outside": OutsideModel(url="https://host/v1", model="m", prompt_usd=-1.0, completion_usd=1.0)},
            "outside has the prices",
        ),
    ],
)
def test_an_outside_model_that_cannot_be_is_no_event(changes: dict[str, Any], says: str) -> None:
    (problem,) = problems(replace(outside(2), **changes))
    assert says in problem


def test_a_group_counts_what_an_outside_model_read_and_wrote() -> None:
    theirs = group(prompt_token_ids=(), responses=(counted_outside(0, prompt=7, completion=5),))
    assert theirs.is_outside and not group().is_outside
    assert (theirs.tokens_read(theirs.responses[0]), theirs.responses[0].tokens_written) == (7, 5)
    assert (group().tokens_read(group().responses[0]), group().responses[0].tokens_written) == (3, 2)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (memory_event(namespace="a..b"), "namespace[1] is ''; expected 1 to 128 characters"),
        (memory_event(namespace=".".join("a" * 17)), "namespace has 17 labels"),
        (memory_event(namespace="a\n"), "namespace[0]"),
        (memory_event(key=""), "key has 0 characters"),
        (memory_event(kind="deleted"), "kind is deleted and value is set"),
        (memory_event(value="[1]"), "value is [1]; expected a JSON object"),
        (memory_event(value="{"), "value is no JSON"),
        (thread_event("created", run_id="r", ending="success", turn_id="t"), "run_ended alone has one"),
        (thread_event("run_requested", model=None), "model is null; a run needs it"),
        (thread_event("changed", model="p"), "model is set; run_requested alone has one"),
        (thread_event("run_ended", turn_id=None), "an answer and what is done for it have a turn"),
        (thread_event("run_ended", error="no"), "a run that fails alone has one"),
        (thread_event("run_requested", stateless=True), "thread_id is t of stateless run r"),
        (thread_event("changed", labels="1"), "labels is 1; expected a JSON object"),
    ],
)
def test_an_item_or_a_thread_that_cannot_be_is_no_event(broken: Event, says: str) -> None:
    assert any(says in problem for problem in problems(broken))
