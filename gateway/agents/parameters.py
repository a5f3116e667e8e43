"""What several protocols have in common: parameters with their bounds, and parts of bodies and answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from gateway.agents.protocol_answers import SampledLogprob, TokenLogprob
from gateway.http.body import Body, Ignored, Whole
from schemas import json_text
from streams.stages.agents.recording.calls import Token

MAX_TOKENS = 1024
"""Most tokens of an answer to a request of chat or responses that names no limit."""


# what several protocols say of the same parameter
ADDRESS = "the log knows the agent by its address"
NO_CACHE_KEYS = "prefixes are cached without keys"
OWN_LOGPROBS = "logprobs would not be the policy's own"
FOLLOWS_CHOICE = "arguments follow the schema where a call is forced; elsewhere they are what was sampled"
TEXT_ALONE = "the model reads and writes text alone"


class StreamOptions(Body):
    """How the chunks of chat and completions are sent."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, Ignored("nothing is added to chunks")] = None


def _texts(value: object) -> object:
    return [value] if isinstance(value, str) else value


StopText = Annotated[str, Field(min_length=1, max_length=1000)]
MOST_TOKENS = 2**31 - 1
"""More do not fit the event, nor any model's context."""
Stop = Annotated[
    Annotated[list[StopText], Field(max_length=4)] | None,
    BeforeValidator(_texts, json_schema_input_type=str | list[str] | None),
    Field(description="texts that end an answer; at most 4"),
]
Seed = Annotated[Whole | None, Field(ge=-(2**63), lt=2**63, description="the same seed gives the same answer")]
Choices = Annotated[Whole | None, Field(ge=1, le=128, description="how many answers")]
Temperature = Annotated[float | None, Field(ge=0, le=2, description="default: 1; 0 is greedy")]
TopP = Annotated[float | None, Field(gt=0, le=1, description="default: 1")]
MaxTokens = Annotated[
    Whole | None, Field(ge=1, le=MOST_TOKENS, description=f"most tokens of an answer; default: {MAX_TOKENS}")
]
Model = Annotated[str, Field(description="`POLICY`, or `POLICY@7` for one version")]
Stream = Annotated[bool | None, Field(description="server-sent events")]


def _arguments(text: str) -> str:
    try:
        value = json_text.parse(text)
    except ValueError as exc:
        raise PydanticCustomError("arguments", "they are not JSON: {why}", {"why": str(exc)}) from exc
    if not isinstance(value, dict):
        raise PydanticCustomError("arguments", "they have to be a JSON object")
    return text


Arguments = Annotated[str, AfterValidator(_arguments)]
"""Of a tool call: a JSON object, as text."""


def joined(texts: Iterable[str]) -> str:
    """Return the text of a content that came in parts, the same in every protocol."""
    return "\n".join(texts)


def logprobs(tokens: Sequence[Token]) -> list[SampledLogprob]:
    """Return tokens as OpenAI's chat and responses have them: text, bytes, logprob, and the most likely ones."""
    return [
        SampledLogprob(
            token=token.text,
            bytes=list(token.bytes),
            logprob=token.logprob,
            top_logprobs=[
                TokenLogprob(token=other.text, bytes=list(other.bytes), logprob=other.logprob) for other in token.top
            ],
        )
        for token in tokens
    ]


def _schema(value: dict[str, Any]) -> dict[str, Any]:
    """Check the JSON schema of a tool's parameters as far as templates and clients read it: an object's fields."""
    if value.get("type", "object") != "object":
        raise PydanticCustomError("tool_schema", 'its "type" has to be "object"')
    properties, required = value.get("properties") or {}, value.get("required") or []
    if not isinstance(properties, dict) or not all(isinstance(each, dict | bool) for each in properties.values()):
        raise PydanticCustomError("tool_schema", '"properties" has to be an object of JSON schemas')
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise PydanticCustomError("tool_schema", '"required" has to be a list of names')
    return value


ToolSchema = Annotated[dict[str, Any], AfterValidator(_schema)]
"""JSON schema of a tool's parameters."""
