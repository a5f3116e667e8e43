"""Conversations as the scripted engine reads them: a line for each message, in bytes.

tools: [...] ⏎ user: hello ⏎ assistant: <answer> END_OF_TURN ⏎ tool: 7 ⏎ assistant:
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256

from schemas import json_text
from schemas.events import Message, Tool, ToolCall, derive_id
from streams.engines.scripted import END_OF_TURN, ScriptedEngine

BEGIN, END = "<tool_call>", "</tool_call>"


class ScriptedRendering:
    """Messages to tokens and back; a token is a byte, or END_OF_TURN."""

    template_digest = sha256(b"role: content, a line each").hexdigest()
    tokenizer_digest = ScriptedEngine.tokenizer_digest
    markers: tuple[str, ...] = (BEGIN,)

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """Return the tokens of a conversation, up to where the answer begins."""
        offered = f"tools: {json.dumps([asdict(tool) for tool in tools])}\n" if tools else ""
        return self.plain(offered + _lines(messages))

    def extend(
        self,
        known: Sequence[int],
        finished: bool,
        before: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> tuple[int, ...] | str:
        """Return the tokens behind an answer; `finished`: it has its END_OF_TURN."""
        return (*(() if finished else (END_OF_TURN,)), *self.plain("\n" + _lines(new)))

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> tuple[Message, str | None]:
        """Return the answer, and why a tool call in it cannot be read."""
        text = self.text(token_ids)
        if not tools or BEGIN not in text:
            return Message(role="assistant", content=text), None
        said, *parts = text.split(BEGIN)
        calls: list[ToolCall] = []
        for part in parts:
            inside, closed, _ = part.partition(END)
            try:
                value = json_text.parse(inside)
                if not closed or not isinstance(value["name"], str) or not isinstance(value["arguments"], dict):
                    raise ValueError(f"expected {BEGIN} with a name and arguments, and {END}")
            except (ValueError, KeyError, TypeError) as exc:
                return Message(role="assistant", content=text), f"tool call {inside[:80]!r}: {exc!r}"
            arguments = json.dumps(value["arguments"], ensure_ascii=False)
            call_id = f"call_{derive_id(text, len(calls))[:8]}"
            calls.append(ToolCall(id=call_id, name=value["name"], arguments=arguments))
        return Message(role="assistant", content=said.rstrip(), tool_calls=tuple(calls)), None

    def plain(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text` alone."""
        return tuple(text.encode())

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without END_OF_TURN."""
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return what a token adds to the text."""
        return b"" if token == END_OF_TURN else bytes((token,))


def _lines(messages: Sequence[Message]) -> str:
    lines = []
    for message in messages:
        calls = "".join(
            f'{BEGIN}{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}{END}'
            for call in message.tool_calls
        )
        lines.append(f"{message.role}: {message.content}{calls}\n")
    return "".join(lines) + "assistant: "
