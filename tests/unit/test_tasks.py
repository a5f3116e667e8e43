"""Tasks from the lines of a file: strict, by line number, with ids made of content, from any format."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
import shlex
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, strategies as st

from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.events import EpisodeStart, Message, RewardSource, Sampling, Task, Tool, ToolCall
from streams.arrow.file_rows import json_lines, rows
from streams.errors import EventError, NotFoundError, SettingsError, StreamwardError
from streams.settings.model import Topics
from streams.stages.agents.registered_agents import KnownAgent
from streams.stages.tasks.generators import TaskSpec, generate
from streams.stages.tasks.line_task import Reading
from streams.stages.tasks.lines import BadLine, Checked, by_kind, check_rows, epochs
from streams.stages.tasks.task_line import EnvironmentLine, RewardSourceLine, SamplingLine, TaskLine

FORMAT = {"name": "format", "settings": {"shape": "bare_number"}}
SHORT = {"prompt": "4 + 7 =", "answer": "11"}


def reading(names: dict[str, str] | None = None, **defaults: Any) -> Reading:
    return Reading(now_ms=5, topic_settings=Topics(), defaults={"policy": "p", **defaults}, names=names or {})


def check(*lines: Any, source: str = "sums.jsonl", how: Reading | None = None) -> Checked:
    raw = [line if isinstance(line, str | bytes) else json.dumps(line) for line in lines]
    return check_rows(json_lines(raw), source, how or reading())


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


def test_a_line_cannot_give_itself_the_permission_to_be_trained_on_though_a_suite_holds_it_out() -> None:
    words = problem(check({**SHORT, "metadata": {CONTAMINATION_ALLOWED_BY: "me"}}))
    assert "metadata" in words and "is set by a job that is allowed it, not by a task; leave it out" in words


def test_a_line_without_scorers_has_those_of_its_agent_and_the_same_id_as_without() -> None:
    numeric = RewardSource(name="numeric")
    how = dataclasses.replace(reading(), agents={"adder": KnownAgent("p", (numeric,))}.get)
    line = {**SHORT, "agent": "adder"}
    assert only(check(line, how=how)).reward_sources == (numeric,)
    assert only(check(line, how=how)).task_id == only(check(line)).task_id
    assert only(check({**line, "agent": "other"}, how=how)).reward_sources == (RewardSource(name="exact"),)
    assert only(check({**line, "reward_sources": ["exact"]}, how=how)).reward_sources == (RewardSource(name="exact"),)
    assert only(check(SHORT, how=how)).reward_sources == (RewardSource(name="exact"),)


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
        "agent": "calc",
        "max_turns": 4,
        "thread": "th",
        "environment": {"name": "calculator", "settings": {"digits": 2}, "seed": 5},
        "tools": [{"name": "add", "description": "Add.", "parameters": {"type": "object"}}],
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
        agent="calc",
        max_turns=4,
        thread="th",
        environment=EpisodeStart(name="calculator", settings='{"digits": 2}', seed=5),
        tools=(Tool(name="add", description="Add.", parameters='{"type": "object"}'),),
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
    pairs = [(TaskLine, Task), (SamplingLine, Sampling)]
    pairs += [(RewardSourceLine, RewardSource), (EnvironmentLine, EpisodeStart)]
    for line, event in pairs:
        fields = {field.name: field for field in dataclasses.fields(event)}
        own = {"prompt", "system", "answer", "tool_ids", "user"}
        written = {"subject", "sealed", "fork"}  # by the system, not by a user
        assert set(line.model_fields) - own == set(fields) - written
    for line, event in pairs[1:]:
        least = {Sampling: {}, EpisodeStart: {"name": "x", "seed": 1}}.get(event, {"name": "x"})
        plain = event(**least)
        assert {name: getattr(plain, name) for name in line.model_fields} == dict(line.model_validate(least))


def test_a_serve_task_needs_no_scorer() -> None:
    assert only(check({"prompt": "hello", "purpose": "serve"})).reward_sources == ()


def test_blank_lines_are_passed_over_and_count_as_lines() -> None:
    checked = check("", SHORT, "  \n", "nonsense")
    assert (len(checked.tasks), [bad.line for bad in checked.problems]) == (1, [4])


# --- what it may not --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{,}", "not JSON: Expecting property name"),
        ("[1]", "expected an object, {...}, and got [1]"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        ({"promt": "x"}, "there is no field promt; did you mean prompt?"),
        (
            {"question": "x"},
            "there is no field question; did you mean prompt? To take it as that: --map prompt=question",
        ),
        ({**SHORT, "max_tokens": 9}, "there is no field max_tokens; read it with --map sampling.max_tokens=max_tokens"),
        ({**SHORT, "sampling": {"temprature": 1}}, "no field sampling.temprature; did you mean temperature?"),
        ({**SHORT, "reward_sources": [{"nam": "exact"}]}, "no field reward_sources[0].nam; did you mean name?"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "no field messages[0].contents; did you mean content?"),
        ({"answer": "11"}, "give either prompt or messages"),
        ({**SHORT, "messages": []}, "messages: it is empty; expected at least one message"),
        ({"messages": [], "answer": "1"}, "messages: it is empty"),
        ({**SHORT, "verifier": {}}, "give either answer or verifier"),
        ({"prompt": "x"}, "reward_sources is empty; a task of purpose train needs at least one scorer"),
        ({**SHORT, "answer": {"x": 1}}, "answer: expected a text, a number, or a list of these (got {'x': 1})"),
        ('{"prompt": "x", "answer": "1", "answer": "2"}', 'the key "answer" is there twice; remove one'),
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
    larger = dataclasses.replace(reading(), topic_settings=Topics(max_record_bytes=11_000_000))
    assert only(check(big, how=larger)).messages[0].content == big["prompt"]


@given(st.one_of(st.text(), st.binary(), st.dictionaries(st.sampled_from(list(TaskLine.model_fields)), st.integers())))
def test_any_line_is_a_task_or_a_problem_and_never_an_exception(line: Any) -> None:
    check(line)


def test_a_bad_line_does_not_hide_the_good_ones() -> None:
    checked = check(SHORT, "{", {**SHORT, "answer": "12"})
    assert (len(checked.tasks), [type(bad) for bad in checked.problems]) == (2, [BadLine])


# --- the shapes of data sets ------------------------------------------------------------------------------------------

ASKS = {"role": "user", "content": "4 + 7 ="}
GSM8K = {"question": "4 + 7 =", "answer": "4 and 7 are <<4+7=11>>11.\n#### 11"}
CONVERSATIONS = [
    {"from": "system", "value": "Add."},
    {"from": "human", "value": "4 + 7 ="},
    {"from": "gpt", "value": "11"},
]
VERL = {
    "data_source": "sums",
    "prompt": [ASKS],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "11"},
    "extra_info": {"index": 3, "split": "train"},
}


@pytest.mark.parametrize(
    ("row", "options"),
    [
        (VERL, "--map messages=prompt --map answer=reward_model.ground_truth"),
        ({"prompt": [ASKS], "solution": "11"}, "--map messages=prompt --map answer=solution"),
        ({"prompt": "4 + 7 =", "ground_truth": 11}, "--map answer=ground_truth"),
        ({"prompt": [ASKS], "completion": [{"role": "assistant", "content": "11"}]},
         "--map messages=prompt --map answer=completion.-1.content"),
        ({"messages": [ASKS], "reference_answer": "11"}, "--map answer=reference_answer"),
        ({"messages": [ASKS, {"role": "assistant", "content": "11"}]},
         "--map messages=messages.:-1 --map answer=messages.-1.content"),
        ({"id": "7", "conversations": CONVERSATIONS},
         "--map messages=conversations.:-1 --map answer=conversations.-1.value"),
        ({"instruction": "4 + 7 =", "input": "", "output": "11"}, "--map prompt=instruction+input --map answer=output"),
        (GSM8K, "--map prompt=question --map 'answer=answer.####'"),
        ({"problem": "4 + 7 =", "level": "Level 1", "type": "Algebra", "solution": "It is $\\boxed{11}$."},
         "--map prompt=problem --map answer=solution.boxed"),
        ({"problem": "4 + 7 =", "solution": "It is $\\boxed{11}$.", "answer": "11", "unique_id": "a/1.json"},
         "--map prompt=problem"),
        ({"Question Text": "?", "prompt": "4 + 7 =", "target": "11", "n": 4}, "--map answer=target --map group_size=n"),
    ],
)  # fmt: skip
def test_the_first_error_gives_the_map_that_reads_a_known_shape(row: dict[str, Any], options: str) -> None:
    assert problem(check(row)).endswith(f"; read it with {options}")
    names = dict(option.split("=", 1) for option in shlex.split(options) if option != "--map")
    for checked in (check(row, how=reading(names)), check_rows([(1, row)], "table", reading(names))):
        assert only(checked).messages[-1] == Message(role="user", content="4 + 7 =")
        assert str(json.loads(only(checked).verifier)["answer"]) == "11"
        assert only(checked).reward_sources == (RewardSource(name="exact"),)


def test_no_map_is_offered_that_would_leave_a_mistake_in_or_that_the_entrance_does_not_have() -> None:
    assert "--map" not in problem(check({**SHORT, "samplng": {"max_tokens": 9}}))
    how = dataclasses.replace(reading(), offers_map=False)
    assert "--map" not in problem(check(VERL, how=how)) + problem(check({"question": "x"}, how=how))


def test_the_fields_of_a_task_are_listed_once_however_many_are_unknown() -> None:
    error = problem(check({"prompt": "Q", "chosen": "A", "rejected": "B", "anwser": "A"}))
    assert error.count("known: ") == 1 and "there is no field anwser; did you mean answer?" in error


def test_no_map_is_offered_that_would_ask_another_question() -> None:
    assert "--map" not in problem(check({"question": "Which?", "choices": ["a", "b"], "answer": 0})).split("To take")[0]


def test_names_in_other_cases_records_as_json_and_what_only_parquet_has_are_read(tmp_path: Path) -> None:
    assert problem(check({"Prompt": "4 + 7 =", " Answer": "11"})).endswith("--map prompt=Prompt --map 'answer= Answer'")
    cell = {"prompt": "4 + 7 =", "reward_model": json.dumps({"ground_truth": ["11", "eleven"]})}
    task = only(check(cell, how=reading({"answer": "reward_model.ground_truth"})))
    assert json.loads(task.verifier) == {"answer": ["11", "eleven"]}
    columns = {"prompt": ["4 + 7 ="], "answer": ["11"], "when": [datetime.date(2026, 1, 2)], "blob": [b"x"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    how = reading({"metadata.when": "when"})
    assert only(check_rows(rows(tmp_path / "a.parquet"), "a", how)).metadata["when"] == "2026-01-02"
    assert "a value of bytes is no text" in problem(
        check_rows(rows(tmp_path / "a.parquet"), "a", reading({"metadata.blob": "blob"}))
    )


def test_rows_of_a_table_with_empty_cells_have_the_map_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,solution,note\na?,b,\nc?,,\n,d,\n")
    checked = check_rows(rows(tmp_path / "a.csv"), "a.csv", reading())
    assert by_kind(checked.problems) == [
        "a.csv:2: there are no fields question, solution, note; read it with --map prompt=question --map "
        "answer=solution (and 2 more lines: 3, 4)"
    ]


def test_a_path_is_followed_and_numbers_become_text_where_the_field_is_text() -> None:
    names = {"messages": "prompt", "answer": "reward_model.ground_truth", "metadata.index": "extra_info.index"}
    task = only(check(VERL, how=reading({**names, "scenario": "data_source"})))
    assert (task.metadata["index"], task.scenario, json.loads(task.verifier)) == ("3", "sums", {"answer": "11"})
    assert "this line has no reward_model.truth; did you mean ground_truth?" in problem(
        check(VERL, how=reading({**names, "answer": "reward_model.truth"}))
    )
    assert "this line has no extra_info.index.0: there is no 0 in '3'" in problem(
        check(VERL, how=reading({**names, "answer": "extra_info.index.0"}))
    )
    number = only(check({**SHORT, "prompt": 7, "task_id": 5, "metadata": {"index": 0, "share": 0.5, "note": None}}))
    assert (number.messages[0].content, number.task_id) == ("7", "5")
    assert number.metadata == {"source": "sums.jsonl:1", "index": "0", "share": "0.5"}


def test_what_a_table_writes_as_null_inside_a_message_is_absent() -> None:
    turn = {**ASKS, "name": None, "tool_calls": None, "tool_call_id": None}
    assert only(check({"messages": [turn], "answer": 1})).messages == (Message(role="user", content="4 + 7 ="),)


def test_lines_that_ask_the_same_under_another_id_or_with_another_answer_are_counted_and_named() -> None:
    lines = [{**SHORT, "metadata": {"index": n}} for n in range(7)] + [
        {**SHORT, "answer": "12"},
        {"prompt": "?", "answer": 1},
    ]
    checked = check(*lines)
    assert (len(checked.tasks), checked.problems) == (9, [])
    assert checked.notes == (
        "6 lines repeat an earlier question, differing in task_id or metadata alone: "
        "2 (as 1), 3 (as 1), 4 (as 1), 5 (as 1), 6 (as 1), …",
        "1 line repeats an earlier question, with another answer: 8 (as 1)",
    )


def test_lines_without_an_answer_among_others_that_have_one_are_named() -> None:
    lines = [{"prompt": f"{n}?", "answer": str(n), "reward_sources": ["mine:score"]} for n in range(3)]
    del lines[1]["answer"]
    assert check(*lines).notes == ("1 line has no answer, and others do; a scorer that reads one fails there: 2",)
    assert check(*lines[:1], *lines[2:]).notes == check(lines[1]).notes == ()


# --- ids --------------------------------------------------------------------------------------------------------------


def test_ids_come_from_policy_and_content_and_not_from_file_layout_or_time() -> None:
    task_id = only(check(SHORT)).task_id
    assert task_id == only(check("\n", '{ "answer":"11",  "prompt":"4 + 7 =" }', source="b.jsonl")).task_id
    assert task_id == only(check({**SHORT, "policy": "p"}, how=reading(policy="q"))).task_id
    others = [
        check(SHORT, how=reading(policy="q")),
        check({**SHORT, "answer": "12"}),
        check({**SHORT, "group_size": 4}),
    ]
    assert len({task_id, *(only(checked).task_id for checked in others)}) == 4


def test_a_later_epoch_asks_the_same_again_under_other_ids_and_more_epochs_keep_those_of_fewer() -> None:
    once = check(SHORT, {**SHORT, "task_id": "mine"}).tasks
    twice, thrice = list(epochs(once, 2)), list(epochs(once, 3))
    assert (thrice[:4], len({task.task_id for task in thrice})) == (twice, 6)
    assert {task.messages for task in thrice} == {once[0].messages}
    assert [task.metadata.get("epoch") for task in thrice] == [None, None, "2", "2", "3", "3"]


def test_a_line_that_stands_twice_is_one_task() -> None:
    checked = check(SHORT, SHORT, {"answer": "11", "prompt": "4 + 7 ="})
    assert (len(checked.tasks), checked.problems, checked.repeated) == (1, [], 2)


def test_one_id_for_two_contents_is_a_problem_of_the_second() -> None:
    checked = check({**SHORT, "task_id": "a"}, {**SHORT, "task_id": "a", "group_size": 2})
    assert len(checked.tasks) == 1
    assert "sums.jsonl:2: task_id a is already used in line 1, with different content" in str(checked.problems[0])


def test_a_train_task_of_one_response_is_refused_before_it_is_paid_for() -> None:
    assert "group_size is 1, and a train task needs at least 2 responses" in problem(check({**SHORT, "group_size": 1}))
    assert "2 or more, or purpose eval or serve" in problem(check(SHORT, how=reading(group_size=1)))
    least = dataclasses.replace(reading(), min_group=4)
    assert "at least 4 responses, with a score each" in problem(check({**SHORT, "group_size": 3}, how=least))
    for purpose in ("eval", "serve"):
        assert only(check({**SHORT, "group_size": 1, "purpose": purpose})).group_size == 1
    with pytest.raises(SettingsError, match="generator sums: group_size is 1"):
        list(generate(TaskSpec(family="sums", count=1, purpose="train", policy="p", group_size=1), now_ms=0))


@pytest.mark.parametrize(
    ("sampling", "way_out"), [({"temperature": 0}, "use temperature 1, or"), ({"top_p": 0.9}, "use top_p 1, or")]
)
def test_a_train_task_that_the_trainer_would_refuse_is_not_submitted(sampling: dict[str, float], way_out: str) -> None:
    [refused] = check(SHORT | {"sampling": sampling}).problems
    assert way_out in refused.error
    for purpose in ("eval", "serve"):
        assert only(check(SHORT | {"sampling": sampling, "purpose": purpose})).purpose == purpose


# --- what all lines share, and what a file calls it -------------------------------------------------------------------


def test_what_all_lines_share_is_for_those_that_do_not_say_it() -> None:
    shared = {"group_size": 4, "sampling.max_tokens": 9, "system": "Be brief.", "reward_sources": [{"name": "numeric"}]}
    how = reading(**shared)
    task = only(check(SHORT, how=how))
    assert (task.group_size, task.sampling.max_tokens, task.messages[0].content) == (4, 9, "Be brief.")
    assert (task.reward_sources, task.verifier) == ((RewardSource(name="numeric"),), '{"answer": "11"}')
    own = {"group_size": 2, "sampling": {"max_tokens": 3}, "reward_sources": ["exact"], "system": "Go on."}
    assert only(check(SHORT | own, how=how)).task_id == only(check(SHORT | own)).task_id
    spoken = {"messages": [{"role": "user", "content": "?"}], "verifier": {"answer": 1}}
    assert len(only(check(spoken, how=how)).messages) == 1


def test_a_field_is_taken_from_the_column_named_for_it_and_other_columns_are_left_out_by_name() -> None:
    names = {"prompt": "question", "metadata.topic": "subject", "verifier.choices": "choices"}
    line = {"question": "?", "answer": None, "subject": "law", "choices": ["a", "b"], "id": 7, "prompt": "never"}
    checked = check(line, how=reading(names, reward_sources=[FORMAT]))
    assert only(checked).messages == (Message(role="user", content="?"),)
    assert only(checked).metadata == {"source": "sums.jsonl:1", "topic": "law"}
    assert json.loads(only(checked).verifier) == {"choices": ["a", "b"]}
    assert checked.unused == ("id",)
    assert "--map prompt=question: this line has no question; did you mean questions?" in problem(
        check({"questions": "?"}, how=reading(names))
    )


def test_each_kind_of_mistake_is_told_once_with_the_lines_that_have_it() -> None:
    lines = [{"question": f"{n} + 1"} for n in range(9)] + [{**SHORT, "group_size": f"{n}"} for n in range(2)]
    lines += [{"prompt": f"{n}", "reward_sources": ["exact"]} for n in range(2)]
    told = by_kind(check(*lines).problems)
    assert len(told) == 3
    assert (
        told[0].startswith("sums.jsonl:1: there is no field question")
        and "(and 8 more lines: 2, 3, 4, 5, 6, …)" in told[0]
    )
    assert told[1].endswith("(got '0') (and 1 more line: 11)")
    assert "exact compares with the answer" in told[2] and told[2].endswith("(and 1 more line: 13)")


# --- formats ----------------------------------------------------------------------------------------------------------

TABLE = {"question": ["1 + 1?", "2 + 2?"], "answer": ["2", "4"], "note": ["a", None]}


def from_file(path: Path, split: str | None = None) -> Checked:
    return check_rows(rows(path, split), path.name, reading({"prompt": "question"}))


def test_the_same_tasks_come_from_every_format_with_the_same_ids(tmp_path: Path) -> None:
    wanted = [
        only(check({"prompt": prompt, "answer": answer})).task_id
        for prompt, answer in zip(TABLE["question"], TABLE["answer"], strict=True)
    ]
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in [("1 + 1?", "2"), ("2 + 2?", "4")])
    )
    (tmp_path / "numbers.jsonl").write_text(
        "".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in [("1 + 1?", 2), ("2 + 2?", 4)])
    )
    (tmp_path / "a.csv").write_text("question,answer,note\n1 + 1?,2,a\n2 + 2?,4,\n")
    (tmp_path / "excel.CSV").write_bytes("\ufeffquestion;answer\r\n1 + 1?;2\r\n2 + 2?;4\r\n".encode())
    (tmp_path / "pandas.tsv").write_text("\tquestion\tanswer\n0\t1 + 1?\t2\n1\t2 + 2?\t4\n")
    pyarrow.parquet.write_table(pyarrow.table(TABLE), tmp_path / "a.parquet")
    data = Dataset.from_dict(TABLE)
    data.save_to_disk(tmp_path / "plain")
    DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(tmp_path / "split")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    data.to_parquet(tmp_path / "hub" / "data" / "train-00000-of-00001.parquet")
    for name in ("a.jsonl", "numbers.jsonl", "a.csv", "excel.CSV", "pandas.tsv", "a.parquet", "plain", "hub"):
        checked = from_file(tmp_path / name)
        assert ([task.task_id for task in checked.tasks], checked.problems) == (wanted, []), name
    assert [task.task_id for task in from_file(tmp_path / "split", "train").tasks] == wanted
    assert [task.task_id for task in from_file(tmp_path / "split", "test").tasks] == wanted[:1]
    with pytest.raises(SettingsError, match="has the splits train, test; choose one with --split"):
        from_file(tmp_path / "split")
    with pytest.raises(NotFoundError, match="has no split tset; did you mean test"):
        from_file(tmp_path / "split", "tset")


@pytest.mark.parametrize(
    ("number", "text"),
    [(4, "4"), (-0.5, "-0.5"), (2.0, "2.0"), (10**30, str(10**30)), ([2, "two", 2.5], ["2", "two", "2.5"])],
)
def test_an_answer_that_is_a_number_is_the_text_that_a_table_has_for_it(number: Any, text: Any) -> None:
    task, same = only(check({"prompt": "?", "answer": number})), only(check({"prompt": "?", "answer": text}))
    assert (json.loads(task.verifier), task.task_id) == ({"answer": text}, same.task_id)
    own = only(check({"prompt": "?", "verifier": {"answer": number}, "reward_sources": ["exact"]}))
    assert json.loads(own.verifier) == {"answer": number}


COLUMNS: dict[str, tuple[Any, list[str]]] = {
    "whole numbers with a hole": (pyarrow.array([5.0, None, 8.0]), ["5", "8"]),
    "fractions": (pyarrow.array([5.0, None, 2.5]), ["5.0", "2.5"]),
    "more than a float tells apart": (pyarrow.array([5.0, None, 2.0**60]), ["5.0", "1152921504606847000"]),
    "32 bits": (pyarrow.array([0.1, None, 2.5], pyarrow.float32()), ["0.1", "2.5"]),
    "16 bits": (pyarrow.array([0.1, None, 3.0], pyarrow.float16()), ["0.1", "3.0"]),
    "small": (pyarrow.array([0.00001, None, 0.5]), ["0.00001", "0.5"]),
    "decimals": (pyarrow.array([Decimal("5"), None, Decimal("0")], pyarrow.decimal128(20, 9)), ["5", "0"]),
    "places": (pyarrow.array([Decimal("0"), None, Decimal("2.5")], pyarrow.decimal128(20, 9)),
               ["0.000000000", "2.500000000"]),
    "days": (pyarrow.array([datetime.datetime(2024, 5, 1), None, datetime.datetime(2024, 5, 2)]),
             ["2024-05-01", "2024-05-02"]),
    "times": (pyarrow.array([datetime.datetime(2024, 5, 1), None, datetime.datetime(2024, 5, 2, 9)]),
              ["2024-05-01T00:00:00", "2024-05-02T09:00:00"]),
    "lists": (pyarrow.array([[5.0, 6.0], None, [8.0]]), ['["5", "6"]', '["8"]']),
    "large": (pyarrow.array([2**64 - 1, None, 1], pyarrow.uint64()), ["18446744073709551615", "1"]),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("kind", ["parquet", "disk", "hub"])
def test_an_answer_of_a_typed_column_is_the_text_that_its_author_wrote(tmp_path: Path, name: str, kind: str) -> None:
    column, texts = COLUMNS[name]
    table = pyarrow.table({"prompt": ["a", "b", "c"], "answer": column})
    path = tmp_path / ("a.parquet" if kind == "parquet" else kind)
    if kind == "disk":
        Dataset(table).save_to_disk(str(path))
    elif kind == "hub":
        path.mkdir()
        pyarrow.parquet.write_table(table, path / "train.parquet")
    else:
        pyarrow.parquet.write_table(table, path, row_group_size=1)
    checked = check_rows(rows(path), path.name, reading())
    answers = [json.loads(task.verifier)["answer"] for task in checked.tasks]
    assert [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers] == texts
    assert len(checked.problems) == 1


def test_fields_within_a_cell_have_their_form_each(tmp_path: Path) -> None:
    cells = [{"answer": 5.0, "share": 0.5}, {"answer": 8.0, "share": 1.0}]
    table = pyarrow.table({"prompt": ["a", "b"], "verifier": cells, "reward_sources": [["exact"], ["exact"]]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    verifiers = [json.loads(task.verifier) for task in check_rows(rows(tmp_path / "a.parquet"), "a", reading()).tasks]
    assert json.dumps(verifiers) == '[{"answer": 5, "share": 0.5}, {"answer": 8, "share": 1.0}]'


def test_answers_that_programs_wrote_and_exact_compares_are_counted() -> None:
    lines = [{"prompt": str(n), "answer": answer} for n, answer in enumerate(["5.0", 8.0, "7", "nan", "2.50", 1e3])]
    [note] = check(*lines).notes
    assert note.startswith(
        "answers that end in .0, or are a word for a hole, and that exact compares as texts: 4 (as 5.0"
    )
    assert "5.0: 1, 2, 4, 6); --scorer numeric compares numbers; or write a column of whole numbers" in note
    assert check(lines[2], lines[0] | {"reward_sources": ["numeric"]}).notes == ()


def test_numbers_and_objects_in_a_csv_file_are_json_and_all_else_is_text(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "prompt,answer,group_size,sampling,reward_sources,metadata\n"
        '"a,\nb",007,4,"{""max_tokens"": 5}","exact, numeric",\n'
        "x,1,four,,exact,\n"
    )
    checked = check_rows(rows(file), file.name, reading())
    [task] = checked.tasks
    assert (task.messages[0].content, json.loads(task.verifier)) == ("a,\nb", {"answer": "007"})
    assert (task.group_size, task.sampling.max_tokens, len(task.reward_sources)) == (4, 5, 2)
    assert [str(bad) for bad in checked.problems] == [
        "a.csv:4: group_size: Input should be a valid integer (got 'four')"
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("To be, or not,yes\n", 2, "3 cells, expected 2 as in the header (prompt, answer)"),
        ("To be\n", 2, "1 cells, expected 2"),
        ('"a\nb",1\n"x"y,1\n', 4, "not CSV: ',' expected after '\"'"),
        ('"a\nb,1\nc,"2"\n', 2, "not CSV: ',' expected after '\"': a quote opens in it, and what follows up to line 4"),
        ("\udcff,1\n", 2, "not UTF-8: byte 0xff"),
        (",1\n", 2, "give either prompt or messages; empty in this row: prompt"),
        ("x,\n", 2, "[{name: exact}]; empty in this row: answer"),
    ],
)
def test_a_fault_belongs_to_the_row_it_is_in_and_the_others_are_read(
    text: str, line: int, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(f"prompt,answer\n{text}2 + 2?,4\n".encode(errors="surrogateescape"))
    checked = check_rows(rows(file), file.name, reading())
    assert [(task.messages[0].content) for task in checked.tasks][-1] == "2 + 2?"
    assert str(checked.problems[0]).startswith(f"a.csv:{line}: ") and message in checked.problems[0].error


def test_a_quote_that_is_open_at_the_end_of_the_file_is_named_where_it_opens(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt,answer\n1 + 1?,2\n"2 + 2?,4\n' + "3 + 3?,6\n" * 50)
    checked = check_rows(rows(tmp_path / "a.csv"), "a.csv", reading())
    assert len(checked.tasks) == 1
    assert "a.csv:3: not CSV: unexpected end of data: a quote opens in it" in str(checked.problems[0])


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\r\nprompt;answer\r\n1 + 1?;2\r\n",
        "prompt|answer\n1 + 1?|2\n",
        "prompt,answer,,\n,,,\n1 + 1?,2,,\n,,,\n",
        "prompt,answer\r1 + 1?,2\r",
    ],
    ids=["separator named", "pipes", "blank lines of a spreadsheet", "old mac"],
)
def test_a_table_as_spreadsheets_write_it_is_the_same_tasks(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text, newline="")
    task = only(check_rows(rows(tmp_path / "a.csv"), "a.csv", reading()))
    assert task.task_id == only(check({"prompt": "1 + 1?", "answer": "2"})).task_id


def test_messages_in_json_text_are_read_where_a_map_says_so(tmp_path: Path) -> None:
    plain = only(check({"messages": [ASKS], "answer": "11"}))
    text = {"messages": json.dumps([ASKS]), "answer": "11"}
    assert problem(check(text)).endswith("; read it with --map messages=messages")
    assert only(check(text, how=reading({"messages": "messages"}))).task_id == plain.task_id
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["prompt", "answer"], [json.dumps([ASKS]), "11"]])
    checked = check_rows(rows(tmp_path / "a.csv"), "a.csv", reading({"messages": "prompt"}))
    assert only(checked).task_id == plain.task_id


def test_a_conversation_that_ends_with_its_answer_is_named() -> None:
    answered = {"messages": [ASKS, {"role": "assistant", "content": "11"}], "answer": "11"}
    assert check(SHORT, answered).notes == (
        "1 line ends with a message of the assistant, which the model reads before it answers: 2 "
        "(--map messages=messages.:-1 leaves it out)",
    )


def test_null_that_arrow_writes_for_keys_of_other_rows_is_absent_and_null_in_a_line_is_a_value(tmp_path: Path) -> None:
    calls = [{"messages": [ASKS, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": arguments}]}, ASKS],
              "answer": "11"} for arguments in ({"a": 1}, {"b": 2})]  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(calls), tmp_path / "a.parquet")
    tasks = check_rows(rows(tmp_path / "a.parquet"), "a", reading()).tasks
    assert [task.task_id for task in tasks] == [task.task_id for task in check(*calls).tasks]
    of_null = {"messages": [ASKS, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": None}}]}, ASKS]}
    assert only(check({**of_null, "answer": "11"})).messages[1].tool_calls[0].arguments == '{"a": null}'


def test_a_cell_may_be_as_long_as_a_record(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"prompt,answer\n{'x' * 1_000_000},4\n")
    assert len(only(check_rows(rows(tmp_path / "a.csv"), "a.csv", reading())).messages[0].content) == 1_000_000


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        ("a.csv", b"prompt,answer,prompt\n", EventError, "a.csv:1: the column prompt is there twice; rename or remove"),
        ("a.csv", b'{"prompt": "x", "answer": "y"}\n', EventError, "JSON lines need a name that ends in .jsonl"),
        ("a.csv", b'"prompt,answer\n', EventError, "a.csv:1: the header is not CSV"),
        ("a.tsv", b"PAR1", EventError, "a.tsv: it is Parquet; a table of tasks needs a name that ends in .parquet"),
        ("c.jsonl", b"PK\x03\x04", EventError, "c.jsonl: it is a ZIP archive or a spreadsheet"),
        ("a.parquet", b"prompt", EventError, "not Parquet"),
        ("a.parquet", b'{"prompt": 1}', EventError, "JSON lines need a name that ends in .jsonl"),
        ("a/nothing.of.use", b"", NotFoundError, "not the folder of a data set"),
        ("a/broken.parquet", b"PAR1", NotFoundError, "not the folder of a data set: Parquet .*; or name a file in it"),
        ("b.jsonl", b"", NotFoundError, "No such file"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(
    name: str, content: bytes, kind: type[StreamwardError], message: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(kind, match=message):
        list(rows(tmp_path / name.partition("/")[0].replace("b.", "c.")))
