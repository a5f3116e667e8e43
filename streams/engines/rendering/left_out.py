"""Refuse a conversation of which a chat template leaves out a tool, a tool call or its result.

    messages, tools ──► a mark after each name, argument and result ──► template ──► a mark is missing? EventError

Templates drop what they do not know without a word, and then different histories are one prompt. Texts are not searched
for: the name of a call may also be a word of the question.

Not covered: a text next to a call, and tools of which the template writes the name alone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from schemas.faults import excerpt_of
from streams.errors import EventError

EXCERPT = 40
"""Most characters of a result in the reason."""
Fields = list[dict[str, Any]]
"""Messages or tools, as chat templates take them."""


def check_all_written(text: str, messages: Fields, tools: Fields, render: Callable[[Fields, Fields], str]) -> None:
    """Raise EventError (tools_unsupported) if `text`, which `render` made of them, lacks a part of tools and calls."""
    if not tools and not any(message.get("tool_calls") or is_result(message) for message in messages):
        return
    marks = _PartMarks(text)
    marked = [marks.message(fields) for fields in messages], [marks.tool(tool) for tool in tools]
    try:
        marked_text = render(*marked)
    except Exception:  # a template is a program, and may refuse what it does not know: then the texts themselves count
        marked_text, marks.parts = text, [(part, own_text) for part, own_text in marks.own_texts if own_text]
    missing = next((part for part, mark in marks.parts if mark not in marked_text), None)
    if missing is not None:
        raise EventError(
            f"the model's chat template leaves out {missing}; leave out the tools and their calls, or use a model "
            "whose template writes them",
            reason="tools_unsupported",
        )


def is_result(message: dict[str, Any]) -> bool:
    """Return whether a message is the result of a tool."""
    return message["role"] == "tool" or "tool_call_id" in message


class _PartMarks:
    """Words that the text does not have, each put after a part of what the messages say."""

    def __init__(self, text: str) -> None:
        self._word = next(word for number in count() if (word := f"mark{number}x") not in text)
        self.parts: list[tuple[str, str]] = []
        """What a part is, and its mark."""
        self.own_texts: list[tuple[str, str]] = []
        """What a part is, and what it says; empty for what is no text."""

    def message(self, fields: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        if is_result(fields):
            result = f"the result {excerpt_of(fields['content'], EXCERPT)!r}"
            changed["content"] = self._value(fields["content"], result)
        if "tool_calls" in fields:
            changed["tool_calls"] = [call | {"function": self._call(call["function"])} for call in fields["tool_calls"]]
        return fields | changed

    def tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        function = tool["function"]
        return tool | {"function": function | {"name": self._value(function["name"], f"the tool {function['name']}")}}

    def _call(self, function: dict[str, Any]) -> dict[str, Any]:
        call = f"the tool call {function['name']}"
        return {
            "name": self._value(function["name"], call),
            "arguments": self._value(function["arguments"], f"the arguments of {call}"),
        }

    def _value(self, value: Any, part: str) -> Any:
        """Return a value with marks; a number, true, false and null are replaced by theirs."""
        if isinstance(value, dict):
            return {self._value(key, part): self._value(item, part) for key, item in value.items()}
        if isinstance(value, list):
            return [self._value(item, part) for item in value]
        text = value if isinstance(value, str) else ""
        mark = f"{self._word}{len(self.parts)}x"
        self.parts.append((part, mark))
        self.own_texts.append((part, text.strip()))
        return text + mark
