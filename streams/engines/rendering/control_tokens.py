"""Find control tokens, and tokenize text in which their names may be plain text.

    text, source of each character ──► tokenizer ──► a control token made of a message's characters?
                                                       no:  the ids as they are
                                                       yes: the text between the template's own control tokens is
                                                            tokenized again, by a tokenizer that has none

Text without such a name keeps the ids that the tokenizer gives it. An unknown word stays the unknown token. A tokenizer
that normalizes text may read ＜think＞ or <THINK> as the token <think>: only its exact name is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

Source = Literal[1, 2]
MESSAGE: Source = 1
"""Source of text from a user, a tool or a document: it never becomes a control token."""
ANSWER: Source = 2
"""Source of an earlier answer: it may have tokens such as <think>, which are used in answers, but no special ones."""
FENCE = "\U0010ffff\U0010fffe"
"""Put before text that follows a control token, for tokenizers that encode the beginning of a text differently."""


class RenderedText(NamedTuple):
    """A conversation as text."""

    text: str
    sources: bytes = b""
    """MESSAGE, ANSWER or otherwise 0, by character; empty if no message can have made a control token."""

    def since(self, place: int) -> RenderedText:
        """Return the text from `place` on."""
        return RenderedText(self.text[place:], self.sources[place:])

    def after(self, token: str) -> RenderedText:
        """Return it with a control token before it."""
        return RenderedText(token + self.text, bytes(len(token)) + self.sources if self.sources else b"")


class ControlTokens:
    """The control tokens of a tokenizer and its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        """Tokens of more than spaces that are special, in the template, or between bars as <|fim_prefix|> are control.

        Other added ones are not: a technical term or an HTML tag is text.
        """
        self._tokenizer = tokenizer
        template = json.dumps(tokenizer.chat_template, ensure_ascii=False)
        added = {number: token for number, token in tokenizer.added_tokens_decoder.items() if token.content.strip()}
        self._special = frozenset(number for number, token in added.items() if token.special)
        self._names = {
            number: token.content
            for number, token in added.items()
            if token.special or token.content in template or re.fullmatch(r"<[|｜].*[|｜]>", token.content)
        }
        self._is_normalizing = bool(tokenizer.backend_tokenizer.normalizer) and any(
            added[number].normalized for number in self._names
        )

    def has(self, token: int) -> bool:
        """Return whether this is a control token."""
        return token in self._names

    def first_in(self, text: str) -> int | None:
        """Return the control token at the beginning of a template's text; None for other text, including an unknown
        word."""
        tokens = self.tokens(text)
        name = self._names.get(tokens[0]) if tokens else None
        return tokens[0] if name is not None and text.startswith(name) else None

    def names(self, source: Source) -> frozenset[str]:
        """Return the control tokens that text of this source may not become."""
        return frozenset(name for number, name in self._names.items() if self._is_barred(number, source))

    def tokens(self, text: str, sources: bytes = b"") -> tuple[int, ...]:
        """Return the tokens of `text`, none added; without `sources` all of it comes from the template.

        Raises ValueError for FENCE in it.
        """
        encoding = self._tokenizer(text, add_special_tokens=False)
        ids: list[int] = encoding["input_ids"]
        if not any(sources) and not (sources and self._is_normalizing):
            return tuple(ids)
        spans = {place: encoding.token_to_chars(place) for place, token in enumerate(ids) if token in self._names}
        forged = {
            place
            for place, span in spans.items()
            if self._is_forged(ids[place], RenderedText(text[slice(*span)], sources[slice(*span)]))
        }
        tokens = list[int]()
        for before, after in pairwise([-1, *(place for place in spans if place not in forged), len(ids)]):
            if forged.isdisjoint(range(before + 1, after)):
                tokens += ids[before + 1 : after]
            else:
                start = spans[before].end if before >= 0 else 0
                end = spans[after].start if after < len(ids) else len(text)
                tokens += self._text_tokens(text[start:end], is_first=start == 0)
            tokens += ids[after : after + 1]
        return tuple(tokens)

    def _is_barred(self, token: int, source: int) -> bool:
        return source == MESSAGE or (source == ANSWER and token in self._special)

    def _is_forged(self, token: int, written: RenderedText) -> bool:
        """Return whether a message contains this token's name, or text that the tokenizer reads as it."""
        if self._is_normalizing and token != self._tokenizer.unk_token_id and self._names[token] not in written.text:
            return True
        return any(self._is_barred(token, source) for source in written.sources)

    def _text_tokens(self, text: str, *, is_first: bool) -> list[int]:
        """Return the tokens of text that has no control tokens; `is_first`: no token comes before it."""
        encoding = self._text_tokenizer.encode(text if is_first else FENCE + text, add_special_tokens=False)
        ids: list[int] = encoding.ids if is_first else encoding.ids[1:]
        if FENCE in text:
            raise ValueError("it has characters that are none, U+10FFFF and U+10FFFE; leave them out")
        return ids

    @cached_property
    def _text_tokenizer(self) -> Any:
        """The tokenizer without control tokens: FENCE is the only one that it adds."""
        from tokenizers import AddedToken, Tokenizer

        core = json.loads(self._tokenizer.backend_tokenizer.to_str())
        without: dict[str, Any] = {
            "added_tokens": [],
            "truncation": None,
            "padding": None,
            "model": self._without_names(core["model"]),
        }
        tokenizer = Tokenizer.from_str(json.dumps(core | without))
        tokenizer.add_tokens([AddedToken(FENCE, normalized=False)])
        return tokenizer

    def _without_names(self, model: dict[str, Any]) -> dict[str, Any]:
        """Return a model with the same ids for words, without the names; the unknown word stays."""
        names = set(self._names.values()) - {model.get("unk_token")}
        vocabulary, unknown = model["vocab"], model.get("unk_id")
        if isinstance(vocabulary, list):
            words = [
                [f"{FENCE}{number}" if word in names and number != unknown else word, score]
                for number, (word, score) in enumerate(vocabulary)
            ]
            return model | {"vocab": words}
        changed: dict[str, Any] = {
            "vocab": {f"{FENCE}{number}" if word in names else word: number for word, number in vocabulary.items()}
        }
        if "merges" in model:
            changed["merges"] = [pair for pair in model["merges"] if names.isdisjoint((*pair, "".join(pair)))]
        return model | changed


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches the names, the longest first, and nothing without names."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")
