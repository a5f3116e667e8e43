"""A function that an agent calls, as answers describe it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.http.body import Answer
from schemas.events import Tool
from schemas.json_text import parse_or_text


class ToolAnswer(Answer):
    """A function that an agent calls."""

    name: str
    description: str
    parameters: Any


def shown_tools(tools: Sequence[Tool]) -> list[ToolAnswer]:
    """Return tools as answers have them."""
    return [
        ToolAnswer(name=tool.name, description=tool.description, parameters=parse_or_text(tool.parameters))
        for tool in tools
    ]
