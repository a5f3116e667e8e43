"""Refuse a conversation if the chat template leaves out a tool, a tool call or its result.

    messages, tools ──► a mark after each name, argument and result ──► template ──► a mark is missing? EventError

Templates silently drop unknown parts, and then different histories are one prompt. Texts are searched for only if the
template refuses the marks: the name of a call may also be a word of the question. Not covered: a text next to a call,
and tools of which the template writes only the name.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from schemas.faults import excerpt
from streams.errors import EventError

Fields = list[dict[str, Any]]
"""Messages or tools, in the form for chat templates."""


def check_all_written(text: str, messages: Fields, tools: Fields, render: Callable[[Fields, Fields], str]) -> None:
    """Raise EventError (tools_unsupported) if `text`, which `render` made of them, lacks a part of tools and calls."""
    word = next(word for number in count() if (word := f"mark{number}x") not in text)
    parts: list[tuple[str, str, str]] = []  # what it is, its mark, its own text

    def mark(value: Any, part: str) -> Any:
        """Return a value with marks, which replace numbers, true, false and null."""
        if isinstance(value, dict):
            return {mark(key, part): mark(item, part) for key, item in value.items()}
        if isinstance(value, list):
            return [mark(item, part) for item in value]
        own_text = value if isinstance(value, str) else ""
        parts.append((part, f"{word}{len(parts)}x", own_text.strip()))
        return own_text + parts[-1][1]

    def message_with_marks(message: dict[str, Any]) -> dict[str, Any]:
        if message["role"] == "tool":
            return message | {"content": mark(message["content"], f"the result {excerpt(message['content'])}")}
        calls = message.get("tool_calls")
        return message | {"tool_calls": [call_with_marks(call) for call in calls]} if calls else message

    def call_with_marks(call: dict[str, Any]) -> dict[str, Any]:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        part = f"the tool call {name}"
        marks = {"name": mark(name, part), "arguments": mark(arguments, f"the arguments of {part}")}
        return call | {"function": marks}

    marked_messages = [message_with_marks(message) for message in messages]
    names = [tool["function"]["name"] for tool in tools]
    marked_tools = [
        tool | {"function": tool["function"] | {"name": mark(name, f"the tool {name}")}}
        for tool, name in zip(tools, names, strict=True)
    ]
    if not parts:
        return
    try:
        marked_text = render(marked_messages, marked_tools)
        missing = next((part for part, word, _ in parts if word not in marked_text), None)
    except Exception:  # a template is a program, and may refuse what it does not know
        missing = next((part for part, _, own_text in parts if own_text not in text), None)
    if missing is not None:
        raise EventError(
            f"the model's chat template leaves out {missing}; leave out the tools and their calls, or use a model "
            "whose template writes them",
            reason="tools_unsupported",
        )
