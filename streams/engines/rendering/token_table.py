"""One table of a model's ids: those that end an answer, may be drawn, or are never text.

    tokenizer, chat template ──┐
    generation config ─────────┼──► TokenTable ──► engines, trainer, tuning, rendering, `streamward doctor`
    rows of the head ──────────┘

A model has a row for each id up to some number, which is often rounded up for speed, and a tokenizer has a token for
some ids. Only ids with both are drawn, and only they have a share of a softmax.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from streams.engines.rendering.chat_template import ChatTemplate

EndOrigin = Literal["tokenizer", "generation config", "chat template"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """The ids of one model."""

    ends: Mapping[int, tuple[EndOrigin, ...]]
    """Ids that end an answer, each with all sources that name it as an end."""
    size: int
    """Ids from here on lack a token or a row."""
    unassigned: frozenset[int] = frozenset()
    """Ids below `size` that have no token."""
    rows: int
    """Rows of the head in the stored model."""
    rowless: Mapping[int, str]
    """Tokens from `size` on, which the tokenizer has and the model does not, with their names."""
    undrawable_ends: tuple[int, ...] = ()
    """Ids that the generation config names as ends, but that cannot be drawn."""
    special: frozenset[int] = frozenset()
    """Special tokens of the tokenizer: they are never text."""
    pad: int = 0
    """Pads the rows of a batch. Padding has no loss, even if the same id as an end has."""

    @classmethod
    def of(cls, tokenizer: Any, rows: int | None = None, generation_ends: Iterable[int] = ()) -> TokenTable:
        """Return the table of a tokenizer of transformers and a model; `rows` None: as many as the tokenizer needs."""
        names = {number: name for name, number in tokenizer.get_vocab().items()}
        generation_ends, tokens = tuple(generation_ends), max(names) + 1
        rows = tokens if rows is None else rows
        size = min(rows, tokens)
        origins: dict[EndOrigin, Iterable[int | None]] = {
            "tokenizer": (tokenizer.eos_token_id,),
            "generation config": generation_ends,
            "chat template": (ChatTemplate(tokenizer).end,),
        }
        ends: dict[int, tuple[EndOrigin, ...]] = {}
        for origin, of_origin in origins.items():
            for token in of_origin:
                if token is not None and token in names and token < size:
                    ends[token] = (*ends.get(token, ()), origin)
        pads = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        return cls(
            ends=ends,
            size=size,
            unassigned=frozenset(range(size)) - names.keys(),
            rows=rows,
            rowless={number: names[number] for number in sorted(names) if number >= size},
            undrawable_ends=tuple(token for token in generation_ends if token not in ends),
            special=frozenset(number for number, token in tokenizer.added_tokens_decoder.items() if token.special),
            pad=next((pad for pad in pads if pad is not None and pad < size), 0),
        )

    @classmethod
    def of_ids(cls, size: int, ends: Iterable[int]) -> TokenTable:
        """Return the table of a model in which each id below `size` is a token."""
        return cls(ends={end: ("tokenizer",) for end in ends}, size=size, rows=size, rowless={})

    @property
    def drawable(self) -> int:
        """Number of ids that may be drawn."""
        return self.size - len(self.unassigned)

    @property
    def without_token(self) -> tuple[int, ...]:
        """Ids that have a row but no token."""
        return (*sorted(self.unassigned), *range(self.size, self.rows))

    @property
    def silent(self) -> frozenset[int]:
        """Ids that are never text."""
        return self.special | self.ends.keys()

    def first_unknown(self, tokens: Sequence[int]) -> int | None:
        """Return the first of these ids that cannot be drawn; None if all can."""
        if not tokens or (min(tokens) >= 0 and max(tokens) < self.size and self.unassigned.isdisjoint(tokens)):
            return None
        return next(token for token in tokens if not 0 <= token < self.size or token in self.unassigned)
