"""Messages of a conversation, and the tools that its model may call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from schemas.event_types import Personal, PersonalJson


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call the assistant made, as chat templates expect it."""

    id: str
    name: str
    arguments: Annotated[str, "JSON object", PersonalJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: Annotated[str, Personal]
    name: Annotated[str | None, Personal] = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the assistant may call, as chat templates expect it."""

    name: str
    description: Annotated[str, Personal] = ""
    parameters: Annotated[str, "JSON schema of the arguments", PersonalJson] = "{}"
