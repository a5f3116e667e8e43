"""The answers about environments."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gateway.http.body import Answer
from gateway.log.tool_answer import ToolAnswer


class ShownMessage(Answer):
    """What an environment says as an episode begins."""

    role: str
    content: str


class TriedEnvironment(Answer):
    """An environment that gave the same each time."""

    environment: str
    seed: int
    settings: dict[str, Any]
    deterministic: Literal[True]
    messages: list[ShownMessage]
    tools: list[ToolAnswer]
    digest: str
    actions: int
    ended: bool
    success: bool | None
    name: str | None = Field(None, description="of the entry that keeps it")


class KeptEnvironment(Answer):
    """An environment of the registry, as tasks name it."""

    name: str
    environment: str
    settings: dict[str, Any]
    seed: int = Field(description="of the episode that describes it")
    max_turns: int | None
    version: str | None
    trusted: bool = Field(description="false: it shows something else than was accepted")
    digest: str
    messages: list[ShownMessage]
    tools: list[ToolAnswer]


class KeptEnvironments(Answer):
    """The environments of the registry."""

    object: Literal["list"]
    data: list[KeptEnvironment]
