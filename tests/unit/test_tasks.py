"""Tasks from JSON lines: strict, by line number, and with ids made of source and content."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from schemas.events import Message, RewardSource, Sampling, Task, ToolCall
from streams.settings.model import Topics
from streams.stages.tasks.lines import (
    BadLine,
    Checked,
    MessageLine,
    RewardSourceLine,
    SamplingLine,
    TaskLine,
    check_file,
)

SHORT = {"prompt": "4 + 7 =", "answer": "11"}


def check(*lines: Any, source: str = "sums.jsonl", policy: str = "p", **topics: Any) -> Checked:
    raw = [line if isinstance(line, str | bytes) else json.dumps(line) for line in lines]
    return check_file(raw, source, policy=policy, now_ms=5, topic_settings=Topics(**topics))


def only(checked: Checked) -> Task:
    assert checked.problems == []
    [task] = checked.tasks
    return task


def problem(checked: Checked) -> str:
    assert checked.tasks == []
    [bad] = checked.problems
    return str(bad)


# --- what a line may say ----------------------------------------------------------------------------------------------


def test_a_prompt_and_an_answer_are_a_task() -> None:
    task = only(check({**SHORT, "system": "Be brief."}))
    assert task.messages == (Message(role="system", content="Be brief."), Message(role="user", content="4 + 7 ="))
    assert json.loads(task.verifier) == {"answer": "11"}
    assert task.reward_sources == (RewardSource(name="exact"),)
    assert (task.policy, task.purpose, task.group_size, task.created_at) == ("p", "train", 8, 5)
    assert task.metadata == {"source": "sums.jsonl:1"}


def test_every_field_of_a_task_can_be_given() -> None:
    line = {
        "task_id": "mine",
        "created_at": 7,
        "traceparent": "00-a-b-01",
        "metadata": {"k": "v"},
        "policy": "q",
        "purpose": "eval",
        "scenario": "tools",
        "tenant": "acme",
        "group_size": 2,
        "deadline_at": 99,
        "adapter_version": 3,
        "sampling": {"temperature": 0, "top_p": 0.5, "max_tokens": 4, "seed": 1, "stop": ["x"]},
        "verifier": {"answer": 11},
        "reward_sources": [
            {"name": "numeric", "weight": 0.5, "settings": {"tolerance": 1}},
            {"name": "length", "settings": '{"limit": 5}'},
            "exact",
        ],
        "messages": [
            {"role": "user", "content": "?"},
            {"role": "assistant", "tool_calls": [{"id": "1", "name": "add", "arguments": {"a": 4}}]},
            {"role": "tool", "content": "11", "name": "add", "tool_call_id": "1"},
        ],
    }
    call = ToolCall(id="1", name="add", arguments='{"a": 4}')
    assert only(check(line)) == Task(
        task_id="mine",
        created_at=7,
        traceparent="00-a-b-01",
        metadata={"source": "sums.jsonl:1", "k": "v"},
        policy="q",
        purpose="eval",
        scenario="tools",
        tenant="acme",
        group_size=2,
        deadline_at=99,
        adapter_version=3,
        sampling=Sampling(temperature=0, top_p=0.5, max_tokens=4, seed=1, stop=("x",)),
        verifier='{"answer": 11}',
        reward_sources=(
            RewardSource(name="numeric", weight=0.5, settings='{"tolerance": 1}'),
            RewardSource(name="length", settings='{"limit": 5}'),
            RewardSource(name="exact"),
        ),
        messages=(
            Message(role="user", content="?"),
            Message(role="assistant", content="", tool_calls=(call,)),
            Message(role="tool", content="11", name="add", tool_call_id="1"),
        ),
    )


def test_a_line_knows_every_field_that_its_event_has() -> None:
    pairs = [(TaskLine, Task), (MessageLine, Message), (SamplingLine, Sampling), (RewardSourceLine, RewardSource)]
    for line, event in pairs:
        fields = {field.name: field for field in dataclasses.fields(event)}
        assert set(line.model_fields) - {"prompt", "system", "answer"} == set(fields)
    for line, event in pairs[2:]:
        plain = event(**({"name": "x"} if event is RewardSource else {}))
        assert {name: getattr(plain, name) for name in line.model_fields} == dict(
            line.model_validate({"name": "x"} if event is RewardSource else {})
        )


def test_a_serve_task_needs_no_scorer() -> None:
    assert only(check({"prompt": "hello", "purpose": "serve"})).reward_sources == ()


def test_blank_lines_are_passed_over_and_count_as_lines() -> None:
    checked = check("", SHORT, "  \n", "nonsense")
    assert (len(checked.tasks), [bad.line for bad in checked.problems]) == (1, [4])


# --- what it may not --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: EOF"),
        ("[1]", "Input should be an object"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        ({"promt": "x"}, "there is no field promt; did you mean prompt?"),
        ({**SHORT, "sampling": {"temprature": 1}}, "no field sampling.temprature; did you mean temperature?"),
        ({**SHORT, "reward_sources": [{"nam": "exact"}]}, "no field reward_sources.0.nam; did you mean name?"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "no field messages.0.contents; did you mean content?"),
        ({"answer": "11"}, "give either prompt or messages"),
        ({**SHORT, "messages": []}, "give either prompt or messages"),
        ({"messages": [], "answer": "1"}, "messages is empty"),
        ({**SHORT, "verifier": {}}, "give either answer or verifier"),
        ({"prompt": "x"}, "reward_sources is empty; a train task needs at least one scorer"),
        ({**SHORT, "group_size": 0}, "group_size is 0"),
        ({**SHORT, "group_size": 2.5}, "group_size: Input should be a valid integer"),
        ({**SHORT, "group_size": True}, "group_size: Input should be a valid integer"),
        ({**SHORT, "group_size": 2**31}, "group_size"),
        ({**SHORT, "group_size": "8"}, "group_size: Input should be a valid integer"),
        ({**SHORT, "purpose": "training"}, "purpose: Input should be 'train', 'serve' or 'eval' (got 'training')"),
        ({**SHORT, "task_id": ""}, "task_id: String should have at least 1 character"),
        ('{"prompt": "x", "answer": "1", "sampling": {"temperature": NaN}}', "sampling.temperature"),
        ({**SHORT, "sampling": {"max_tokens": 0}}, "sampling.max_tokens is 0"),
        ({**SHORT, "reward_sources": ["exakt"]}, "did you mean exact?"),
        ({**SHORT, "reward_sources": ["exact", "exact"]}, "reward_sources has a name twice"),
        ({**SHORT, "reward_sources": [{"name": "regex"}]}, "regex.pattern: Field required"),
        ({"prompt": "x", "reward_sources": ["exact"]}, "exact compares with the answer in the verifier"),
    ],
)
def test_a_bad_line_says_where_what_and_what_to_do(line: Any, message: str) -> None:
    found = problem(check("", line))
    assert found.startswith("sums.jsonl:2: ") and message in found


def test_a_task_that_no_record_holds_is_refused_with_its_size() -> None:
    big = {**SHORT, "prompt": "x" * 10_000_000}
    assert "has 10000" in problem(check(big)) and "topics.max_record_bytes" in problem(check(big))
    assert only(check(big, max_record_bytes=11_000_000)).messages[0].content == big["prompt"]


@given(st.one_of(st.text(), st.binary(), st.dictionaries(st.sampled_from(list(TaskLine.model_fields)), st.integers())))
def test_any_line_is_a_task_or_a_problem_and_never_an_exception(line: Any) -> None:
    check(line)


def test_a_bad_line_does_not_hide_the_good_ones() -> None:
    checked = check(SHORT, "{", {**SHORT, "answer": "12"})
    assert (len(checked.tasks), [type(bad) for bad in checked.problems]) == (2, [BadLine])


# --- ids --------------------------------------------------------------------------------------------------------------


def test_ids_come_from_source_policy_and_content_and_not_from_layout_or_time() -> None:
    task_id = only(check(SHORT)).task_id
    assert task_id == only(check("\n", '{ "answer":"11",  "prompt":"4 + 7 =" }')).task_id
    others = [
        check(SHORT, source="b.jsonl"),
        check(SHORT, policy="q"),
        check({**SHORT, "answer": "12"}),
        check({**SHORT, "group_size": 4}),
    ]
    assert len({task_id, *(only(checked).task_id for checked in others)}) == 5


def test_a_line_that_stands_twice_is_one_task() -> None:
    checked = check(SHORT, SHORT, {"answer": "11", "prompt": "4 + 7 ="})
    assert (len(checked.tasks), checked.problems, checked.repeated) == (1, [], 2)


def test_one_id_for_two_contents_is_a_problem_of_the_second() -> None:
    checked = check({**SHORT, "task_id": "a"}, {**SHORT, "task_id": "a", "group_size": 2})
    assert len(checked.tasks) == 1
    assert "sums.jsonl:2: task_id a is already used in line 1, with different content" in str(checked.problems[0])


@pytest.mark.parametrize(
    ("sampling", "way_out"), [({"temperature": 0}, "use temperature 1, or"), ({"top_p": 0.9}, "use top_p 1, or")]
)
def test_a_train_task_that_the_trainer_would_refuse_is_not_submitted(sampling: dict[str, float], way_out: str) -> None:
    [refused] = check(SHORT | {"sampling": sampling}).problems
    assert way_out in refused.error
    for purpose in ("eval", "serve"):
        assert only(check(SHORT | {"sampling": sampling, "purpose": purpose})).purpose == purpose
