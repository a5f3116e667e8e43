"""Messages and tools as plain values: as chat clients send them, or as chat templates take them.

The two differ in one thing: the arguments of a call are JSON text for a client, and an object for a template.
"""

from __future__ import annotations

from typing import Any

from schemas.events import Message, Tool
from schemas.json_text import parse_or_text


def message_of(message: Message, *, for_template: bool = False) -> dict[str, Any]:
    """Return a message; unset fields are left out.

    >>> message_of(Message(role="user", content="hi"))
    {'role': 'user', 'content': 'hi'}
    """
    value: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        value["name"] = message.name
    if message.tool_call_id is not None:
        value["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        calls = (
            (call, parse_or_text(call.arguments) if for_template else call.arguments) for call in message.tool_calls
        )
        value["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
            for call, arguments in calls
        ]
    return value


def tool_of(tool: Tool) -> dict[str, Any]:
    """Return a tool that may be called."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": parse_or_text(tool.parameters),
    }
    return {"type": "function", "function": function}
