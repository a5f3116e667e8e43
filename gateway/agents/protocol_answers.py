"""The answers of each protocol, which chat.py, completions.py, responses.py and anthropic.py make."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gateway.http.body import Answer

Finish = Literal["stop", "length", "tool_calls", "content_filter"]


class CachedTokens(Answer):
    """Of the prompt."""

    cached_tokens: int


class CallUsage(Answer):
    """How many tokens a call had."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


USAGE_EXAMPLE = CallUsage(
    prompt_tokens=14,
    completion_tokens=2,
    total_tokens=16,
    prompt_tokens_details=CachedTokens(cached_tokens=0),
)


class TokenLogprob(Answer):
    """A token that could have been sampled."""

    token: str
    bytes: list[int]
    logprob: float


class SampledLogprob(TokenLogprob):
    """A token that was sampled, and the most likely ones."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Answer):
    """Of a choice."""

    content: list[SampledLogprob]
    refusal: None


class MadeFunction(Answer):
    """Which function is to be called, and how."""

    name: str
    arguments: str = Field(description="a JSON object, as text")


class MadeCall(Answer):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: MadeFunction


class ChatReply(Answer):
    """What the model said."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[MadeCall] = Field(default_factory=list)


class ChatChoice(Answer):
    """One of `n` answers."""

    index: int
    message: ChatReply
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(Answer):
    """An answer in chat completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str = Field(description="`POLICY@VERSION`: who answered")
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: CallUsage


class TextLogprobs(Answer):
    """Of a completion: four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float | None] = Field(description="null: of the first token of a scored prompt")
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Answer):
    """One of `n` completions."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish


class TextCompletion(Answer):
    """An answer in completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str = Field(description="`POLICY@VERSION`: who answered")
    system_fingerprint: str
    choices: list[TextChoice]
    usage: CallUsage


class WrittenText(Answer):
    """Text that the model wrote."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[SampledLogprob]


class ReplyItem(Answer):
    """A message of the model."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Literal["completed", "incomplete"]
    content: list[WrittenText]


class CallItem(Answer):
    """A call that the model makes."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str = Field(description="a JSON object, as text")
    status: Literal["completed"]


class InputDetails(Answer):
    """Of the prompt."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Answer):
    """Of the answer."""

    reasoning_tokens: int


class ResponseUsage(Answer):
    """How many tokens a response had."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class CutReason(Answer):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens", "content_filter"]


class NoReasoning(Answer):
    """The policy has no reasoning of its own."""

    effort: None
    summary: None


class ResponseText(Answer):
    """What the text is."""

    format: dict[str, Any]


class ModelResponse(Answer):
    """An answer in responses."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: CutReason | None
    model: str = Field(description="`POLICY@VERSION`: who answered")
    output: list[ReplyItem | CallItem]
    usage: ResponseUsage
    background: bool
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: NoReasoning
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: ResponseText
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | None


class TextContent(Answer):
    """Text of the model."""

    type: Literal["text"]
    text: str


class ToolUseContent(Answer):
    """A call that the model makes."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(Answer):
    """How many tokens a message had; those from the cache are not among `input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class ModelMessage(Answer):
    """An answer in messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str = Field(description="`POLICY@VERSION`: who answered")
    content: list[TextContent | ToolUseContent]
    stop_reason: Literal["end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Answer):
    """How many tokens a prompt has."""

    input_tokens: int


class ModelCard(Answer):
    """A model that can be asked for."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Answer):
    """The models that can be asked for."""

    object: Literal["list"]
    data: list[ModelCard]


class MessagesModelCard(Answer):
    """A model, to clients that send `anthropic-version`."""

    id: str
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: str


class MessagesModelList(Answer):
    """The models, to clients that send `anthropic-version`."""

    data: list[MessagesModelCard]
    has_more: bool
    first_id: str | None
    last_id: str | None
