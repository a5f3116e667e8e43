"""Interface for turning the messages of a conversation into a model's tokens, and back.

messages, tools ──► Rendering ──► tokens of the prompt ──► TokenEngine ──► tokens of the answer ──► Message
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from schemas.events import Message, Tool
from streams.engines.rendering.answer_form import AnswerForm


class Rendering(Protocol):
    """Messages to tokens and back, for one model."""

    template_digest: str
    tokenizer_digest: str
    markers: tuple[str, ...]
    """Texts with which a tool call may begin."""
    call_end: str | None
    """The text that ends each of several tool calls; "": an answer has at most one; None: no text ends them."""
    longest_token: int
    """Maximum characters of one token."""

    def first(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
        """Return a conversation up to the beginning of the answer. Raises EventError if the template refuses it."""

    def extend(
        self,
        recorded: Sequence[int],
        finished: bool,
        before: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool],
    ) -> tuple[int, ...] | str:
        """Return the tokens after `recorded`, or why the template changes those.

        `before` is the conversation of `recorded`; its last message is the answer, which is complete if `finished`.
        """

    def parse(
        self, token_ids: Sequence[int], tools: Sequence[Tool], turn_id: str, stop: str | None = None
    ) -> tuple[Message, str | None]:
        """Return the answer in these tokens, before `stop`, and why a tool call in it cannot be read, if so."""

    def grammar(self, form: AnswerForm, tools: Sequence[Tool]) -> str:
        """Return the grammar of an answer of this form, for `TokenEngine.constrain`."""

    def plain(self, text: str, special_tokens: bool = False) -> tuple[int, ...]:
        """Return the tokens of `text`; `special_tokens`: with those that the tokenizer adds around a text, such as
        <s>."""

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without those that have no text."""

    def token_bytes(self, token: int) -> bytes:
        """Return a token's text."""
