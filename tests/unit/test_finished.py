"""What is finished, as whole conversations and as a line for each question and answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.conventions import RatedAnswer, feedback
from schemas.events import AdvantagedGroup, Event, Message, Reward, ToolCall, derive_id
from streams.errors import ContradictoryEvent, RefusedError
from streams.output import moment
from streams.tools.query.conversation_examples import examples
from streams.tools.query.examples import ExportOptions
from streams.tools.query.export import Counts
from streams.tools.query.finished import Finished, FinishedReader, FinishedSelection
from streams.tools.query.interactions import InteractionFile, interactions
from streams.tools.query.splits import origin_of
from tests.support.agent_calls import ADD, Recorded, assistant, system, user
from tests.support.appended import SETTINGS, Appended
from tests.support.factories import T0, group, member, response, task, trajectory
from tests.support.talks import served

DEFAULT = FinishedSelection(policy="default")


def opinion(about: str, task_id: str, value: float) -> Reward:
    return feedback(RatedAnswer(about, task_id, "default", 0, T0), value, source="ada", reason="short", now_ms=T0)


def chat(name: str = "chat-1") -> Recorded:
    """Return a run without a task: a call of a tool, its result, and a title beside them."""
    run = Recorded(name)
    alone: dict[str, Any] = {"task_id": name, "sampling_id": None, "slot": None}
    call = ToolCall(id="c1", name="add", arguments='{"a": 4, "b": 7}')
    reply = Message(role="assistant", content="", tool_calls=(call,))
    first = run.call([system("You add."), user("4 + 7 =")], [ADD], reply=reply, finish_reason="tool_calls", **alone)
    run.call([system("Name this conversation."), user("4 + 7 =")], **alone)
    result = Message(role="tool", content="11", tool_call_id="c1")
    run.call([*run.history(first), result], [ADD], reply=assistant("It is 11."), **alone)
    return run


def end(run: Recorded, **changes: Any) -> Event:
    alone: dict[str, Any] = {"sampling_id": None, "slot": None, "group_size": None, "purpose": "serve"}
    name = run.trajectory_id
    return trajectory(trajectory_id=name, task_id=name, turns=len(run.turns), **(alone | changes))


def answered(task_id: str = "t1", first: int = 0, **changes: Any) -> list[Event]:
    """Return a task with two answers in a group, of which one is right; `first`: the offset of that one."""
    said = [
        response(task_id=task_id, sampling_id=task_id, slot=slot, text=text) for slot, text in enumerate(("11", "no"))
    ]
    members = tuple(
        replace(member(slot), response_id=one.response_id, partition=0, offset=first + slot, reward=1.0 - slot)
        for slot, one in enumerate(said)
    )
    whole = replace(group(), task_id=task_id, group_id=derive_id(task_id), responses=members, **changes)
    return [task(task_id=task_id, group_size=2), *said, whole]


def found(log: Appended, wanted: FinishedSelection = DEFAULT) -> list[Finished]:
    return list(FinishedReader(SETTINGS, log, wanted).round())


def lines(log: Appended) -> list[dict[str, Any]]:
    return [line for one in found(log) for line in interactions(one)]


def test_a_response_is_a_line_with_the_question_the_answer_and_its_score() -> None:
    first, second = lines(Appended(*answered()))
    metadata = first.pop("metadata")
    assert first == {
        "task_id": "t1",
        "input": "4 + 7 =",
        "response": "11",
        "score": 1.0,
        "agent_id": None,
        "adapter_version": 0,
        "timestamp": moment(T0 + 10),
    }
    assert (metadata["id"], metadata["purpose"], metadata["at"]) == (
        derive_id("t1", 0), "train", "streamward.groups[0]@0",
    )  # fmt: skip
    assert (second["response"], second["score"]) == ("no", 0.0)


@pytest.mark.parametrize(("partition", "offset"), [(0, 7), (1, 0), (99, 0)])
def test_a_group_that_names_a_place_without_a_response_is_named(partition: int, offset: int) -> None:
    *others, whole = answered()
    assert isinstance(whole, AdvantagedGroup)
    wrong = replace(whole.responses[1], partition=partition, offset=offset)
    log = Appended(*others, replace(whole, responses=(whole.responses[0], wrong)))
    place = rf"streamward\.responses\[{partition}\]@{offset}, expected an offset below {2 if partition == 0 else 0}"
    with pytest.raises(ContradictoryEvent, match=rf"groups\[0\]@0: group {whole.group_id} of task t1 .* is at {place}"):
        found(log)


def test_each_call_of_a_thread_of_tasks_is_a_line_with_the_score_of_its_own_task() -> None:
    log = Appended(*(event for run in served("one", "two") for event in run))
    told = [(line["task_id"], line["response"], line["score"]) for line in lines(log)]
    assert told == [("t0", "one", 0.0), ("t1", "two", 0.25)]


def test_a_thread_of_tasks_is_in_one_split_with_whatever_was_made_of_its_tasks() -> None:
    log = Appended(*(event for run in served("one", "two") for event in run))
    [whole] = found(log)
    assert {"task t0", "task t1", "thread case 17"} < {*origin_of(whole).keys}


def test_each_call_of_a_run_is_a_line_and_what_bears_no_loss_says_why() -> None:
    run = chat()
    last = run.turns[-1].turn_id
    made = lines(Appended(*run.turns, opinion(last, "chat-1", 0.5), opinion("chat-1", "chat-1", 1), end(run)))
    assert [(line["input"], line["response"], line["score"]) for line in made] == [
        ("4 + 7 =", "", 1),
        ("4 + 7 =", "reply 1", 1),
        ("11", "It is 11.", 0.5),
    ]
    assert {(line["task_id"], line["agent_id"]) for line in made} == {("chat-1", "calc")}
    assert made[0]["metadata"]["tool_calls"] == [{"name": "add", "arguments": '{"a": 4, "b": 7}'}]
    assert [line["metadata"].get("left_out") for line in made] == [None, "auxiliary", None]
    assert [one["value"] for one in made[2]["metadata"]["feedback"]] == [1, 0.5]


def test_a_run_that_answers_a_task_comes_with_its_group_and_that_reward() -> None:
    run = Recorded(derive_id("t1", 0))
    first = run.call([user("4 + 7 =")], sampling_id="t1")
    run.call([*run.history(first), user("sure?")], sampling_id="t1")
    over = trajectory(trajectory_id=run.trajectory_id, sampling_id="t1", turns=2)
    log = Appended(*run.turns, over)
    assert found(log) == []
    log.write(*answered())
    made = lines(log)
    assert [(line["input"], line["score"]) for line in made] == [("4 + 7 =", 1.0), ("sure?", 1.0), ("4 + 7 =", 0.0)]
    assert [line["metadata"].get("trajectory_id") for line in made] == [run.trajectory_id, run.trajectory_id, None]


def test_a_conversation_has_every_message_with_calls_results_and_tools() -> None:
    run, counts = chat(), Counts()
    options = ExportOptions(policy="default", format="conversations", purpose=None)
    log = Appended(*run.turns, opinion("chat-1", "chat-1", 1), end(run), *answered())
    made = {example["task_id"]: example for example, _ in examples(found(log), options, counts)}
    arguments = {"a": 4, "b": 7}
    assert made["chat-1"]["messages"] == [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "4 + 7 ="},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}],
        },
        {"role": "tool", "content": "11", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It is 11."},
    ]
    assert made["chat-1"]["tools"][0]["function"]["parameters"] == {"type": "object"}
    assert (made["chat-1"]["reward"], made["chat-1"]["feedback"], made["chat-1"]["chain"]) == (None, 1, 0)
    assert (made["t1"]["purpose"], made["chat-1"]["purpose"]) == ("train", "serve")
    assert made["t1"]["messages"][-1]["content"] == "no" and made["t1"]["tools"] == []
    assert (counts.groups, counts.responses, counts.examples) == (1, 3, 3)
    good = replace(options, min_reward=0.5)
    assert [origin.keys for _, origin in examples(found(log), good, counts)] == [("task t1",)]


def test_a_later_round_has_only_what_was_finished_since_also_a_copy_of_a_group() -> None:
    run, parts = chat(), answered()
    log = Appended(*parts[:3], *run.turns[:1])
    reader = FinishedReader(SETTINGS, log, DEFAULT)
    assert list(reader.round()) == []
    log.write(parts[3], *run.turns[1:])
    assert [one.task_id for one in reader.round()] == ["t1", "t1"]
    log.write(parts[3], end(run), end(run))
    assert [one.task_id for one in reader.round()] == ["chat-1"]
    assert {part["topic"]: part["next"] for part in reader.ranges()}["streamward.groups"] == 2


def test_policy_purpose_and_time_choose() -> None:
    log = Appended(*answered(), *answered("t2", purpose="eval"), *answered("t3", policy="other"))
    for changes, tasks in (
        ({}, ["t1", "t1", "t2", "t2"]),
        ({"purpose": "eval"}, ["t2", "t2"]),
        ({"since_ms": 1000}, ["t2", "t2"]),
        ({"until_ms": 1000}, ["t1", "t1"]),
    ):
        assert [one.task_id for one in found(log, replace(DEFAULT, **changes))] == tasks


def test_what_cannot_be_read_is_left_out_and_counted() -> None:
    log = Appended(*answered())
    broken = log.records["streamward.responses"]
    broken[1] = broken[1]._replace(payload=b"torn")
    reader = FinishedReader(SETTINGS, log, DEFAULT)
    assert ([one.response.text for one in reader.round() if one.response], reader.unusable) == (["11"], 1)


# --- the file ---------------------------------------------------------------------------------------------------------


def add(path: Path, log: Appended) -> int:
    with InteractionFile(path) as file:
        return file.add(found(log))


def test_a_file_that_was_cut_off_anywhere_is_completed_to_the_same_bytes(tmp_path: Path) -> None:
    run = chat()
    log = Appended(*answered(), *run.turns, end(run))
    assert add(tmp_path / "whole" / "a.jsonl", log) == 5
    whole = (tmp_path / "whole" / "a.jsonl").read_bytes()
    for cut in range(0, len(whole) + 1, 97):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(whole[:cut])
        assert add(path, log) == 5 - whole[:cut].count(b"\n")
        assert path.read_bytes() == whole
    log.write(*answered("t2", first=2))
    assert add(tmp_path / "whole" / "a.jsonl", log) == 2


def test_hugging_face_datasets_reads_interactions_in_any_chunks(tmp_path: Path) -> None:
    from datasets import load_dataset

    run = chat()
    path = tmp_path / "logs" / "agent_interactions.jsonl"
    assert add(path, Appended(*answered(), *run.turns, opinion("chat-1", "chat-1", 1), end(run))) == 5
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for chunksize in (1, 10 << 20):
        cache = str(tmp_path / f"cache {chunksize}")
        assert load_dataset(str(path.parent), cache_dir=cache, chunksize=chunksize)["train"].to_list() == lines


def test_a_file_of_something_else_or_of_another_process_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"task_id": "t1"}\n')
    with pytest.raises(RefusedError, match=r"a\.jsonl:1: expected a line"):
        InteractionFile(path)
    assert path.read_text() == '{"task_id": "t1"}\n'
    path.unlink()
    with InteractionFile(path), pytest.raises(RefusedError, match="another export writes it"):
        InteractionFile(path)


def test_lines_are_json_of_their_own_whatever_the_texts_hold(tmp_path: Path) -> None:
    asked = task(messages=(Message(role="user", content="a\nb\u2028 \0 🎈"),), group_size=2)
    log = Appended(asked, *answered()[1:])
    add(tmp_path / "a.jsonl", log)
    read = [json.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().split(b"\n")[:-1]]
    assert [line["input"] for line in read] == ["a\nb\u2028 \0 🎈"] * 2
