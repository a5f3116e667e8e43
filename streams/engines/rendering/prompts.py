"""Convert between messages and token ids, for every engine that runs a chat model.

messages ──► chat template ──► prompt ids ──► (an engine draws) ──► completion ids ──► text, cut at a stop text
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas.events import Message
from streams.engines.rendering.chat_template import ChatTemplate
from streams.engines.rendering.token_table import TokenTable
from streams.errors import EventError, SettingsError

if TYPE_CHECKING:
    from streams.engines.base_model import Base
    from streams.engines.protocol import SamplingRequest

log = logging.getLogger("streamward.rendering")


class StopMatch(NamedTuple):
    """A stop text in a completion."""

    text: str
    """The text before it."""
    stop: str


class PromptRenderer:
    """A tokenizer, and the limits of its prompts: the model's ids, and its context."""

    def __init__(self, tokenizer: Any, token_table: TokenTable, context_tokens: int) -> None:
        """Raises SettingsError without a chat template, or if that writes a token that the model does not have."""
        if not tokenizer.chat_template:
            raise SettingsError("model.base: its tokenizer has no chat template; set it to an instruct or chat model")
        self._tokenizer, self.template, self.token_table = tokenizer, ChatTemplate(tokenizer), token_table
        if rowless := self.template.own_tokens & token_table.rowless.keys():
            names = ", ".join(f"{token_table.rowless[token]} (id {token})" for token in sorted(rowless))
            raise SettingsError(
                f"model.base: its chat template writes {names}, and the model has rows for ids from 0 to "
                f"{token_table.rows - 1}; use the tokenizer that it was trained with, or resize its embeddings"
            )
        if self.template.inseparable:
            names = ", ".join(self.template.inseparable)
            log.warning("the chat template looks for %s in messages; a message that says so is refused", names)
        self.context_tokens = context_tokens
        self._longest_token = max(map(len, tokenizer.get_vocab()))

    def tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return a prompt that leaves room for an answer.

        Reasons of EventError: prompt_too_long, template_refuses, tools_unsupported, bad_tokens.
        """
        characters = sum(len(message.content) for message in messages)
        if characters > self.context_tokens * self._longest_token:  # too long however it is tokenized
            error = f"{characters} characters never fit the context of {self.context_tokens} tokens; shorten it"
            raise EventError(error, reason="prompt_too_long")
        try:
            tokens = self.render_tokens(messages)
        except EventError:  # the parts that the template leaves out
            raise
        except Exception as exc:  # a template is a program, and a task chooses what it runs on
            error = f"the chat template refuses the messages: {exc}; check their roles and order"
            raise EventError(error, reason="template_refuses") from exc
        return self._check_tokens(tokens)

    def _check_tokens(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        if (unknown := self.token_table.first_unknown(tokens)) is not None:
            name = self.token_table.rowless.get(unknown)
            error = f"the prompt has {name} (id {unknown}), for which the model has no row; leave it out"
            raise EventError(error, reason="bad_tokens")
        if len(tokens) >= self.context_tokens:
            error = f"{len(tokens)} prompt tokens do not fit the context of {self.context_tokens}; shorten it"
            raise EventError(error, reason="prompt_too_long")
        return tokens

    def render_tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the conversation as tokens, up to the beginning of the answer. Raises the chat template's errors."""
        return self.template.ids(messages)


class Prompts(PromptRenderer):
    """The prompts of a model, and the texts of its answers."""

    def __init__(self, base: Base) -> None:
        """Raises SettingsError as `PromptRenderer` does."""
        config, self._tokenizer_digest = base.model.config, base.tokenizer_digest
        windows = (getattr(config, "sliding_window", None), config.max_position_embeddings)
        super().__init__(base.tokenizer, base.token_table, min(window for window in windows if window))

    def of_request(self, request: SamplingRequest) -> tuple[int, ...]:
        """Return the prompt of a task: the recorded tokens of a fork, else its messages as `tokens` renders them.

        Raises EventError as `tokens`, and for tokens of another tokenizer.
        """
        recorded = request.fork_tokens(self._tokenizer_digest)
        return self._check_tokens(recorded) if recorded else self.tokens(request.messages)

    def plain(self, text: str) -> tuple[int, ...]:
        """Return the tokens of only `text`."""
        return self.template.tokens(text)

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion, without the end-of-turn token."""
        spoken = tokens[:-1] if tokens and tokens[-1] in self.token_table.ends else tokens
        return str(self._tokenizer.decode(list(spoken), skip_special_tokens=True))

    def first_stop(self, tokens: Sequence[int], stops: Sequence[str]) -> StopMatch | None:
        """Return the first stop text in a completion, or None."""
        if not stops:
            return None
        text = self.text(tokens)
        places = [(place, stop) for stop in stops if stop and (place := text.find(stop)) >= 0]
        if not places:
            return None
        place, stop = min(places)
        return StopMatch(text[:place], stop)
