"""The faults of a row of a chat file, by the names of OpenAI's cookbook, and those that its API refuses.

    {"messages": […], "tools": […]} ──► chat_problems ──► RowProblem(name, where and what), …

The seven names from the cookbook are `data_type`, `missing_messages_list`, `message_missing_key`,
`message_unrecognized_key`, `unrecognized_role`, `missing_content` and `example_missing_assistant_message`. For faults
that only the API refuses, the names are ours: `weight`, `tool_call_id`, `role_order`, `tools`.

Not covered: images and sound: the model cannot read them, and `tune` refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

COOKBOOK = (
    "data_type",
    "missing_messages_list",
    "message_missing_key",
    "message_unrecognized_key",
    "unrecognized_role",
    "missing_content",
    "example_missing_assistant_message",
)
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "function_call", "weight", "refusal"})
BEFORE_CONVERSATION = ("system", "developer")


class RowProblem(NamedTuple):
    """A fault of a row, by a name to count by."""

    name: str
    text: str


def chat_problems(fields: Mapping[str, Any]) -> Iterator[RowProblem]:
    """Yield what is wrong with a conversation to learn from."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        yield RowProblem("missing_messages_list", f"messages: expected a list of messages, got {_kind(messages)}")
        return
    yield from message_list_problems(messages, "messages")
    whole = [message for message in messages if isinstance(message, Mapping)]
    roles = [message.get("role") for message in whole]
    if "assistant" not in roles:
        yield RowProblem("example_missing_assistant_message", "messages: no message of role assistant to learn from")
    elif roles[-1] != "assistant":
        yield RowProblem("role_order", f"messages: the last one is of role {roles[-1]}; expected the assistant's")
    yield from _order_problems(roles)
    yield from _call_problems(whole)
    yield from _tool_problems(fields.get("tools"))


def message_list_problems(messages: Any, name: str) -> Iterator[RowProblem]:
    """Yield what is wrong with each message of a list."""
    if not isinstance(messages, list):
        if not isinstance(messages, str):
            yield RowProblem("missing_messages_list", f"{name}: expected messages or a text, got {_kind(messages)}")
        return
    for number, message in enumerate(messages):
        yield from _message_problems(message, f"{name}[{number}]")


def _message_problems(message: Any, place: str) -> Iterator[RowProblem]:
    if not isinstance(message, Mapping):
        yield RowProblem("data_type", f"{place}: expected an object, got {_kind(message)}")
        return
    has_calls = bool(message.get("tool_calls") or message.get("function_call"))
    if "role" not in message or ("content" not in message and not has_calls):
        missing = "role" if "role" not in message else "content"
        yield RowProblem("message_missing_key", f"{place}: it has no {missing}")
    for key in message:
        if key not in KEYS:
            yield RowProblem("message_unrecognized_key", f"{place}: {key!r} is no key of a message")
    if "role" in message and message["role"] not in ROLES:
        yield RowProblem("unrecognized_role", f"{place}: role {message['role']!r}; expected one of {', '.join(ROLES)}")
    content = message.get("content")
    is_text = isinstance(content, str) or (isinstance(content, list) and all(map(_is_text_part, content)))
    if not has_calls and "content" in message and (not content or not is_text):
        yield RowProblem("missing_content", f"{place}: expected content of text, got {_kind(content)}")
    weight = message.get("weight")
    if weight is not None and (type(weight) is not int or weight not in (0, 1) or message.get("role") != "assistant"):
        yield RowProblem("weight", f"{place}: weight {weight!r}; expected 0 or 1, of the assistant's messages alone")


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _order_problems(roles: Sequence[Any]) -> Iterator[RowProblem]:
    first = next((number for number, role in enumerate(roles) if role not in BEFORE_CONVERSATION), 0)
    late = next((number for number, role in enumerate(roles) if role in BEFORE_CONVERSATION and number > first), None)
    if late is not None:
        yield RowProblem("role_order", f"messages[{late}]: role {roles[late]} after the conversation has begun")


def _call_problems(messages: Sequence[Mapping[str, Any]]) -> Iterator[RowProblem]:
    """Yield calls without a result and results without a call."""
    open_calls: dict[Any, int] = {}
    for number, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            answers = _call_id(message.get("tool_call_id"))
            if answers not in open_calls:
                yield RowProblem(
                    "tool_call_id", f"messages[{number}]: tool_call_id {answers!r} answers no call before it"
                )
            open_calls.pop(answers, None)
            continue
        for call, at in open_calls.items():
            yield RowProblem("tool_call_id", f"messages[{at}]: no message of role tool answers call {call!r}")
        calls = message.get("tool_calls")
        listed = calls if isinstance(calls, list) else []
        open_calls = {_call_id(call.get("id")): number for call in listed if isinstance(call, Mapping)}


def _call_id(value: Any) -> str | None:
    """Return an id; a value that is not one is shown unchanged and matches nothing."""
    return value if value is None or isinstance(value, str) else _kind(value)


def _tool_problems(tools: Any) -> Iterator[RowProblem]:
    if tools is None:
        return
    if not isinstance(tools, list):
        yield RowProblem("tools", f"tools: expected a list, got {_kind(tools)}")
        return
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            yield RowProblem("tools", f'tools[{number}]: expected {{"type": "function", "function": {{"name": …}}}}')
        elif not isinstance(function.get("parameters", {}), Mapping):
            yield RowProblem("tools", f"tools[{number}].function.parameters: expected a JSON schema")


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
