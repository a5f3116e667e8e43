"""Tool calls in the text of an answer, as Hermes, Qwen and most small chat models write them.

Let me look. <tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>
"""

from __future__ import annotations

import json
from typing import NamedTuple

from schemas import json_text
from schemas.events import Message, ToolCall, derive_id

BEGIN, END = "<tool_call>", "</tool_call>"
SHOWN = 80
"""Most characters of a call that cannot be read in the reason."""


class ReadAnswer(NamedTuple):
    """An answer, and why a tool call in it cannot be read; then the reply has all of it as text."""

    reply: Message
    malformed: str | None


def read_calls(text: str, turn_id: str) -> ReadAnswer:
    """Return the answer in `text`: what stands before the first call, and the calls. Nothing is repaired.

    The ids of calls are made of `turn_id`: a call that is made again in a later turn has another.
    """
    said, *parts = text.split(BEGIN)
    calls: list[ToolCall] = []
    for part in parts:
        inside, closed, behind = part.partition(END)
        try:
            name, arguments = _call(inside)
        except ValueError as exc:
            why: str | None = str(exc)
        else:
            why = None if closed else f"{END} is missing"
            why = why or (f"text between or behind calls: {behind[:SHOWN]!r}" if behind.strip() else None)
        if why is not None:
            what = f"tool call {len(calls) + 1}, {inside[:SHOWN]!r}: {why}"
            return ReadAnswer(Message(role="assistant", content=text), what)
        call_id = f"call_{derive_id(turn_id, len(calls))}"
        calls.append(ToolCall(id=call_id, name=name, arguments=json.dumps(arguments, ensure_ascii=False)))
    content = said.rstrip() if calls else text
    return ReadAnswer(Message(role="assistant", content=content, tool_calls=tuple(calls)), None)


def _call(text: str) -> tuple[str, dict[str, object]]:
    """Return name and arguments. Raises ValueError, also for what the log and its readers cannot hold."""
    value = json_text.parse(text)
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"expected JSON without NaN, infinity and halves of surrogate pairs ({exc})") from exc
    if not isinstance(value, dict) or set(value) != {"name", "arguments"} or not isinstance(value["name"], str):
        raise ValueError("expected an object with name and arguments, and nothing else")
    arguments = value["arguments"]
    if not isinstance(arguments, dict):
        raise ValueError("expected an object as arguments")
    return value["name"], arguments
