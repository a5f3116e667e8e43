"""The new part of a prompt is the difference that the chat template makes; what is known stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from schemas.events import Message, Tool
from streams.engines.rendering import ChatRendering
from streams.engines.tool_calls import read_calls
from streams.errors import EventError

CHATML = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = CHATML.replace("{{ m.content }}", "{{ m.content if loop.last else m.content.split('</think>')[-1] }}")
USER, OTHER = Message(role="user", content="4 + 7 ="), Message(role="user", content="and twice that?")


def tokenizer(template: str) -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=AddedToken("<|im_end|>"), bos_token="<|im_start|>")
    made.chat_template = template
    return made


def rendering(template: str = CHATML) -> ChatRendering:
    return ChatRendering(tokenizer(template), "digest")


@pytest.mark.parametrize("finished", [True, False])
def test_known_tokens_and_the_new_ones_are_the_whole_conversation(finished: bool) -> None:
    render, reply = rendering(), Message(role="assistant", content="11")
    known = (*render.first([USER], ()), *render.plain("11<|im_end|>" if finished else "11"))
    new = render.extend(known, finished, [USER, reply], [OTHER], ())
    assert not isinstance(new, str)
    assert (*known, *new) == render.first([USER, reply, OTHER], ())


def test_a_template_that_changes_the_past_is_a_reason_and_no_guess() -> None:
    render, reply = rendering(FORGETFUL), Message(role="assistant", content="<think>hm</think>11")
    known = (*render.first([USER], ()), *render.plain(reply.content + "<|im_end|>"))
    assert render.extend(known, True, [USER, reply], [OTHER], ()) == (
        "the chat template changes what is already in the history"
    )


def test_a_turn_that_ended_otherwise_than_the_template_ends_it_is_a_reason() -> None:
    render, reply = rendering(), Message(role="assistant", content="11")
    known = (*render.first([USER], ()), *render.plain("11<|im_start|>"))
    assert "ended its turn with '<|im_start|>'" in str(render.extend(known, True, [USER, reply], [OTHER], ()))


def test_tools_that_the_template_would_not_show_are_refused() -> None:
    tool = Tool(name="add", parameters='{"type": "object"}')
    assert "add" in rendering().text(rendering().first([USER], [tool]))
    blind = rendering(CHATML.replace("{% if tools %}", "{% if false %}"))
    with pytest.raises(EventError, match="no place for tools"):
        blind.first([USER], [tool])


def test_the_bytes_of_tokens_are_those_of_the_text() -> None:
    render = rendering()
    assert b"".join(map(render.token_bytes, render.plain("ä 🎈<|im_end|>"))) == "ä 🎈".encode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call>{</tool_call>", "tool call 1"),
        ('<tool_call>{"name": "a", "arguments": 1}</tool_call>', "expected an object as arguments"),
        ('<tool_call>{"name": "a"}', "</tool_call> is missing"),
        ('<tool_call>{"name": "a"}</tool_call> and', "behind calls"),
    ],
)
def test_a_call_that_cannot_be_read_stays_text_and_says_why(text: str, why: str) -> None:
    reply, malformed = read_calls(text)
    assert (reply.content, reply.tool_calls) == (text, ())
    assert malformed is not None and why in malformed


def test_several_calls_are_read_in_order() -> None:
    one = '<tool_call>{"name": "%s", "arguments": {"n": %d}}</tool_call>'
    reply, malformed = read_calls("Both. " + one % ("a", 1) + "\n" + one % ("b", 2))
    assert (reply.content, malformed) == ("Both.", None)
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("a", '{"n": 1}'), ("b", '{"n": 2}')]
