"""OpenAI's chat completions: their parameters, and translation to and from the recorder's calls.

POST …/v1/chat/completions ──► ModelCall ──► pieces ──► chat.completion, or chunks of it
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.agents.answer_forms import (
    CHOICES,
    FORMAT,
    PARALLEL,
    ChatFunctionChoice,
    ChatSchemaFormat,
    ChatToolChoice,
    JsonObjectFormat,
    TextFormat,
    ToolsChoice,
    forced,
)
from gateway.agents.caller import Caller
from gateway.agents.named_prompts import PromptParameter
from gateway.agents.parameters import (
    ADDRESS,
    FOLLOWS_CHOICE,
    MAX_TOKENS,
    NO_ALTERNATIVES,
    NO_EFFORT,
    OWN_LOGPROBS,
    Choices,
    MaxTokens,
    Model,
    Seed,
    Stop,
    Stream,
    StreamOptions,
    Temperature,
    TopP,
    logprobs,
)
from gateway.agents.protocol_answers import (
    USAGE_EXAMPLE,
    CachedTokens,
    CallUsage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatReply,
    MadeCall,
    MadeFunction,
)
from gateway.http.body import Body, Whole, compact, ignored
from schemas.conversation import NO_CACHE_KEYS, OLD_CALLS, TEXT_ALONE, Conversation, ToolSchema
from schemas.events import Message, Sampling, Tool, ToolCall
from schemas.faults import Ignored, Refused
from streams.stages.agents.recording.calls import Begun, Delta, Done, ModelCall, Piece, Token

PARAMETERS = "response_format", "tool_choice", "parallel_tool_calls"


class FunctionDefinition(Body):
    """A function that the client runs."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: ToolSchema | None = None
    strict: Annotated[bool | None, Ignored(FOLLOWS_CHOICE)] = None


class ChatTool(Body):
    """A tool of the client."""

    type: Literal["function"]
    function: FunctionDefinition


class ChatBody(Body):
    """An answer that is wanted."""

    model: Model
    messages: Conversation = Field(description="the whole conversation; text, tool calls and their results")
    prompt: PromptParameter | None = Field(None, description="a prompt of the log, before `messages`; not OpenAI's")
    tools: list[ChatTool] | None = Field(None, description="functions that the client runs")
    tool_choice: ChatToolChoice | None = Field(None, description=CHOICES)
    max_completion_tokens: MaxTokens = None
    max_tokens: MaxTokens = None
    n: Choices = None
    temperature: Temperature = None
    top_p: TopP = None
    seed: Seed = None
    stop: Stop = None
    logprobs: bool | None = Field(None, description="logprobs of the sampled tokens")
    top_logprobs: Annotated[Whole | None, Field(ge=0, le=20), Ignored(NO_ALTERNATIVES)] = None
    stream: Stream = None
    stream_options: StreamOptions | None = Field(None, description="`include_usage`")
    user: Annotated[str | None, Ignored(ADDRESS)] = None
    safety_identifier: Annotated[str | None, Ignored(ADDRESS)] = None
    metadata: Annotated[dict[str, str] | None, Ignored(ADDRESS)] = None
    store: Annotated[bool | None, Ignored("every answer is in the log before it is complete")] = None
    service_tier: Annotated[Any, Ignored("there is one tier")] = None
    prompt_cache_key: Annotated[str | None, Ignored(NO_CACHE_KEYS)] = None
    prompt_cache_retention: Annotated[Any, Ignored(NO_CACHE_KEYS)] = None
    prompt_cache_options: Annotated[Any, Ignored(NO_CACHE_KEYS)] = None
    parallel_tool_calls: bool | None = Field(None, description=PARALLEL)
    response_format: Annotated[
        TextFormat | JsonObjectFormat | ChatSchemaFormat | None, Field(discriminator="type", description=FORMAT)
    ] = None
    reasoning_effort: Annotated[str | None, Ignored(NO_EFFORT)] = None
    verbosity: Annotated[Any, Refused("ask for it in words", "medium")] = None
    frequency_penalty: Annotated[Any, Refused(OWN_LOGPROBS, 0)] = None
    presence_penalty: Annotated[Any, Refused(OWN_LOGPROBS, 0)] = None
    logit_bias: Annotated[Any, Refused(OWN_LOGPROBS, {})] = None
    functions: Annotated[Any, Refused(OLD_CALLS, [])] = None
    function_call: Annotated[Any, Refused(OLD_CALLS)] = None
    modalities: Annotated[Any, Refused(TEXT_ALONE, ["text"])] = None
    audio: Annotated[Any, Refused(TEXT_ALONE)] = None
    prediction: Annotated[Any, Refused("every token is sampled")] = None
    moderation: Annotated[Any, Refused("nothing is moderated")] = None
    web_search_options: Annotated[Any, Refused("tools are run by the client")] = None


def call(body: ChatBody, caller: Caller) -> ModelCall:
    """Return the protocol-neutral request."""
    tools = tuple(_tool(n, tool.function) for n, tool in enumerate(body.tools or ()))
    name = body.tool_choice.function.name if isinstance(body.tool_choice, ChatFunctionChoice) else None
    choice = ToolsChoice.of(body.tool_choice, name, body.parallel_tool_calls)
    return ModelCall(
        **caller._asdict(),
        **forced(tools, choice, body.response_format, PARAMETERS)._asdict(),
        protocol="chat",
        model=body.model,
        messages=tuple(message.message for message in body.messages),
        tools=tools,
        tool_choice="none" if choice.kind == "none" else "auto",
        sampling=Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            max_tokens=body.max_completion_tokens or body.max_tokens or MAX_TOKENS,
            seed=body.seed,
            stop=tuple(body.stop or ()),
        ),
        count=body.n or 1,
        with_logprobs=bool(body.logprobs),
        ignored=ignored(body),
    )


def _tool(number: int, tool: FunctionDefinition) -> Tool:
    parameters = compact(tool.parameters or {}, f"tools[{number}].function.parameters")
    return Tool(name=tool.name, description=tool.description or "", parameters=parameters)


def completion(begun: Begun, answers: Sequence[Done], created_s: float, *, with_logprobs: bool) -> ChatCompletion:
    """Return the whole answer; `created_s`: since the epoch."""
    choices = [
        ChatChoice(
            index=done.choice,
            message=_reply(done.message),
            logprobs=_logprobs(done.tokens) if with_logprobs else None,
            finish_reason=done.finish_reason,
        )
        for done in sorted(answers, key=lambda done: done.choice)
    ]
    return ChatCompletion(**_shell(begun, created_s, "chat.completion"), choices=choices, usage=usage(begun, answers))


def _reply(message: Message) -> ChatReply:
    if not message.tool_calls:
        return ChatReply(role="assistant", content=message.content, refusal=None)
    calls = [_call(call) for call in message.tool_calls]
    return ChatReply(role="assistant", content=message.content or None, refusal=None, tool_calls=calls)


async def chunks(
    body: ChatBody, begun: Begun, pieces: AsyncIterator[Piece], created_s: float
) -> AsyncIterator[dict[str, Any]]:
    """Stream the answers: text while it is sampled, calls once they are complete, the end once it is recorded."""
    answers: list[Done] = []
    sent = [0] * (body.n or 1)
    with_usage = body.stream_options is not None and body.stream_options.include_usage is True
    shell = _shell(begun, created_s, "chat.completion.chunk") | ({"usage": None} if with_usage else {})
    for index in range(len(sent)):
        yield shell | {"choices": [_choice(index, {"role": "assistant", "content": "", "refusal": None})]}
    async for piece in pieces:
        if isinstance(piece, Delta):
            sent[piece.choice] += len(piece.tokens)
            tokens = piece.tokens if body.logprobs else ()
            if piece.text or tokens:
                yield shell | {"choices": [_choice(piece.choice, {"content": piece.text}, tokens)]}
        elif isinstance(piece, Done):
            answers.append(piece)
            tokens = piece.tokens[sent[piece.choice] :] if body.logprobs else ()
            for choice in _end(piece, tokens):
                yield shell | {"choices": [choice]}
    if with_usage:
        yield shell | {"choices": [], "usage": usage(begun, answers).model_dump()}


def _end(done: Done, tokens: Sequence[Token]) -> Iterator[dict[str, Any]]:
    """Yield what follows the text; `tokens`: those whose logprobs were not sent yet."""
    for index, call in enumerate(done.message.tool_calls):
        yield _choice(done.choice, {"tool_calls": [{"index": index, **_call(call).model_dump()}]})
    yield _choice(done.choice, {}, tokens) | {"finish_reason": done.finish_reason}


def _choice(index: int, delta: dict[str, Any], tokens: Sequence[Token] = ()) -> dict[str, Any]:
    logprobs = _logprobs(tokens).model_dump() if tokens else None
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _call(call: ToolCall) -> MadeCall:
    return MadeCall(id=call.id, type="function", function=MadeFunction(name=call.name, arguments=call.arguments))


def _logprobs(tokens: Sequence[Token]) -> ChatLogprobs:
    return ChatLogprobs(content=logprobs(tokens), refusal=None)


def _shell(begun: Begun, created_s: float, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{begun.turn_id}",
        "object": kind,
        "created": int(created_s),
        "model": begun.model,
        "system_fingerprint": begun.fingerprint,
    }


def usage(begun: Begun, answers: Sequence[Done]) -> CallUsage:
    """Return how many tokens a call had."""
    sampled = sum(len(done.tokens) for done in answers)
    return CallUsage(
        prompt_tokens=begun.prompt_tokens,
        completion_tokens=sampled,
        total_tokens=begun.prompt_tokens + sampled,
        prompt_tokens_details=CachedTokens(cached_tokens=begun.cached_tokens),
    )


EXAMPLE = ChatCompletion(
    id="chatcmpl-9f3a2d0c-1b7e-5c55-8a20-4d2f8f0c7e61",
    object="chat.completion",
    created=1767225600,
    model="sums@7",
    system_fingerprint="fp_1f0c",
    choices=[
        ChatChoice(
            index=0,
            message=ChatReply(role="assistant", content="2", refusal=None),
            logprobs=None,
            finish_reason="stop",
        )
    ],
    usage=USAGE_EXAMPLE,
)
