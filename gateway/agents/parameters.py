"""Shared by several protocols: parameters with their bounds, and parts of bodies and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field

from gateway.agents.protocol_answers import SampledLogprob
from gateway.http.body import Body, Whole
from schemas.faults import Ignored
from streams.stages.agents.recording.calls import Token

MAX_TOKENS = 1024
"""Default limit of an answer's tokens in chat and responses."""


# descriptions of parameters that several protocols have
ADDRESS = "the log knows the agent by its address"
OWN_LOGPROBS = "logprobs would not be the policy's own"
FOLLOWS_CHOICE = "arguments follow the schema where a call is forced; elsewhere they are what was sampled"
NO_EFFORT = "the policy answers as it was trained, without levels of effort"
NO_ALTERNATIVES = "alternatives to a sampled token are not kept; its own logprob is"


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
Seed = Annotated[Whole | None, Field(ge=-(2**63), le=2**63 - 1, description="the same seed gives the same answer")]
Choices = Annotated[Whole | None, Field(ge=1, le=128, description="how many answers")]
Temperature = Annotated[float | None, Field(ge=0, le=2, description="default: 1; 0 is greedy")]
TopP = Annotated[float | None, Field(gt=0, le=1, description="default: 1")]
MaxTokens = Annotated[
    Whole | None, Field(ge=1, le=MOST_TOKENS, description=f"most tokens of an answer; default: {MAX_TOKENS}")
]
Model = Annotated[str, Field(description="`POLICY`, `POLICY@7` for one version, or a name of `serve.model_names`")]
Stream = Annotated[bool | None, Field(description="server-sent events")]


def logprobs(tokens: Sequence[Token]) -> list[SampledLogprob]:
    """Return tokens as OpenAI's chat and responses have them: text, bytes and logprob."""
    return [
        SampledLogprob(token=token.text, bytes=list(token.bytes), logprob=token.logprob, top_logprobs=[])
        for token in tokens
    ]
