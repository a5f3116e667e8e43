"""Tokens in, tokens out: what was sampled is in the next prompt as it was sampled, or there is a reason."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from schemas.events import Message, Tool, ToolCall
from streams.engines.base_model import digest_of_tokenizer, load_tokenizer
from streams.engines.rendering import ChatRendering
from streams.engines.tool_calls import read_calls
from streams.errors import EventError
from tests.support.models import chat
from tests.support.thoroughness import FULL

WEATHER = Tool(name="weather", description="of a city", parameters='{"type": "object"}')
ASKS = (Message(role="user", content="Weather in Zürich?"),)
MORE = (Message(role="user", content="And 東京?"),)
CALL = ToolCall(id="abcdefghi", name="weather", arguments='{"city": "Zürich"}')
FOUND = (Message(role="tool", content="sunny", tool_call_id="abcdefghi"),)


def said(text: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls)


def extended(render: ChatRendering, answer: Message, new: tuple[Message, ...], *, sampled: str = "x" + chat.END) -> str:
    """The text behind an answer, or the reason why there is none."""
    tools = (WEATHER,) if answer.tool_calls else ()
    known = (*render.first(ASKS, tools), *render.plain(sampled))
    behind = render.extend(known, sampled.endswith("|>"), (*ASKS, answer), new, tools)
    return behind if isinstance(behind, str) else render._tokenizer.decode(list(behind))


def test_behind_an_answer_come_the_rest_of_its_turn_and_the_new_messages() -> None:
    behind = "\n<|im_start|>user\nAnd 東京?<|im_end|>\n<|im_start|>assistant\n"
    assert extended(chat.rendering(chat.KEEPS), said("Sunny."), MORE) == behind


def test_answer_without_an_end_gets_the_template_s() -> None:
    behind = extended(chat.rendering(chat.KEEPS), said("Sun"), MORE, sampled="Sun")
    assert behind.startswith("<|im_end|>\n<|im_start|>user\n")


@pytest.mark.parametrize("end", [chat.END, chat.OTHER_END])
@pytest.mark.parametrize("template", [chat.KEEPS, chat.OTHER_END_IN_HISTORY])
def test_end_that_was_sampled_stays_alone_whichever_the_template_writes(template: str, end: str) -> None:
    assert extended(chat.rendering(template), said("x"), MORE, sampled="x" + end).startswith("\n<|im_start|>user\n")


def test_behind_a_tool_call_comes_its_result() -> None:
    behind = "\n<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n"
    assert extended(chat.rendering(chat.KEEPS), said("", CALL), FOUND) == behind
    assert extended(chat.rendering(chat.KEEPS), said("Let me see.", CALL, CALL), FOUND) == behind


@pytest.mark.parametrize(
    ("template", "answer", "new", "reason"),
    [
        (chat.STRIPS_REASONING, said("<think>warm</think>Sunny."), MORE, "leaves out a part of the answer"),
        (chat.COUNTS_IN_SYSTEM, said("Sunny."), MORE, "it writes '3"),
        (chat.WRITES_TWICE, said("Let me see.", CALL), FOUND, "the text of an answer 2 times"),
        (chat.DROPS_TEXT, said("Let me see.", CALL), FOUND, "the text of an answer 0 times"),
        (chat.THINKS_FIRST, said("warm</think>Sunny."), MORE, "for '<think>"),
    ],
)
def test_template_that_changes_history_is_a_reason(
    template: str, answer: Message, new: tuple[Message, ...], reason: str
) -> None:
    got = extended(chat.rendering(template), answer, new)
    assert got.startswith("the chat template changes history") and reason in got, got


def test_tools_that_the_template_does_not_write_are_refused() -> None:
    with pytest.raises(EventError, match="does not write tools"):
        chat.rendering(chat.NO_TOOLS).first(ASKS, (WEATHER,))
    assert chat.rendering(chat.KEEPS).markers == ("<tool_call>",)


def test_digest_tells_templates_apart() -> None:
    digests = [chat.rendering(template).template_digest for template in (chat.KEEPS, chat.KEEPS, chat.NO_TOOLS)]
    assert digests[0] == digests[1] != digests[2]


def test_bytes_of_tokens_are_those_of_the_text() -> None:
    render = chat.rendering(chat.KEEPS)
    tokens = render.plain("Zürich 東京 … <|im_end|>")
    assert b"".join(map(render.token_bytes, tokens)).decode() == render.text(tokens) == "Zürich 東京 … "


def converse(render: ChatRendering, vocabulary: range, tools: tuple[Tool, ...]) -> None:
    """Hold conversations whose answers are random tokens; most decode to a text that encodes otherwise."""
    draw, ends = random.Random(7), sorted(render._ends)
    goal, sampled, reencoded = (50_000 if FULL else 4_000), 0, 0
    while sampled < goal:
        messages: tuple[Message, ...] = ASKS
        tokens = render.first(messages, tools)
        owned: list[tuple[int, tuple[int, ...]]] = []
        for _ in range(draw.randint(2, 6)):
            drawn = tuple(draw.choice(vocabulary) for _ in range(draw.randint(1, 60)))
            finished = draw.random() < 0.8
            drawn += (draw.choice(ends),) if finished else ()
            owned.append((len(tokens), drawn))
            answer, malformed = render.parse(drawn, tools, "turn")
            assert malformed is None
            reencoded += render.plain(answer.content) != drawn[: len(drawn) - finished]
            messages, known = (*messages, answer), (*tokens, *drawn)
            behind = render.extend(known, finished, messages, MORE, tools)
            assert isinstance(behind, tuple), behind
            messages, tokens = (*messages, *MORE), (*known, *behind)
        for place, drawn in owned:
            assert tokens[place : place + len(drawn)] == drawn
            sampled += len(drawn)
    assert reencoded


@pytest.mark.parametrize("template", [chat.KEEPS, chat.OTHER_END_IN_HISTORY])
def test_every_sampled_token_is_in_the_last_prompt_as_it_was_sampled(template: str) -> None:
    converse(chat.rendering(template), range(3, 600), (WEATHER,))


@pytest.mark.model
def test_smollm2_gets_its_own_tokens_again_and_the_prompts_that_transformers_makes() -> None:
    tokenizer: Any = load_tokenizer("smollm2-135m-instruct")
    render = ChatRendering(tokenizer, (tokenizer.eos_token_id,), digest_of_tokenizer(tokenizer))
    asked = [{"role": "user", "content": ASKS[0].content}]
    whole = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert render.first(ASKS, ()) == tuple(whole)
    converse(render, range(17, len(tokenizer)), ())


def test_what_comes_behind_does_not_depend_on_the_length_of_history() -> None:
    render, tokenized = chat.rendering(chat.KEEPS), []
    encode = render._template.tokens
    render._template.tokens = lambda text: tokenized.append(len(text)) or encode(text)  # type: ignore[method-assign, func-returns-value]
    for turns in (1, 50):
        history = (*ASKS, said("Sunny.")) * turns
        render.extend((1,), True, history, MORE, ())
    assert tokenized[0] == tokenized[1]


def test_call_as_the_template_writes_it_is_read_and_a_broken_one_is_text() -> None:
    render = chat.rendering(chat.KEEPS)
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    read, malformed = render.parse(render.plain(call + chat.END), (WEATHER,), "turn")
    assert malformed is None and json.loads(read.tool_calls[0].arguments) == {"city": "Zürich"}
    broken, why = render.parse(render.plain(call[:-20]), (WEATHER,), "turn")
    assert why and not broken.tool_calls and broken.content == call[:-20]
    stopped = render.plain(call + "\nObservation: sunny")
    assert render.parse(stopped, (WEATHER,), "turn", "\nObservation:") == (read, None)
    plain, why = render.parse(render.plain(call), (), "turn")
    assert why is None and plain.content == call


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call>{</tool_call>", "tool call 1"),
        ('<tool_call>{"name": "a", "arguments": 1}</tool_call>', "expected an object as arguments"),
        ('<tool_call>{"name": "a"}</tool_call>', "name and arguments"),
        ('<tool_call>{"name": "a", "arguments": {}, "id": "7"}</tool_call>', "and nothing else"),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "without NaN"),
        ('<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>', "infinity"),
        ('<tool_call>{"name": "a", "arguments": {"x": "\\ud83d"}}</tool_call>', "surrogate"),
        ('<tool_call>{"name": "a", "arguments": {}}', "</tool_call> is missing"),
        ('<tool_call>{"name": "a", "arguments": {}}</tool_call> and', "behind calls"),
    ],
)
def test_a_call_that_cannot_be_read_stays_text_and_says_why(text: str, why: str) -> None:
    reply, malformed = read_calls(text, "turn")
    assert (reply.content, reply.tool_calls) == (text, ())
    assert malformed is not None and why in malformed


def test_several_calls_are_read_in_order() -> None:
    one = '<tool_call>{"name": "%s", "arguments": {"n": %d}}</tool_call>'
    reply, malformed = read_calls("Both. " + one % ("a", 1) + "\n" + one % ("b", 2), "turn")
    assert (reply.content, malformed) == ("Both.", None)
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("a", '{"n": 1}'), ("b", '{"n": 2}')]


def test_same_call_in_a_later_turn_has_another_id() -> None:
    text = '<tool_call>{"name": "a", "arguments": {}}</tool_call>' * 2
    ids = [call.id for turn in ("first", "second") for call in read_calls(text, turn).reply.tool_calls]
    assert len(set(ids)) == 4
