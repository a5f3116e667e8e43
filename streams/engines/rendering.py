"""Conversations as a chat model reads them: the whole of one once, and then only what is new.

    messages ──► chat template ──► tokens                                          the first call
    known tokens + (template of all - template of what is known) ──► tokens        every other one

What was sampled is never tokenized again. The text of a known conversation must be the beginning of the text of the
longer one; where a template changes the past (drops reasoning, renders the last turn otherwise), `extend` says so.

Not covered: tools of a template that has no place for them are refused; calls are read in one format (tool_calls.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import Any

from schemas import json_text
from schemas.events import Message, Tool
from streams.engines.prompts import as_template_wants
from streams.engines.tool_calls import BEGIN, read_calls
from streams.errors import EventError

SENTINEL = "8b1f0c2e"
"""Content of a message whose place in the rendered text is looked for."""


class ChatRendering:
    """A `Rendering` by the chat template of a tokenizer. Not thread-safe."""

    markers: tuple[str, ...] = (BEGIN,)

    def __init__(self, tokenizer: Any, tokenizer_digest: str) -> None:
        self._tokenizer, self.tokenizer_digest = tokenizer, tokenizer_digest
        self.template_digest = sha256(tokenizer.chat_template.encode()).hexdigest()
        self._bytes = _byte_alphabet() if _is_byte_level(tokenizer) else {}

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """Return a conversation up to where the answer begins. Raises EventError if the template refuses it."""
        return self.plain(self._text(messages, tools, begin_answer=True))

    def extend(
        self,
        known: Sequence[int],
        finished: bool,
        before: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> tuple[int, ...] | str:
        """Return what comes behind `known`, or why the template does not leave that as it is."""
        closed = self._text(before, tools)
        longer = self._text((*before, *new), tools, begin_answer=True)
        if not longer.startswith(closed):
            return "the chat template changes what is already in the history"
        closing = self._closing(before, tools)
        if finished:
            end = self._tokenizer.decode([known[-1]], skip_special_tokens=False)
            if not closing.startswith(end):
                return f"the model ended its turn with {end!r}, the chat template does with {closing!r}"
            closing = closing[len(end) :]
        return self.plain(closing + longer[len(closed) :])

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> tuple[Message, str | None]:
        """Return the answer in these tokens, and why a tool call in it cannot be read, if one cannot."""
        return read_calls(self.text(token_ids))

    def plain(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text` alone; names of special tokens in it are those tokens."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        return str(
            self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def token_bytes(self, token: int) -> bytes:
        """Return what a token adds to the text."""
        if token in self._tokenizer.all_special_ids:
            return b""
        spelled = self._tokenizer.convert_ids_to_tokens(token) or ""
        if self._bytes and all(letter in self._bytes for letter in spelled):
            return bytes(self._bytes[letter] for letter in spelled)
        return self.text([token]).encode()

    def _closing(self, before: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Return the text that the template puts behind an answer."""
        answer = Message(role="assistant", content=SENTINEL)
        return self._text((*before[:-1], answer), tools).rpartition(SENTINEL)[2]

    def _text(self, messages: Sequence[Message], tools: Sequence[Tool], *, begin_answer: bool = False) -> str:
        said = [as_template_wants(message) for message in messages]
        offered = [_as_function(tool) for tool in tools]
        text = self._rendered(said, offered, begin_answer)
        if offered and text == self._rendered(said, [], begin_answer):
            raise EventError(
                "the chat template of model.base has no place for tools, so the model would not see them; leave tools "
                "out and describe them in a message, or use a model whose template has them",
                reason="bad_tools",
            )
        return text

    def _rendered(self, said: list[dict[str, Any]], offered: list[dict[str, Any]], begin_answer: bool) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    said, tools=offered or None, add_generation_prompt=begin_answer, tokenize=False
                )
            )
        except Exception as exc:  # a template is a program, and a client chooses what it runs on
            raise EventError(f"the chat template refuses the messages: {exc}; check roles and order") from exc


def _as_function(tool: Tool) -> dict[str, Any]:
    try:
        parameters = json_text.parse(tool.parameters)
    except ValueError as exc:
        raise EventError(f"tool {tool.name}: its parameters are not JSON: {exc}") from exc
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return type(getattr(backend, "decoder", None)).__name__ == "ByteLevel"


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return which byte each letter of a byte-level vocabulary stands for (GPT-2's table).

    >>> _byte_alphabet()["Ġ"] == ord(" ")
    True
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}
