"""Anthropic's messages: their parameters, and translation to and from the recorder's calls.

    POST …/v1/messages               ──► ModelCall ──► pieces ──► message, or message_start … message_stop
    POST …/v1/messages/count_tokens  ──► ModelCall ──► number of tokens

A tool's input is an object here and JSON text in the log: the shortest form, with keys in the client's order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.agents.answer_forms import MessagesSchemaFormat, ToolsChoice, forced
from gateway.agents.caller import Caller
from gateway.agents.named_prompts import PromptParameter
from gateway.agents.parameters import (
    ADDRESS,
    FOLLOWS_CHOICE,
    MOST_TOKENS,
    NO_EFFORT,
    Model,
    StopText,
    Stream,
    TopP,
)
from gateway.agents.protocol_answers import MessageUsage, ModelMessage, TextContent
from gateway.http.body import Body, Whole, compact, ignored
from gateway.http.errors import MESSAGES
from schemas import json_text
from schemas.conversation import ToolSchema, check_part, join_texts
from schemas.events import Message, Sampling, Tool, ToolCall
from schemas.faults import Ignored, Refused
from streams.errors import CallError
from streams.stages.agents.recording.calls import Begun, Delta, Done, ModelCall, Piece

PARAMETERS = "output_config.format", "tool_choice", "tool_choice.disable_parallel_tool_use"
KEEPS_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
"""What Claude Code asks for: a conversation without thinking stays as it is."""
CACHES = "prefixes are cached without being marked"


def _blocks(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class TextBlock(Body):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: Annotated[Any, Ignored(CACHES)] = None
    citations: Annotated[Any, Refused("there are no documents to cite", [])] = None


Text = Annotated[TextBlock, BeforeValidator(check_part)]
Texts = Annotated[list[Text], BeforeValidator(_blocks, json_schema_input_type=str | list[TextBlock])]


class ToolUseBlock(Body):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: Annotated[Any, Ignored(CACHES)] = None
    caller: Annotated[Any, Refused("tools are called by the model alone", {"type": "direct"})] = None
    toolset_name: Annotated[Any, Refused("there are no toolsets")] = None


class ToolResultBlock(Body):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = Field([])
    is_error: bool | None = Field(None, description="recorded as a failed tool; the model reads the text of the result")
    cache_control: Annotated[Any, Ignored(CACHES)] = None
    toolset_name: Annotated[Any, Refused("there are no toolsets")] = None


UserBlock = Annotated[TextBlock | ToolResultBlock, Field(discriminator="type"), BeforeValidator(check_part)]
AssistantBlock = Annotated[TextBlock | ToolUseBlock, Field(discriminator="type"), BeforeValidator(check_part)]


class UserTurn(Body):
    """A message of the user, with the results of tools; or of the operator."""

    role: Literal["user", "system"]
    content: Annotated[list[UserBlock], BeforeValidator(_blocks, json_schema_input_type=str | list[UserBlock])]


class AssistantTurn(Body):
    """A message of the model."""

    role: Literal["assistant"]
    content: Annotated[
        list[AssistantBlock], BeforeValidator(_blocks, json_schema_input_type=str | list[AssistantBlock])
    ]


class CustomTool(Body):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: str = Field(min_length=1)
    description: str = ""
    input_schema: ToolSchema
    cache_control: Annotated[Any, Ignored(CACHES)] = None
    strict: Annotated[bool | None, Ignored(FOLLOWS_CHOICE)] = None
    eager_input_streaming: Annotated[bool | None, Ignored("a call is sent when it is complete")] = None
    input_examples: Annotated[Any, Refused("templates of chat models have no place for them", [])] = None
    defer_loading: Annotated[Any, Refused("every tool is in the prompt", False)] = None
    allowed_callers: Annotated[Any, Refused("tools are called by the model alone", ["direct"], [])] = None


class ToolChoice(Body):
    """Whether tools may be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(Body):
    """What the text is."""

    format: MessagesSchemaFormat | None = None
    effort: Annotated[str | None, Ignored(NO_EFFORT)] = None
    task_budget: Annotated[Any, Refused("say it in words; max_tokens is the limit")] = None


class Thinking(Body):
    """Whether the model thinks before it answers."""

    type: Annotated[Any, Refused("the policy has no thinking of its own", "adaptive", "disabled")]
    display: Annotated[Any, Ignored("there is no thinking to show")] = None
    budget_tokens: Annotated[Any, Ignored("there is no thinking to limit")] = None


class CountTokensBody(Body):
    """What both requests of this protocol have."""

    model: Model
    messages: list[Annotated[UserTurn | AssistantTurn, Field(discriminator="role")]] = Field(
        min_length=1, description="the whole conversation; text, `tool_use` and `tool_result` blocks"
    )
    system: Texts = Field([], description="text, or text blocks")
    prompt: PromptParameter | None = Field(None, description="a prompt of the log, before `messages`; not Anthropic's")
    tools: list[CustomTool] = Field([], description="tools that the client runs")
    tool_choice: ToolChoice | None = Field(None, description="`auto`, `any`, `tool` or `none`")
    cache_control: Annotated[Any, Ignored(CACHES)] = None
    output_config: OutputConfig | None = Field(None, description="`format`: JSON of a schema, which bears no loss")
    thinking: Thinking | None = Field(None, description="`disabled`, or `adaptive`: the policy decides not to")
    speed: Annotated[Any, Refused("there is one speed", "standard")] = None


class MessagesBody(CountTokensBody):
    """A message that is wanted."""

    max_tokens: Whole = Field(ge=1, le=MOST_TOKENS, description="most tokens of the answer")
    stream: Stream = None
    stop_sequences: list[StopText] = Field([], max_length=64, description="texts that end the answer; at most 64")
    temperature: float | None = Field(None, ge=0, le=1, description="default: 1; 0 is greedy")
    top_p: TopP = None
    top_k: Literal[1] | None = Field(None, description="1 alone, which is greedy")
    metadata: Annotated[dict[str, Any] | None, Ignored(ADDRESS)] = None
    service_tier: Annotated[Any, Ignored("there is one tier")] = None
    inference_geo: Annotated[Any, Ignored("the server runs where you started it")] = None
    container: Annotated[Any, Refused("the server runs no code")] = None
    context_management: Annotated[
        Any, Refused("the client decides what a conversation holds", {"edits": []}, {"edits": [KEEPS_THINKING]})
    ] = None
    diagnostics: Annotated[Any, Refused("there are none", {"previous_message_id": None})] = None
    mcp_servers: Annotated[Any, Refused("tools are run by the client", [])] = None


def user(body: MessagesBody) -> str | None:
    """Return the user that a client says it answers."""
    name = (body.metadata or {}).get("user_id")
    return name if isinstance(name, str) else None


def _messages(body: CountTokensBody) -> tuple[Message, ...]:
    """Return the conversation as the log has it: each tool's result is a message of its own, before the user's text."""

    def turns() -> Iterator[Message]:
        if body.system:
            yield Message(role="system", content=join_texts(block.text for block in body.system))
        for n, turn in enumerate(body.messages):
            texts = [block.text for block in turn.content if isinstance(block, TextBlock)]
            calls = tuple(
                ToolCall(
                    id=block.id,
                    name=block.name,
                    arguments=compact(block.input, f"messages[{n}].content[{i}].input"),
                )
                for i, block in enumerate(turn.content)
                if isinstance(block, ToolUseBlock)
            )
            results = [block for block in turn.content if isinstance(block, ToolResultBlock)]
            for block in results:
                content = join_texts(part.text for part in block.content)
                yield Message(role="tool", content=content, tool_call_id=block.tool_use_id)
            if texts or calls or not results:
                yield Message(role=turn.role, content=join_texts(texts), tool_calls=calls)

    return tuple(turns())


def _failed_tools(body: CountTokensBody) -> tuple[str, ...]:
    """Return the ids of the calls whose results say that they failed."""
    blocks = (block for turn in body.messages if isinstance(turn, UserTurn) for block in turn.content)
    return tuple(block.tool_use_id for block in blocks if isinstance(block, ToolResultBlock) and block.is_error)


def _tools(body: CountTokensBody) -> tuple[Tool, ...]:
    """Return the tools, with their schemas as JSON text."""
    return tuple(
        Tool(name=tool.name, description=tool.description, parameters=compact(tool.input_schema, f"tools[{n}]"))
        for n, tool in enumerate(body.tools)
    )


def _choice(choice: ToolChoice | None) -> ToolsChoice:
    """Return whether tools are called. Raises CallError for a choice of a tool without its name, or the reverse."""
    if choice is None:
        return ToolsChoice()
    if (choice.type == "tool") != (choice.name is not None):
        raise CallError("invalid", "tool_choice.name belongs to the type tool, and that needs it", "tool_choice.name")
    several = choice.disable_parallel_tool_use is not True
    if choice.type in ("any", "tool"):
        return ToolsChoice("required", choice.name, several)
    return ToolsChoice("none" if choice.type == "none" else "auto", None, several)


def _sampling(body: MessagesBody) -> Sampling:
    """Return how tokens are drawn."""
    return Sampling(
        temperature=0.0 if body.top_k == 1 else 1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        max_tokens=body.max_tokens,
        stop=tuple(body.stop_sequences),
    )


def call(body: CountTokensBody, caller: Caller) -> ModelCall:
    """Return the protocol-neutral request; one that only counts tokens has nothing to sample."""
    tools, choice = _tools(body), _choice(body.tool_choice)
    return ModelCall(
        **caller._asdict(),
        **forced(tools, choice, body.output_config.format if body.output_config else None, PARAMETERS)._asdict(),
        protocol="messages",
        model=body.model,
        messages=_messages(body),
        tools=tools,
        tool_choice="none" if choice.kind == "none" else "auto",
        sampling=_sampling(body) if isinstance(body, MessagesBody) else Sampling(),
        failed_tools=_failed_tools(body),
        ignored=ignored(body),
    )


def _blocks_of(reply: Message) -> list[dict[str, Any]]:
    """Return the content of an answer."""
    text = [{"type": "text", "text": reply.content}] if reply.content else []
    return text + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json_text.parse(call.arguments)}
        for call in reply.tool_calls
    ]


def message(begun: Begun, done: Done) -> ModelMessage:
    """Return the whole answer."""
    fields = _empty_message(begun) | {
        "content": _blocks_of(done.message),
        "stop_reason": _reason(done),
        "stop_sequence": done.stop,
        "usage": _usage(begun, len(done.tokens)),
    }
    return ModelMessage(**fields)


async def events(begun: Begun, pieces: AsyncIterator[Piece]) -> AsyncIterator[dict[str, Any]]:
    """Stream an answer: its text while it is sampled, its calls once they are complete, its end once it is recorded."""
    texts = 0
    yield {"type": "message_start", "message": _empty_message(begun)}
    try:
        async for piece in pieces:
            if isinstance(piece, Delta) and piece.text:
                if not texts:
                    yield _block_start(0, {"type": "text", "text": ""})
                texts = 1
                yield _block_delta(0, {"type": "text_delta", "text": piece.text})
            elif isinstance(piece, Done):
                for event in _end(begun, piece, texts):
                    yield event
    except CallError as exc:
        yield MESSAGES.problem(exc).model_dump()


def _end(begun: Begun, done: Done, texts: int) -> Iterator[dict[str, Any]]:
    """Yield what follows the text: `texts` is 1 if there was any."""
    if texts:
        yield {"type": "content_block_stop", "index": 0}
    for index, call in enumerate(done.message.tool_calls, texts):
        yield _block_start(index, {"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        yield _block_delta(index, {"type": "input_json_delta", "partial_json": call.arguments})
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": _reason(done), "stop_sequence": done.stop},
        "usage": _usage(begun, len(done.tokens)),
    }
    yield {"type": "message_stop"}


def _empty_message(begun: Begun) -> dict[str, Any]:
    return {
        "id": f"msg_{begun.turn_id}",
        "type": "message",
        "role": "assistant",
        "model": begun.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(begun, 0),
    }


def _usage(begun: Begun, sampled: int) -> dict[str, Any]:
    """Return the counts; cached tokens are not among `input_tokens` in this protocol."""
    return {
        "input_tokens": begun.prompt_tokens - begun.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": begun.cached_tokens,
        "output_tokens": sampled,
    }


_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def _reason(done: Done) -> str:
    if done.stop is not None:
        return "stop_sequence"
    return _REASONS[done.finish_reason]


def _block_start(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _block_delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


EXAMPLE = ModelMessage(
    id="msg_9f3a2d0c-1b7e-5c55-8a20-4d2f8f0c7e61",
    type="message",
    role="assistant",
    model="sums@7",
    content=[TextContent(type="text", text="2")],
    stop_reason="end_turn",
    stop_sequence=None,
    usage=MessageUsage(input_tokens=14, cache_creation_input_tokens=0, cache_read_input_tokens=0, output_tokens=2),
)
