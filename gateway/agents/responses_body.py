"""The parameters of a request for a response: which are used, refused or ignored.

Its translation is in responses.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from gateway.agents.answer_forms import (
    CHOICES,
    FORMAT,
    PARALLEL,
    JsonObjectFormat,
    ResponsesToolChoice,
    SchemaFormat,
    TextFormat,
)
from gateway.agents.named_prompts import PromptParameter
from gateway.agents.parameters import (
    ADDRESS,
    FOLLOWS_CHOICE,
    NO_ALTERNATIVES,
    NO_EFFORT,
    MaxTokens,
    Model,
    Stream,
    Temperature,
    TopP,
)
from gateway.http.body import Body, NamedOnly, Whole
from schemas.conversation import NO_CACHE_KEYS, TEXT_ALONE, Arguments, Content, ToolSchema
from schemas.faults import Ignored, Refused

OURS = "ids and states of items are made by the server"


class MessageItem(Body):
    """A message."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
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
    output: Content
    id: Annotated[str | None, Ignored(OURS)] = None
    status: Annotated[str | None, Ignored(OURS)] = None


def _kind(item: Any) -> str:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return kind if isinstance(kind, str) else "message"


class ItemReference(Body):
    """An item of an answer that the log has."""

    type: Literal["item_reference"]
    id: str


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ItemReference, Tag("item_reference")]
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
    strict: Annotated[bool | None, Ignored(FOLLOWS_CHOICE)] = None
    defer_loading: Annotated[Any, Refused("every tool is in the prompt", False)] = None


class ServerTool(NamedOnly):
    """A tool that this server does not have: the model is not shown it, so no answer calls it."""

    type: Literal[
        "namespace",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
        "file_search",
        "code_interpreter",
        "image_generation",
        "tool_search",
        "mcp",
    ]


class EventOptions(Body):
    """How events are sent."""

    include_obfuscation: Annotated[bool | None, Ignored("nothing is added to events")] = None


class TextOptions(Body):
    """What the text is."""

    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat | None, Field(discriminator="type")] = None
    verbosity: Annotated[Any, Refused("ask for it in words", "medium")] = None


class Reasoning(Body):
    """How a model with a reasoning of its own would reason."""

    effort: Annotated[str | None, Ignored(NO_EFFORT)] = None
    summary: Annotated[str | None, Ignored("there is no reasoning to summarize")] = None
    generate_summary: Annotated[str | None, Ignored("there is no reasoning to summarize")] = None
    context: Annotated[str | None, Ignored("there is no reasoning to keep")] = None
    mode: Annotated[str | None, Ignored(NO_EFFORT)] = None


class ResponsesBody(Body):
    """A response that is wanted."""

    model: Model
    input: Annotated[list[Item], BeforeValidator(_items, json_schema_input_type=str | list[Item])] = Field(
        min_length=1,
        description="text, or messages, `function_call`, `function_call_output` and `item_reference` items",
    )
    instructions: str | None = Field(None, description="the system message, before all others")
    previous_response_id: str | None = Field(None, description="continues the recorded conversation of that response")
    tools: list[Annotated[FunctionTool | ServerTool, Field(discriminator="type")]] | None = Field(
        None, description="tools that the client runs; those of OpenAI's servers are not shown to the model, and named"
    )
    tool_choice: ResponsesToolChoice | None = Field(None, description=CHOICES)
    max_output_tokens: MaxTokens = None
    temperature: Temperature = None
    top_p: TopP = None
    stream: Stream = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = Field(
        None, description="logprobs of the sampled tokens; a policy without reasoning has none to include"
    )
    top_logprobs: Annotated[Whole | None, Field(ge=0, le=20), Ignored(NO_ALTERNATIVES)] = None
    stream_options: EventOptions | None = Field(None, description="has nothing that changes an answer")
    metadata: Annotated[dict[str, str] | None, Ignored(ADDRESS)] = None
    client_metadata: Annotated[Any, Ignored(ADDRESS)] = None
    store: Annotated[bool | None, Ignored("every answer is in the log before it is complete")] = None
    user: Annotated[str | None, Ignored(ADDRESS)] = None
    safety_identifier: Annotated[str | None, Ignored(ADDRESS)] = None
    prompt_cache_key: Annotated[str | None, Ignored(NO_CACHE_KEYS)] = None
    prompt_cache_retention: Annotated[Any, Ignored(NO_CACHE_KEYS)] = None
    prompt_cache_options: Annotated[Any, Ignored(NO_CACHE_KEYS)] = None
    service_tier: Annotated[Any, Ignored("there is one tier")] = None
    max_tool_calls: Annotated[int | None, Ignored("it limits tools of the server, and there are none")] = None
    parallel_tool_calls: bool | None = Field(None, description=PARALLEL)
    text: TextOptions | None = Field(None, description=f"`format`: {FORMAT}")
    reasoning: Reasoning | None = Field(None, description="`effort` and `summary` of a reasoning that no policy has")
    truncation: Annotated[Any, Refused("a conversation that does not fit is refused, never cut", "disabled")] = None
    background: Annotated[Any, Refused("an answer belongs to its connection", False)] = None
    background_options: Annotated[Any, Refused("an answer belongs to its connection")] = None
    conversation: Annotated[Any, Refused("use previous_response_id, or send the conversation")] = None
    context_management: Annotated[Any, Refused("the client decides what a conversation holds", [])] = None
    prompt: PromptParameter | None = Field(None, description="a prompt of the log, before `instructions` and `input`")
    moderation: Annotated[Any, Refused("nothing is moderated")] = None
    image: Annotated[Any, Refused(TEXT_ALONE)] = None
    access_programs: Annotated[Any, Refused("there are none")] = None
