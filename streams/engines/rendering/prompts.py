"""Convert between messages and token ids, for every engine that runs a chat model.

messages ──► chat template ──► prompt ids ──► (an engine draws) ──► completion ids ──► text, cut at a stop text
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schemas.events import Message
from streams.engines.protocol import SamplingRequest
from streams.engines.rendering.chat_template import ChatTemplate
from streams.errors import SettingsError


class Prompts:
    """A tokenizer, and the tokens that end a turn of its model."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Read the end-of-turn tokens and the context length. Raises SettingsError without a chat template."""
        if not tokenizer.chat_template:
            raise SettingsError("model.base: its tokenizer has no chat template; set it to an instruct or chat model")
        self._tokenizer, self._template = tokenizer, ChatTemplate(tokenizer)
        windows = (getattr(model.config, "sliding_window", None), model.config.max_position_embeddings)
        self.context_tokens = min(window for window in windows if window)
        self._longest_token = max(map(len, tokenizer.get_vocab()))
        generation = getattr(model.generation_config, "eos_token_id", None)
        ends = generation if isinstance(generation, list) else [generation]
        self.ends = frozenset(token for token in (*ends, tokenizer.eos_token_id) if token is not None)

    def tokens(self, request: SamplingRequest) -> tuple[tuple[int, ...], str | None]:
        """Return the prompt's tokens, or why it cannot be tokenized or answered."""
        where = f"task {request.task.task_id}"
        characters = sum(len(message.content) for message in request.messages)
        if (
            characters > self.context_tokens * self._longest_token
        ):  # too long even for the longest tokens: do not tokenize
            return (
                (),
                f"{where}: {characters} characters never fit the context of {self.context_tokens} tokens; shorten it",
            )
        try:
            tokens = self.templated(request.messages)
        except Exception as exc:  # a template is a program, and a task chooses what it runs on
            return (), f"{where}: the chat template refuses the messages: {exc}; check their roles and order"
        if len(tokens) >= self.context_tokens:
            return (
                (),
                f"{where}: {len(tokens)} prompt tokens do not fit the context of {self.context_tokens}; shorten it",
            )
        return tokens, None

    def templated(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the conversation as tokens, up to where the answer begins. Raises what the chat template raises."""
        return self._template.tokens(self._template.render(messages))

    def plain(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text` alone."""
        return self._template.tokens(text)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion, without the end-of-turn token."""
        spoken = tokens[:-1] if tokens and tokens[-1] in self.ends else tokens
        return str(self._tokenizer.decode(list(spoken), skip_special_tokens=True))

    def cut(self, tokens: Sequence[int], stop: Sequence[str]) -> str | None:
        """Return the text before the first stop text in it, None if there is none."""
        found = self.stopped_by(tokens, stop)
        return None if found is None else found[0]

    def stopped_by(self, tokens: Sequence[int], stop: Sequence[str]) -> tuple[str, str] | None:
        """Return the text before the first stop text in it, and that stop text; None if there is none."""
        if not stop:
            return None
        text = self.text(tokens)
        places = [(place, each) for each in stop if each and (place := text.find(each)) >= 0]
        if not places:
            return None
        place, found = min(places)
        return text[:place], found
