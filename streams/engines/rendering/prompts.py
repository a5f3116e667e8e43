"""Convert between messages and token ids, for every engine that runs a chat model.

messages ──► chat template ──► prompt ids ──► (an engine draws) ──► completion ids ──► text, cut at a stop text
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from schemas.events import Message
from streams.engines.rendering.chat_template import ChatTemplate
from streams.errors import EventError, SettingsError

log = logging.getLogger("streamward.rendering")


class StopMatch(NamedTuple):
    """A stop text in a completion."""

    text: str
    """The text before it."""
    stop: str


class PromptRenderer:
    """A tokenizer, and the context that its prompts have to fit."""

    def __init__(self, tokenizer: Any, context_tokens: int) -> None:
        """Raises SettingsError without a chat template."""
        if not tokenizer.chat_template:
            raise SettingsError("model.base: its tokenizer has no chat template; set it to an instruct or chat model")
        self._tokenizer, self._template = tokenizer, ChatTemplate(tokenizer)
        if self._template.inseparable:
            names = ", ".join(self._template.inseparable)
            log.warning("the chat template looks for %s in messages; a message that says so is refused", names)
        self.context_tokens = context_tokens
        self._longest_token = max(map(len, tokenizer.get_vocab()))

    def tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return a prompt that leaves room for an answer. Raises EventError: prompt_too_long, template_refuses."""
        characters = sum(len(message.content) for message in messages)
        if characters > self.context_tokens * self._longest_token:  # too long however it is tokenized
            error = f"{characters} characters never fit the context of {self.context_tokens} tokens; shorten it"
            raise EventError(error, reason="prompt_too_long")
        try:
            tokens = self.render_tokens(messages)
        except Exception as exc:  # a template is a program, and a task chooses what it runs on
            error = f"the chat template refuses the messages: {exc}; check their roles and order"
            raise EventError(error, reason="template_refuses") from exc
        if len(tokens) >= self.context_tokens:
            error = f"{len(tokens)} prompt tokens do not fit the context of {self.context_tokens}; shorten it"
            raise EventError(error, reason="prompt_too_long")
        return tokens

    def render_tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the conversation as tokens, up to where the answer begins. Raises what the chat template raises."""
        return self._template.ids(messages)


class Prompts(PromptRenderer):
    """The prompts of a model, and the tokens that end a turn of it."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """Read the end-of-turn tokens and the context length. Raises SettingsError without a chat template."""
        windows = (getattr(model.config, "sliding_window", None), model.config.max_position_embeddings)
        super().__init__(tokenizer, min(window for window in windows if window))
        self.vocabulary_size = int(model.get_input_embeddings().num_embeddings)
        generation = getattr(model.generation_config, "eos_token_id", None)
        ends = generation if isinstance(generation, list) else [generation]
        every = (*ends, tokenizer.eos_token_id, self._template.end)
        self.ends = frozenset(token for token in every if token is not None)
        """Of the generation config, the tokenizer and the chat template: what the template writes after an answer."""

    def plain(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text` alone."""
        return self._template.tokens(text)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion, without the end-of-turn token."""
        spoken = tokens[:-1] if tokens and tokens[-1] in self.ends else tokens
        return str(self._tokenizer.decode(list(spoken), skip_special_tokens=True))

    def first_stop(self, tokens: Sequence[int], stops: Sequence[str]) -> StopMatch | None:
        """Return the first stop text in a completion, None if there is none."""
        if not stops:
            return None
        text = self.text(tokens)
        places = [(place, stop) for stop in stops if stop and (place := text.find(stop)) >= 0]
        if not places:
            return None
        place, stop = min(places)
        return StopMatch(text[:place], stop)
