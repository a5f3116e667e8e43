"""What each protocol streams is in the official order, fits the official types, and adds up to the whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic.types import ErrorResponse, Message as AnthropicMessage, RawMessageStreamEvent
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.agents import anthropic, chat, completions, responses
from schemas import json_text
from schemas.events import Message, ToolCall
from streams.errors import CallError
from streams.stages.agents.recording.calls import Begun, Delta, Done, Piece, Token

AT = 1_700_000_000.5
BEGUN = Begun(
    turn_id="turn-1",
    trajectory_id="run-1",
    model="sums@7",
    version=7,
    fingerprint="base-7",
    prompt_tokens=9,
    cached_tokens=4,
)
CALLS = (
    ToolCall(id="c1", name="calc", arguments='{"a":47,"b":83}'),
    ToolCall(id="c2", name="calc", arguments="{}"),
)
TOKENS = tuple(Token(id=n, text=text, bytes=text.encode(), logprob=-0.5) for n, text in enumerate(("One ", "moment.")))
TEXT = [Delta(text=token.text, tokens=(token,)) for token in TOKENS]


def done(content: str = "One moment.", calls: tuple[ToolCall, ...] = (), **fields: Any) -> Done:
    message = Message(role="assistant", content=content, tool_calls=calls)
    given: dict[str, Any] = {
        "finish_reason": "tool_calls" if calls else "stop",
        "tokens": TOKENS,
        "turn_id": "turn-1",
    } | fields
    return Done(message=message, **given)


def asked(**parameters: Any) -> responses.ResponsesBody:
    return responses.ResponsesBody.model_validate({"model": "sums", "input": "hi", **parameters})


def streamed(events: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [event async for event in events]

    return asyncio.run(collect())


async def pieces(*given: Piece) -> AsyncIterator[Piece]:
    for piece in given:
        yield piece


ANSWERS = {
    "text": [*TEXT, done()],
    "text and two calls": [*TEXT, done(calls=CALLS)],
    "calls": [done("", CALLS)],
    "nothing": [done("")],
    "cut": [*TEXT, done(finish_reason="length")],
    "stopped": [*TEXT, done(stop="beta")],
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_response_streams_in_order_and_adds_up(answer: list[Any]) -> None:
    body = asked(top_logprobs=0)
    events = streamed(responses.events(body, BEGUN, pieces(*answer), AT))
    kinds = [event["type"] for event in events]

    for event in events:
        TypeAdapter[Any](ResponseStreamEvent).validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds[:2] == ["response.created", "response.in_progress"]
    whole = responses.response(body, BEGUN, answer[-1], AT).model_dump(exclude_unset=True)
    assert events[-1] == {
        "type": f"response.{whole['status']}",
        "response": whole,
        "sequence_number": len(events) - 1,
    }
    finished = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert finished == whole["output"]
    assert [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"] == [
        item["id"] for item in finished
    ]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    parsed = Response.model_validate(whole)
    assert parsed.output_text == text


def test_the_events_of_a_response_with_a_call_are_the_official_ones() -> None:
    body = asked()
    kinds = [
        event["type"].removeprefix("response.")
        for event in streamed(responses.events(body, BEGUN, pieces(*ANSWERS["text and two calls"]), AT))
    ]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    text = ["output_item.added", "content_part.added", "output_text.delta", "output_text.delta"]
    ends = ["output_text.done", "content_part.done", "output_item.done"]
    assert kinds == ["created", "in_progress", *text, *ends, *call, *call, "completed"]


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_message_streams_in_order_and_adds_up(answer: list[Any]) -> None:
    events = streamed(anthropic.events(BEGUN, pieces(*answer)))
    whole = anthropic.message(BEGUN, answer[-1]).model_dump(exclude_unset=True)

    for event in events:
        TypeAdapter[Any](RawMessageStreamEvent).validate_python(event)
    AnthropicMessage.model_validate(whole)
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    blocks: list[dict[str, Any]] = []
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta" and event["delta"]["type"] == "text_delta":
            blocks[event["index"]]["text"] += event["delta"]["text"]
        elif event["type"] == "content_block_delta":
            blocks[event["index"]]["input"] = json_text.parse(event["delta"]["partial_json"])
    assert blocks == whole["content"]
    assert events[-2]["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("text", "end_turn"),
        ("calls", "tool_use"),
        ("cut", "max_tokens"),
        ("stopped", "stop_sequence"),
    ],
)
def test_a_message_says_why_it_ended(answer: str, reason: str) -> None:
    assert anthropic.message(BEGUN, ANSWERS[answer][-1]).model_dump(exclude_unset=True)["stop_reason"] == reason


async def broken(*given: Piece) -> AsyncIterator[Piece]:
    for piece in given:
        yield piece
    raise CallError("busy", "the broker does not answer")


def test_a_stream_that_breaks_off_says_so_in_its_own_words() -> None:
    last = streamed(responses.events(asked(), BEGUN, broken(*TEXT), AT))[-1]
    TypeAdapter[Any](ResponseStreamEvent).validate_python(last)
    assert (last["type"], last["response"]["error"]["message"]) == ("response.failed", "the broker does not answer")
    last = streamed(anthropic.events(BEGUN, broken(*TEXT)))[-1]
    ErrorResponse.model_validate(last)
    assert last["error"] == {"type": "overloaded_error", "message": "the broker does not answer"}


def test_cached_tokens_are_counted_apart_from_input_tokens_in_messages_and_within_them_in_responses() -> None:
    usage = anthropic.message(BEGUN, done()).model_dump(exclude_unset=True)["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (5, 4)
    body = asked()
    usage = responses.response(body, BEGUN, done(), AT).model_dump(exclude_unset=True)["usage"]
    assert (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (9, 4)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_chat_streams_and_adds_up(answer: list[Any]) -> None:
    body = chat.ChatBody.model_validate(
        {
            "model": "sums",
            "messages": [{"role": "user", "content": "hi"}],
            "logprobs": True,
            "stream_options": {"include_usage": True},
        }
    )
    state = ChatCompletionStreamState()
    for chunk in streamed(chat.chunks(body, BEGUN, pieces(*answer), AT)):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    whole = ChatCompletion.model_validate(
        chat.completion(BEGUN, answer[-1:], AT, with_logprobs=True).model_dump(exclude_unset=True)
    )

    added_up, message = state.current_completion_snapshot, whole.choices[0].message
    assert added_up.usage == whole.usage and added_up.choices[0].finish_reason == whole.choices[0].finish_reason
    assert (added_up.choices[0].message.content or None) == (message.content or None)
    own, calls = added_up.choices[0].message.tool_calls or (), message.tool_calls or ()
    assert [each.model_dump(exclude={"index"}, exclude_none=True) for each in own] == [
        each.model_dump(exclude_none=True) for each in calls
    ]
    logprobs, same = added_up.choices[0].logprobs, whole.choices[0].logprobs
    assert logprobs is not None and same is not None and logprobs.content == same.content


def test_two_completions_stream_and_add_up() -> None:
    body = completions.CompletionsBody.model_validate(
        {"model": "sums", "prompt": "hi", "n": 2, "logprobs": 0, "stream_options": {"include_usage": True}}
    )
    answers = [done(), done("One ", choice=1, tokens=TOKENS[:1], finish_reason="length")]
    given = [TEXT[0], Delta(choice=1, text="One ", tokens=TOKENS[:1]), TEXT[1], *reversed(answers)]
    # as the client reads them: before the end of an answer finish_reason is null, which its type does not say
    chunks = [Completion.construct(**chunk) for chunk in streamed(completions.chunks(body, BEGUN, pieces(*given), AT))]
    whole = Completion.model_validate(completions.completion(body, BEGUN, answers, AT).model_dump(exclude_unset=True))

    for index, choice in enumerate(whole.choices):
        own = [each for chunk in chunks for each in chunk.choices if each.index == index]
        assert "".join(each.text for each in own) == choice.text
        assert own[-1].finish_reason == choice.finish_reason
        offsets = [at for each in own if each.logprobs for at in each.logprobs.text_offset or ()]
        assert choice.logprobs is not None and offsets == choice.logprobs.text_offset
    assert chunks[-1].usage == whole.usage and chunks[-1].choices == []
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
