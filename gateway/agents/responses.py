"""OpenAI's responses: their parameters, and translation to and from the recorder's calls.

    POST …/v1/responses ──► ModelCall ──► pieces ──► response, or response.created … response.completed

A response is one turn, and its id is the turn's: `previous_response_id` continues the conversation that the log has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from gateway.agents.answer_forms import FunctionChoice, ToolsChoice, forced
from gateway.agents.caller import Caller
from gateway.agents.parameters import MAX_TOKENS, logprobs
from gateway.agents.protocol_answers import ModelResponse
from gateway.agents.responses_body import (
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionTool,
    MessageItem,
    ResponsesBody,
)
from gateway.http.body import Body, compact, ignored
from schemas.conversation import join_texts
from schemas.events import Message, Sampling, Tool, ToolCall
from streams.errors import CallError
from streams.stages.agents.recording.calls import Begun, Delta, Done, ModelCall, Piece, Token

PARAMETERS = "text.format", "tool_choice", "parallel_tool_calls"
TOOL_FIELDS = {"type", "name", "description", "parameters"}


def call(body: ResponsesBody, caller: Caller, before: Sequence[Message] = ()) -> ModelCall:
    """Return the protocol-neutral request; `before`: the conversation of `previous_response_id`."""
    tools = _tools(body)
    name = body.tool_choice.name if isinstance(body.tool_choice, FunctionChoice) else None
    choice = ToolsChoice.of(body.tool_choice, name, body.parallel_tool_calls)
    return ModelCall(
        **caller._asdict(),
        **forced(tools, choice, body.text.format if body.text else None, PARAMETERS)._asdict(),
        protocol="responses",
        model=body.model,
        messages=_messages(body, before),
        tools=tools,
        tool_choice="none" if choice.kind == "none" else "auto",
        sampling=_sampling(body),
        with_logprobs=_with_logprobs(body),
        ignored=ignored(body),
    )


def _messages(body: ResponsesBody, before: Sequence[Message]) -> tuple[Message, ...]:
    """Return the conversation as the log has it: instructions, what came `before`, and the input.

    Calls that follow a message of the model, or each other, are one turn of it.
    """
    turns: list[Message] = []
    for item in body.input:
        if isinstance(item, MessageItem):
            role = "system" if item.role == "developer" else item.role
            turns.append(Message(role=role, content=join_texts(part.text for part in item.content)))
        elif isinstance(item, FunctionCallOutputItem):
            content = join_texts(part.text for part in item.output)
            turns.append(Message(role="tool", content=content, tool_call_id=item.call_id))
        elif isinstance(item, FunctionCallItem):
            call = ToolCall(id=item.call_id, name=item.name, arguments=item.arguments)
            last = turns.pop() if turns and turns[-1].role == "assistant" else Message(role="assistant", content="")
            calls = (*last.tool_calls, call)
            turns.append(Message(role="assistant", content=last.content, tool_calls=calls))
    rest = [message for n, message in enumerate(before) if n or message.role != "system" or not body.instructions]
    head = [Message(role="system", content=body.instructions)] if body.instructions else []
    return (*head, *rest, *turns)


def turn_of_item(item_id: str) -> str:
    """Return the turn of an answer's item, by the item's id; see `_item_id`."""
    return item_id.partition("_")[2].rpartition("_")[0]


def recorded_item(item_id: str, reply: Message) -> MessageItem | FunctionCallItem | None:
    """Return the item of a recorded answer; None if the answer has no such item."""
    kind, _, rest = item_id.partition("_")
    number = rest.rpartition("_")[2]
    if kind == "msg" and number == "0":
        return MessageItem.model_validate({"role": "assistant", "content": reply.content})
    if kind != "fc" or not number.isdecimal() or int(number) >= len(reply.tool_calls):
        return None
    call = reply.tool_calls[int(number)]
    return FunctionCallItem(type="function_call", call_id=call.id, name=call.name, arguments=call.arguments)


def _tools(body: ResponsesBody) -> tuple[Tool, ...]:
    """Return the tools that the model is shown, with their schemas as JSON text."""
    return tuple(
        Tool(
            name=tool.name, description=tool.description or "", parameters=compact(tool.parameters or {}, f"tools[{n}]")
        )
        for n, tool in enumerate(body.tools or ())
        if isinstance(tool, FunctionTool)
    )


_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why an answer is incomplete, by its end."""


def _sampling(body: ResponsesBody) -> Sampling:
    """Return how tokens are drawn."""
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        max_tokens=body.max_output_tokens or MAX_TOKENS,
    )


def response(body: ResponsesBody, begun: Begun, done: Done, created_s: float) -> ModelResponse:
    """Return the whole answer; `created_s`: seconds since the epoch."""
    return ModelResponse(**_fields(body, begun, done, created_s))


def _fields(body: ResponsesBody, begun: Begun, done: Done | None, created_s: float) -> dict[str, Any]:
    """Return the response as events have it: without `done` it is in progress, and no whole answer yet."""
    cut = None if done is None else _CUT.get(done.finish_reason)
    return {
        "id": f"resp_{begun.turn_id}",
        "object": "response",
        "created_at": int(created_s),
        "completed_at": int(created_s) if done is not None and cut is None else None,
        "status": "in_progress" if done is None else "completed" if cut is None else "incomplete",
        "error": None,
        "incomplete_details": None if cut is None else {"reason": cut},
        "model": begun.model,
        "output": [] if done is None else [item for item, _ in _output(body, begun, done)],
        "usage": None if done is None else _usage(begun, done),
        "background": False,
        "frequency_penalty": 0.0,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": 0.0,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": True,
        "temperature": _sampling(body).temperature,
        "text": {"format": _format(body)},
        "tool_choice": body.tool_choice.model_dump()
        if isinstance(body.tool_choice, Body)
        else body.tool_choice or "auto",
        "tools": [
            tool.model_dump(include=TOOL_FIELDS) | {"strict": False}
            for tool in body.tools or ()
            if isinstance(tool, FunctionTool)
        ],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _sampling(body).top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _format(body: ResponsesBody) -> dict[str, Any]:
    text_format = None if body.text is None else body.text.format
    return {"type": "text"} if text_format is None else text_format.model_dump(by_alias=True)


async def events(
    body: ResponsesBody, begun: Begun, pieces: AsyncIterator[Piece], created_s: float
) -> AsyncIterator[dict[str, Any]]:
    """Stream a response: text while it is sampled, calls once they are complete, the end once it is recorded."""
    numbers, texts = count(), False
    for kind in ("response.created", "response.in_progress"):
        yield {"type": kind, "response": _fields(body, begun, None, created_s), "sequence_number": next(numbers)}
    try:
        async for piece in pieces:
            next_events: Iterable[dict[str, Any]] = ()
            if isinstance(piece, Delta) and (piece.text or (piece.tokens and _with_logprobs(body))):
                next_events = [*([] if texts else _text_begins(begun)), _text_delta(body, begun, piece)]
                texts = True
            elif isinstance(piece, Done):
                next_events = _end(body, begun, piece, created_s, texts)
            for event in next_events:
                yield event | {"sequence_number": next(numbers)}
    except CallError as exc:
        failed = {"status": "failed", "error": {"code": "server_error", "message": exc.message}}
        whole = _fields(body, begun, None, created_s) | failed
        yield {"type": "response.failed", "response": whole, "sequence_number": next(numbers)}


def _end(body: ResponsesBody, begun: Begun, done: Done, created_s: float, texts: bool) -> Iterator[dict[str, Any]]:
    for index, (item, started) in enumerate(_output(body, begun, done)):
        if item["type"] == "message":
            yield from _text_ends(begun, item) if texts else [*_text_begins(begun), *_text_ends(begun, item)]
        else:
            kind, place = "response.function_call_arguments", {"item_id": item["id"], "output_index": index}
            yield {"type": "response.output_item.added", "output_index": index, "item": started}
            yield {"type": f"{kind}.delta", **place, "delta": item["arguments"]}
            yield {"type": f"{kind}.done", **place, "name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    whole = _fields(body, begun, done, created_s)
    yield {"type": f"response.{whole['status']}", "response": whole}


def _text_begins(begun: Begun) -> list[dict[str, Any]]:
    item = {
        "type": "message",
        "id": _item_id("msg", begun, 0),
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **_place(begun), "part": part},
    ]


def _text_delta(body: ResponsesBody, begun: Begun, delta: Delta) -> dict[str, Any]:
    logprobs = _logprobs(body, delta.tokens)
    return {"type": "response.output_text.delta", **_place(begun), "delta": delta.text, "logprobs": logprobs}


def _text_ends(begun: Begun, item: dict[str, Any]) -> list[dict[str, Any]]:
    [part] = item["content"]
    text = {"text": part["text"], "logprobs": part["logprobs"]}
    return [
        {"type": "response.output_text.done", **_place(begun), **text},
        {"type": "response.content_part.done", **_place(begun), "part": part},
    ]


def _output(body: ResponsesBody, begun: Begun, done: Done) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each item of the answer, and what it is when it begins. There is always one, as clients expect."""
    status = "incomplete" if done.finish_reason in _CUT else "completed"
    calls = done.message.tool_calls
    if done.message.content or not calls:
        text = {
            "type": "output_text",
            "text": done.message.content,
            "annotations": [],
            "logprobs": _logprobs(body, done.tokens),
        }
        item = {"type": "message", "id": _item_id("msg", begun, 0), "role": "assistant"}
        yield item | {"status": status, "content": [text]}, item | {"status": "in_progress", "content": []}
    for n, call in enumerate(calls):
        item = {"type": "function_call", "id": _item_id("fc", begun, n), "call_id": call.id, "name": call.name}
        yield (
            item | {"arguments": call.arguments, "status": "completed"},
            item | {"arguments": "", "status": "in_progress"},
        )


def _logprobs(body: ResponsesBody, tokens: Sequence[Token]) -> list[dict[str, Any]]:
    return [token.model_dump() for token in logprobs(tokens)] if _with_logprobs(body) else []


def _with_logprobs(body: ResponsesBody) -> bool:
    return body.top_logprobs is not None or "message.output_text.logprobs" in (body.include or ())


def _place(begun: Begun) -> dict[str, Any]:
    """Return where the text of an answer is: it is always the first item."""
    return {"item_id": _item_id("msg", begun, 0), "output_index": 0, "content_index": 0}


def _item_id(kind: str, begun: Begun, number: int) -> str:
    return f"{kind}_{begun.turn_id}_{number}"


def _usage(begun: Begun, done: Done) -> dict[str, Any]:
    return {
        "input_tokens": begun.prompt_tokens,
        "input_tokens_details": {"cached_tokens": begun.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": len(done.tokens),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": begun.prompt_tokens + len(done.tokens),
    }
