"""Render conversations for the scripted engine: a line for each message, in bytes.

tools: [...] ⏎ user: hello ⏎ assistant: <answer> END_OF_TURN ⏎ tool: 7 ⏎ assistant:
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256

from schemas.events import Message, Tool
from streams.engines.rendering.answer_form import AnswerForm, grammar_of
from streams.engines.scripted.scripted_engine import CALLS, END_OF_TURN, ScriptedEngine, lines_of


class ScriptedRendering:
    """Messages to tokens and back; a token is a byte, or END_OF_TURN."""

    template_digest = sha256(b"role: content, a line each").hexdigest()
    tokenizer_digest = ScriptedEngine.tokenizer_digest
    markers: tuple[str, ...] = CALLS.markers
    call_end: str | None = CALLS.end
    longest_token = 1

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """Return the tokens of a conversation, up to the beginning of the answer."""
        offered = f"tools: {json.dumps([asdict(tool) for tool in tools])}\n" if tools else ""
        return self.plain(offered + lines_of(messages) + "assistant: ")

    def extend(
        self,
        recorded: Sequence[int],
        finished: bool,
        before: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> tuple[int, ...] | str:
        """Return the tokens after an answer; `finished`: it has its END_OF_TURN."""
        return (*(() if finished else (END_OF_TURN,)), *self.plain(f"\n{lines_of(new)}assistant: "))

    def parse(
        self, token_ids: Sequence[int], tools: Sequence[Tool], turn_id: str, stop: str | None = None
    ) -> tuple[Message, str | None]:
        """Return the answer before `stop`, and why a tool call in it cannot be read."""
        text = self.text(token_ids)
        if not tools:
            return Message(role="assistant", content=text.partition(stop)[0] if stop else text), None
        return CALLS.read_until(text, stop or None, turn_id)

    def grammar(self, form: AnswerForm, tools: Sequence[Tool]) -> str:
        """Return the grammar of an answer of this form."""
        return grammar_of(form, tools, CALLS, None)

    def plain(self, text: str, special_tokens: bool = False) -> tuple[int, ...]:
        """Return the tokens of only `text`: none are added around it."""
        return tuple(text.encode())

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without END_OF_TURN."""
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return a token's text."""
        return b"" if token == END_OF_TURN else bytes((token,))
