"""A model's own chat template and tokenizer: the one place where messages become text, and text tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schemas import json_text
from schemas.events import Message, Tool


class ChatTemplate:
    """Renders messages, and tokenizes text as it is."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is one of transformers, with a chat template."""
        self.tokenizer = tokenizer

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, answer: bool = True) -> str:
        """Return the conversation as text; `answer`: up to where the next answer begins. Raises what the template does.

        Raises ValueError for tool calls or tools that are no JSON.
        """
        return str(
            self.tokenizer.apply_chat_template(
                [_as_dictionary(message) for message in messages],
                tools=[_as_function(tool) for tool in tools] or None,
                add_generation_prompt=answer,
                tokenize=False,
            )
        )

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text`, none added."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _as_function(tool: Tool) -> dict[str, Any]:
    """Return the tool as chat templates expect it. Raises ValueError if its parameters are no JSON."""
    function = {"name": tool.name, "description": tool.description, "parameters": json_text.parse(tool.parameters)}
    return {"type": "function", "function": function}


def _as_dictionary(message: Message) -> dict[str, Any]:
    """Return the message as chat templates expect it, without absent fields. Raises ValueError as `_as_function`."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json_text.parse(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return fields
