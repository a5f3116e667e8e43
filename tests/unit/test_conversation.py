"""One reader of messages: a conversation means the same at every entrance, or is refused there in the same words."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, strategies as st
from pyarrow import parquet

from gateway.agents import anthropic, chat, responses
from gateway.agents.caller import Caller
from gateway.http.body import read, read_fields
from gateway.log.tasks import TaskBody, task_of
from schemas.events import Message, Task, Tool, ToolCall
from streams.arrow.file_rows import json_lines, rows
from streams.errors import CallError
from streams.settings.model import Model, Settings
from streams.stages.tasks.line_task import Reading
from streams.stages.tasks.lines import Checked, check_rows
from trainer.examples import from_file

Conversation = list[Any]
SETTINGS = Settings(model=Model(base="somebody/a-model-elsewhere"))
READING = Reading(now_ms=0, topic_settings=SETTINGS.topics, defaults={"policy": SETTINGS.policy.name})
CALLER = Caller("default", None, "digest", None)
SERVED = {"purpose": "serve", "group_size": 1}


def task_in(checked: Checked) -> Task:
    if checked.problems:
        raise ValueError(checked.problems[0].error)
    return checked.tasks[0]


def by_lines(messages: Conversation, **more: Any) -> Task:
    return task_in(check_rows(json_lines([json.dumps({"messages": messages, **SERVED, **more})]), "a.jsonl", READING))


def by_csv(messages: Conversation, folder: Path) -> Task:
    text = io.StringIO()
    csv.writer(text).writerows([["messages", "purpose", "group_size"], [json.dumps(messages), "serve", 1]])
    (folder / "a.csv").write_text(text.getvalue())
    return task_in(check_rows(rows(folder / "a.csv"), "a.csv", READING))


def by_parquet(messages: Conversation, folder: Path) -> Task:
    parquet.write_table(
        pyarrow.Table.from_pylist([{"messages": messages, "purpose": "serve", "group_size": 1}]), folder / "a.parquet"
    )
    return task_in(check_rows(rows(folder / "a.parquet"), "a.parquet", READING))


def by_rest(messages: Conversation, **more: Any) -> Task:
    body = read_fields(TaskBody, json.dumps({"messages": messages, **SERVED, **more}).encode())
    return task_of(body, SETTINGS, tenant=None, actor="a", now_ms=0)


def by_chat(messages: Conversation) -> tuple[Message, ...]:
    body = read(chat.ChatBody, json.dumps({"model": "p", "messages": messages}).encode())
    return chat.call(body, CALLER).messages


def by_tuning(messages: Conversation) -> tuple[Message, ...]:
    return tuple(example.message for example in from_file._messages({"messages": messages}, "messages", "sft"))


ENTRANCES: dict[str, Callable[[Conversation], tuple[Message, ...]]] = {
    "tasks": lambda messages: by_lines(messages).messages,
    "rest": lambda messages: by_rest(messages).messages,
    "chat": by_chat,
    "tuning": by_tuning,
}

USER = {"role": "user", "content": "47 * 83?"}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "3901"}


def calls(call: dict[str, Any], **more: Any) -> Conversation:
    return [USER, {"role": "assistant", "tool_calls": [call], **more}, RESULT]


def openai(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": arguments}, **more}


def own(arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "name": "calc", "arguments": arguments}


def called(arguments: str) -> tuple[Message, ...]:
    call = ToolCall(id="c1", name="calc", arguments=arguments)
    return (
        Message(role="user", content="47 * 83?"),
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="3901", tool_call_id="c1"),
    )


WITHOUT_NAME = openai("{}")
del WITHOUT_NAME["function"]["name"]
ASKED = (Message(role="user", content="47 * 83?"),)
READ: list[tuple[Conversation, tuple[Message, ...]]] = [
    ([USER], ASKED),
    ([{"role": "developer", "content": "Add."}, USER], (Message(role="system", content="Add."), *ASKED)),
    ([{**USER, "name": "ann"}], (Message(role="user", content="47 * 83?", name="ann"),)),
    ([{**USER, "name": None, "tool_calls": None, "tool_call_id": None, "refusal": None, "mood": None}], ASKED),
    ([{**USER, "tool_calls": [], "annotations": []}], ASKED),
    ([{"role": "user", "content": ""}], (Message(role="user", content=""),)),
    ([{"role": "user", "content": [{"type": "text", "text": "47 * 83?"}]}], ASKED),
    ([{"role": "user", "content": [{"type": "text", "text": "47"}, {"type": "input_text", "text": "* 83?"}]}],
     (Message(role="user", content="47\n* 83?"),)),
    ([{"role": "user", "content": []}], (Message(role="user", content=""),)),
    (calls(openai("{}")), called("{}")),
    (calls(openai("{}"), content=None), called("{}")),
    (calls(openai("{}"), content=""), called("{}")),
    (calls(openai("{}", index=0)), called("{}")),
    (calls(openai("")), called("{}")),
    (calls(openai(" \n")), called("{}")),
    (calls(openai(None)), called("{}")),
    (calls(openai({})), called("{}")),
    (calls(own("")), called("{}")),
    (calls({"id": "c1", "name": "calc"}), called("{}")),
    (calls(openai({"a": 47, "b": None})), called('{"a": 47, "b": null}')),
    (calls(own({"a": 47, "b": None})), called('{"a": 47, "b": null}')),
    (calls(openai('{"a":47}')), called('{"a":47}')),
    ([USER, {"role": "assistant"}, USER], (*ASKED, Message(role="assistant", content=""), *ASKED)),
    ([USER, {"role": "tool", "content": None}], (*ASKED, Message(role="tool", content=""))),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "expected"), READ)
def test_a_conversation_is_the_same_messages_at_every_entrance(
    messages: Conversation, expected: tuple[Message, ...]
) -> None:
    assert {name: reader(messages) for name, reader in ENTRANCES.items()} == dict.fromkeys(ENTRANCES, expected)


REFUSED: list[tuple[Conversation, str]] = [
    ([], "messages: it is empty; expected at least one message"),
    ([{"role": "wizard", "content": "hi"}],
     "messages[0].role: Input should be 'system', 'developer', 'user', 'assistant' or 'tool' (got 'wizard')"),
    ([{"content": "hi"}], "messages[0].role is required"),
    (["hi"], "messages[0]: expected an object (got 'hi')"),
    ([{"role": "user"}], 'messages[0]: content is required, since the role is user; "" is an empty text'),
    ([{"role": "system", "content": None}, USER], "messages[0]: content is required, since the role is system"),
    ([{"role": "user", "content": 7}], "messages[0].content: expected a text, or a list of parts of text (got 7)"),
    ([{"role": "user", "contents": "hi"}], "there is no field messages[0].contents; did you mean content?"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}],
     "messages[0].content[0] is not supported: it is of type image_url, and the model reads and writes text alone"),
    ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
     "messages[0].content[0] is not supported: it is of type input_audio"),
    ([{"role": "user", "content": [{"type": "prose", "text": "hi"}]}],
     "messages[0].content[0].type: Input should be 'text', 'input_text' or 'output_text' (got 'prose')"),
    ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]: expected an object (got 'hi')"),
    ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text is required"),
    ([USER, {"role": "assistant", "refusal": "I cannot."}, USER],
     "messages[1].refusal is not supported: the model's words are its content"),
    ([USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER],
     "messages[1].content[0] is not supported: what the model says is text"),
    ([USER, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, USER],
     "messages[1].function_call is not supported: this is OpenAI's form of calls before `tools`"),
    ([{**USER, "name": 7}], "messages[0].name: Input should be a valid string (got 7)"),
    ([{**USER, "tool_call_id": "c1"}], "messages[0]: tool_call_id belongs to a result of a tool"),
    ([{**USER, "tool_calls": [openai("{}")]}], "messages[0]: tool_calls are the assistant's, and the role is user"),
    (calls(openai("[]")),
     "messages[1].tool_calls[0].function.arguments: expected a JSON object, or its text (got '[]')"),
    (calls(openai("{")), "messages[1].tool_calls[0].function.arguments: they are not JSON: "),
    (calls(openai('{"a": 1, "a": 2}')), 'they are not JSON: the key "a" is there twice; remove one'),
    (calls(openai('{"a": NaN}')), "messages[1].tool_calls[0].function.arguments: they are not JSON: "),
    (calls(own("[]")), "messages[1].tool_calls[0].arguments: expected a JSON object, or its text (got '[]')"),
    (calls(openai("{}", type="custom")), "messages[1].tool_calls[0].type: Input should be 'function' (got 'custom')"),
    (calls(WITHOUT_NAME), "messages[1].tool_calls[0].function.name is required"),
    (calls({"id": "c1"}), "messages[1].tool_calls[0]: name is required, of the function that is called"),
    (calls(openai("{}", name="calc")), "messages[1].tool_calls[0]: give either function, or name and arguments"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "words"), REFUSED)
def test_what_one_entrance_refuses_all_refuse_in_the_same_words(messages: Conversation, words: str) -> None:
    said = {}
    for name, reader in ENTRANCES.items():
        with pytest.raises((ValueError, CallError)) as refusal:
            reader(messages)
        said[name] = str(refusal.value)
    assert words in said["tasks"]
    assert len(set(said.values())) == 1, said


TEXTS = st.text(max_size=8)
FIELDS = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "judge"])},
    optional={
        "content": st.none() | TEXTS | st.lists(
            st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "prose"]), "text": TEXTS}), max_size=2
        ),
        "name": st.none() | TEXTS | st.integers(),
        "tool_call_id": st.none() | TEXTS,
        "tool_calls": st.none() | st.lists(
            st.builds(openai, st.sampled_from(["", "{}", "[]", "{", '{"a": 1}', None]) | st.dictionaries(TEXTS, TEXTS))
            | st.builds(own, st.sampled_from(["", "{}", "5", None])),
            max_size=2,
        ),
        "refusal": st.none() | TEXTS,
        "mood": st.none() | TEXTS,
    },
)  # fmt: skip


@given(st.lists(FIELDS, min_size=1, max_size=3))
def test_any_conversation_gets_one_verdict_at_every_entrance(messages: Conversation) -> None:
    verdicts = []
    for reader in ENTRANCES.values():
        try:
            verdicts.append(reader(messages))
        except (ValueError, CallError) as exc:
            verdicts.append(re.split(r"; | \| ", str(exc))[0])  # a line of a file and a body name further faults, too
    assert all(verdict == verdicts[0] for verdict in verdicts)


# --- ids --------------------------------------------------------------------------------------------------------------


def test_a_conversation_is_the_same_task_from_every_file_and_over_http(tmp_path: Path) -> None:
    for messages, _ in READ:
        ids = {by_lines(messages).task_id, by_rest(messages).task_id, by_csv(messages, tmp_path).task_id}
        assert len(ids) == 1, messages
    whole = calls(openai('{"a": 47}'), content=None)
    assert by_parquet(whole, tmp_path).task_id == by_lines(whole).task_id
    assert by_rest([USER], sampling={"temperature": 1}).task_id == by_lines([USER], sampling={"temperature": 1}).task_id


def test_a_task_has_one_id_however_its_messages_and_tools_are_written() -> None:
    same = (calls(openai("")), calls(openai({})), calls(own("{}")), calls(own({}), content=None))
    assert len({by_lines(messages).task_id for messages in same}) == 1
    function = {"name": "add", "description": "Add.", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": {**function, "strict": True}}], [function]
    by_openai, by_own = (by_lines([USER], tools=each) for each in tools)
    assert by_openai.tools == by_own.tools == (Tool(name="add", description="Add.", parameters='{"type": "object"}'),)
    assert by_openai.task_id == by_own.task_id


def test_ids_of_lines_without_oddities_are_those_that_they_always_had() -> None:
    plain = [
        {"role": "system", "content": "Add."},
        {**USER, "name": "ann"},
        {"role": "assistant", "content": "?"},
        USER,
    ]
    assert by_lines(plain).task_id == "9ebcce3f-ec3f-51a4-a376-026011c92cfb"
    checked = check_rows(json_lines(['{"prompt": "4 + 7 =", "answer": "11"}']), "a", READING)
    assert task_in(checked).task_id == "ea78e82e-7364-5ebf-a998-878b93d55cf1"


# --- the other protocols ----------------------------------------------------------------------------------------------


IMAGE = "[0].content[0] is not supported: it is of type {kind}, and the model reads and writes text alone"


def test_images_and_odd_arguments_are_refused_in_the_same_words_in_every_protocol() -> None:
    picture = {"role": "user", "content": [{"type": "image", "source": {}}]}
    with pytest.raises(CallError) as refusal:
        read(anthropic.MessagesBody, json.dumps({"model": "p", "max_tokens": 8, "messages": [picture]}).encode())
    assert refusal.value.message == "messages" + IMAGE.format(kind="image")
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "a.png"}]}
    with pytest.raises(CallError) as refusal:
        read(responses.ResponsesBody, json.dumps({"model": "p", "input": [picture]}).encode())
    assert refusal.value.message == "input" + IMAGE.format(kind="input_image")
    call = {"type": "function_call", "call_id": "c1", "name": "calc", "arguments": ""}
    body = read(responses.ResponsesBody, json.dumps({"model": "p", "input": [USER, call]}).encode())
    assert responses.call(body, CALLER).messages == called("{}")[:2]
