"""OpenAI's responses: their parameters, and both ways between them and what the recorder knows.

    POST …/v1/responses ──► ModelCall ──► pieces ──► response, or response.created … response.completed

A response is one turn, and its id is the turn's: `previous_response_id` continues the conversation that the log has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from gateway.body import (
    ADDRESS,
    MAX_TOKENS,
    NO_CACHE_KEYS,
    NOT_FORCED,
    SCHEMA_NOT_FORCED,
    SEVERAL_CALLS,
    TEXT_ALONE,
    Arguments,
    Body,
    Caller,
    Ignored,
    MaxTokens,
    Model,
    Refused,
    Stream,
    Temperature,
    ToolSchema,
    TopP,
    Whole,
    compact,
    ignored,
    joined,
    logprobs,
)
from schemas.events import Message, Sampling, Tool, ToolCall
from streams.stages.agents.calls import Begun, CallError, Delta, Done, ModelCall, Piece, Token

TOOL_FIELDS = {"type", "name", "description", "parameters"}
OURS = "ids and states of items are made by the server"


def _parts(value: object) -> object:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


class InputText(Body):
    """Text of the client."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: Annotated[Any, Ignored(NO_CACHE_KEYS)] = None


class OutputText(Body):
    """Text that the model wrote."""

    type: Literal["output_text"]
    text: str
    annotations: Annotated[Any, Refused(TEXT_ALONE, [])] = None
    logprobs: Annotated[Any, Ignored("the log has them")] = None


Part = Annotated[InputText | OutputText, Field(discriminator="type")]
Parts = Annotated[list[Part], BeforeValidator(_parts, json_schema_input_type=str | list[Part])]


class MessageItem(Body):
    """A message."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: Annotated[str | None, Ignored(OURS)] = None
    status: Annotated[str | None, Ignored(OURS)] = None
    phase: Annotated[str | None, Ignored("templates of chat models have no place for it")] = None


class FunctionCallItem(Body):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Arguments
    id: Annotated[str | None, Ignored(OURS)] = None
    status: Annotated[str | None, Ignored(OURS)] = None


class FunctionCallOutputItem(Body):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts
    id: Annotated[str | None, Ignored(OURS)] = None
    status: Annotated[str | None, Ignored(OURS)] = None


def _kind(item: Any) -> str:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return kind if isinstance(kind, str) else "message"


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")],
    Discriminator(_kind),
]


def _items(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class FunctionTool(Body):
    """A tool that the client runs."""

    type: Literal["function"]
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: ToolSchema | None = None
    strict: Annotated[bool | None, Ignored(SCHEMA_NOT_FORCED)] = None
    defer_loading: Annotated[Any, Refused("every tool is in the prompt", False)] = None


class EventOptions(Body):
    """How events are sent."""

    include_obfuscation: Annotated[bool | None, Ignored("nothing is added to events")] = None


class ResponsesBody(Body):
    """A response that is wanted."""

    model: Model
    input: Annotated[list[Item], BeforeValidator(_items, json_schema_input_type=str | list[Item])] = Field(
        min_length=1, description="text, or messages, `function_call` and `function_call_output` items"
    )
    instructions: str | None = Field(None, description="the system message, before all others")
    previous_response_id: str | None = Field(None, description="continues the recorded conversation of that response")
    tools: list[FunctionTool] | None = Field(None, description="tools that the client runs")
    tool_choice: Annotated[Any, Refused(NOT_FORCED, "auto", "none")] = None
    max_output_tokens: MaxTokens = None
    temperature: Temperature = None
    top_p: TopP = None
    stream: Stream = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = Field(
        None, description="logprobs of the sampled tokens; a policy without reasoning has none to include"
    )
    top_logprobs: Whole | None = Field(None, ge=0, le=20, description="alternatives to each token")
    stream_options: EventOptions | None = Field(None, description="has nothing that changes an answer")
    metadata: Annotated[dict[str, str] | None, Ignored(ADDRESS)] = None
    store: Annotated[bool | None, Ignored("every answer is in the log before it is complete")] = None
    user: Annotated[str | None, Ignored(ADDRESS)] = None
    safety_identifier: Annotated[str | None, Ignored(ADDRESS)] = None
    prompt_cache_key: Annotated[str | None, Ignored(NO_CACHE_KEYS)] = None
    prompt_cache_retention: Annotated[Any, Ignored(NO_CACHE_KEYS)] = None
    prompt_cache_options: Annotated[Any, Ignored(NO_CACHE_KEYS)] = None
    service_tier: Annotated[Any, Ignored("there is one tier")] = None
    max_tool_calls: Annotated[int | None, Ignored("it limits tools of the server, and there are none")] = None
    parallel_tool_calls: Annotated[Any, Refused(SEVERAL_CALLS, True)] = None
    text: Annotated[Any, Refused("the format is not forced on the model", {}, {"format": {"type": "text"}})] = None
    reasoning: Annotated[Any, Refused("the policy has no reasoning of its own", {}, {"effort": "none"})] = None
    truncation: Annotated[Any, Refused("a conversation that does not fit is refused, never cut", "disabled")] = None
    background: Annotated[Any, Refused("an answer belongs to its connection", False)] = None
    background_options: Annotated[Any, Refused("an answer belongs to its connection")] = None
    conversation: Annotated[Any, Refused("use previous_response_id, or send the conversation")] = None
    context_management: Annotated[Any, Refused("the client decides what a conversation holds", [])] = None
    prompt: Annotated[Any, Refused("the server keeps no templates of prompts")] = None
    moderation: Annotated[Any, Refused("nothing is moderated")] = None
    image: Annotated[Any, Refused(TEXT_ALONE)] = None
    access_programs: Annotated[Any, Refused("there are none")] = None


def call(body: ResponsesBody, caller: Caller, before: Sequence[Message] = ()) -> ModelCall:
    """Return the request in no protocol's words; `before`: the conversation of `previous_response_id`."""
    return ModelCall(
        **caller._asdict(),
        protocol="responses",
        model=body.model,
        messages=_messages(body, before),
        tools=_tools(body),
        tool_choice="none" if body.tool_choice == "none" else "auto",
        sampling=_sampling(body),
        logprobs=(body.top_logprobs or 0) if _with_logprobs(body) else None,
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
            turns.append(Message(role=role, content=joined(part.text for part in item.content)))
        elif isinstance(item, FunctionCallOutputItem):
            content = joined(part.text for part in item.output)
            turns.append(Message(role="tool", content=content, tool_call_id=item.call_id))
        else:
            call = ToolCall(id=item.call_id, name=item.name, arguments=item.arguments)
            last = turns.pop() if turns and turns[-1].role == "assistant" else Message(role="assistant", content="")
            calls = (*last.tool_calls, call)
            turns.append(Message(role="assistant", content=last.content, tool_calls=calls))
    rest = [message for n, message in enumerate(before) if n or message.role != "system" or not body.instructions]
    head = [Message(role="system", content=body.instructions)] if body.instructions else []
    return (*head, *rest, *turns)


def _tools(body: ResponsesBody) -> tuple[Tool, ...]:
    """Return the tools, with their schemas as JSON text."""
    return tuple(
        Tool(
            name=tool.name, description=tool.description or "", parameters=compact(tool.parameters or {}, f"tools[{n}]")
        )
        for n, tool in enumerate(body.tools or ())
    )


def _sampling(body: ResponsesBody) -> Sampling:
    """Return how tokens are drawn."""
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        max_tokens=body.max_output_tokens or MAX_TOKENS,
    )


def response(body: ResponsesBody, begun: Begun, done: Done | None, at: float) -> dict[str, Any]:
    """Return the response, which is in progress without `done`; `at`: seconds since the epoch."""
    cut = done is not None and done.finish_reason == "length"
    return {
        "id": f"resp_{begun.turn_id}",
        "object": "response",
        "created_at": int(at),
        "completed_at": int(at) if done is not None and not cut else None,
        "status": "in_progress" if done is None else "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": begun.model,
        "output": [] if done is None else [item for item, _ in _output(body, begun, done)],
        "usage": None if done is None else _usage(begun, done),
        "background": False,
        "frequency_penalty": 0.0,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": True,
        "temperature": _sampling(body).temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.tool_choice.model_dump()
        if isinstance(body.tool_choice, Body)
        else body.tool_choice or "auto",
        "tools": [tool.model_dump(include=TOOL_FIELDS) | {"strict": False} for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _sampling(body).top_p,
        "truncation": "disabled",
        "user": body.user,
    }


async def events(
    body: ResponsesBody, begun: Begun, pieces: AsyncIterator[Piece], at: float
) -> AsyncIterator[dict[str, Any]]:
    """Stream a response: text while it is sampled, calls once they are complete, the end once it is recorded."""
    numbers, texts = count(), False
    for kind in ("response.created", "response.in_progress"):
        yield {"type": kind, "response": response(body, begun, None, at), "sequence_number": next(numbers)}
    try:
        async for piece in pieces:
            found: Iterable[dict[str, Any]] = ()
            if isinstance(piece, Delta) and (piece.text or (piece.tokens and _with_logprobs(body))):
                found = [*([] if texts else _text_begins(begun)), _text_delta(body, begun, piece)]
                texts = True
            elif isinstance(piece, Done):
                found = _end(body, begun, piece, at, texts)
            for event in found:
                yield event | {"sequence_number": next(numbers)}
    except CallError as exc:
        failed = {"status": "failed", "error": {"code": "server_error", "message": exc.message}}
        whole = response(body, begun, None, at) | failed
        yield {"type": "response.failed", "response": whole, "sequence_number": next(numbers)}


def _end(body: ResponsesBody, begun: Begun, done: Done, at: float, texts: bool) -> Iterator[dict[str, Any]]:
    for index, (item, started) in enumerate(_output(body, begun, done)):
        if item["type"] == "message":
            yield from _text_ends(begun, item) if texts else [*_text_begins(begun), *_text_ends(begun, item)]
        else:
            kind, where = "response.function_call_arguments", {"item_id": item["id"], "output_index": index}
            yield {"type": "response.output_item.added", "output_index": index, "item": started}
            yield {"type": f"{kind}.delta", **where, "delta": item["arguments"]}
            yield {"type": f"{kind}.done", **where, "name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    whole = response(body, begun, done, at)
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
    status = "incomplete" if done.finish_reason == "length" else "completed"
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
    return logprobs(tokens) if _with_logprobs(body) else []


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
