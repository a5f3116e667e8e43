"""Which results of tools failed, by the protocol that they were sent in; what a result says in words is never read.

turn ──► messages of role tool, metadata.failed_tools, MCP's isError ──► ok of each call
"""

from __future__ import annotations

from typing import Any

from schemas import json_text
from schemas.conventions import FAILED_TOOLS
from schemas.events import Message, Turn


def results_of(turn: Turn) -> dict[str, bool]:
    """Return the results that a turn was sent, by call: whether each succeeded. One without an id has its place."""
    failed = _parse(turn.metadata.get(FAILED_TOOLS, "[]"))
    failed = failed if isinstance(failed, list) else []
    sent: dict[str, bool] = {}
    for place, message in enumerate(turn.messages):
        if message.role == "tool":
            name = message.tool_call_id or f"{turn.number}.{place}"
            sent.setdefault(name, name not in failed and not _is_mcp_error(message))
    return sent


def _is_mcp_error(message: Message) -> bool:
    """Return whether a result is the JSON of MCP's CallToolResult with isError."""
    result = _parse(message.content) if '"isError"' in message.content else None
    return isinstance(result, dict) and result.get("isError") is True


def _parse(text: str) -> Any:
    """Return the value of JSON text; None if it is none."""
    try:
        return json_text.parse(text)
    except ValueError:
        return None
