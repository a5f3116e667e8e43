"""Keys and values of single rows, and those that are kept for the next turn of a conversation.

a row is done ──► kept, by version and tokens ──► the next prompt that begins with them continues in the same memory
                      │ the longest unused leaves     └ one that shares only a beginning gets a copy of that
                      ▼ when the bound is reached
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BLOCK = 64
"""Room grows by a quarter, and at least by so many tokens."""


class CacheShape(NamedTuple):
    """What one token's keys and values look like in this model."""

    layers: int
    heads: int  # of keys and values
    width: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: Any) -> CacheShape:
        """Read it from the model's configuration."""
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(config.num_hidden_layers, heads, width, model.dtype, model.device)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return int(2 * self.layers * self.heads * self.width * self.dtype.itemsize)


class KeyValues:
    """The keys and values of one row's tokens so far."""

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self.length = 0
        """Tokens whose keys and values are there."""
        self.data = self._empty(0)  # [layers, keys and values, heads, capacity, width]

    @property
    def nbytes(self) -> int:
        """Bytes held, room for more tokens included."""
        return int(self.data.nbytes)

    def grown_bytes(self, count: int) -> int:
        """Return the bytes that room for `count` more tokens takes beyond those held."""
        return (self._capacity(count) - int(self.data.shape[3])) * self._shape.token_bytes

    def make_room(self, count: int) -> None:
        """Have room for `count` more tokens."""
        capacity = self._capacity(count)
        if capacity > self.data.shape[3]:
            old, self.data = self.data, self._empty(capacity)
            self.data[..., : self.length, :] = old[..., : self.length, :]

    def beginning(self, length: int) -> KeyValues:
        """Return a copy of the first `length` tokens."""
        copy = KeyValues(self._shape)
        copy.make_room(length)
        copy.data[..., :length, :] = self.data[..., :length, :]
        copy.length = length
        return copy

    def _capacity(self, count: int) -> int:
        held, needed = int(self.data.shape[3]), self.length + count
        if needed <= held:
            return held
        return -(-max(needed, held + held // 4) // BLOCK) * BLOCK

    def _empty(self, capacity: int) -> Tensor:
        shape = self._shape
        size = (shape.layers, 2, shape.heads, capacity, shape.width)
        return torch.empty(size, dtype=shape.dtype, device=shape.device)


Tokens = npt.NDArray[np.int32]


def as_tokens(ids: Sequence[int]) -> Tokens:
    """Return token ids as `common` compares them."""
    return np.array(ids, dtype=np.int32)


def common(one: Tokens, other: Tokens) -> int:
    """Return how many tokens both begin with.

    >>> common(as_tokens([1, 2, 3]), as_tokens([1, 2, 4, 5]))
    2
    """
    length = min(len(one), len(other))
    same = one[:length] == other[:length]
    return length if same.all() else int(same.argmin())


@dataclass(eq=False, slots=True)
class KeptPrefix:
    """The keys and values of a conversation that may continue."""

    owner: object  # the weights they were computed with; compared by identity
    tokens: Tokens
    cache: KeyValues


class PrefixStore:
    """Kept prefixes, the one that was not used for the longest time first."""

    def __init__(self) -> None:
        self._kept: list[KeptPrefix] = []
        self.nbytes = 0

    @property
    def tokens(self) -> int:
        """Tokens kept."""
        return sum(len(kept.tokens) for kept in tuple(self._kept))

    def find(self, owner: object, tokens: Tokens) -> tuple[KeptPrefix | None, int]:
        """Return the prefix of `owner` that shares the most tokens, and how many those are."""
        shared = ((kept, common(kept.tokens, tokens)) for kept in self._kept if kept.owner is owner)
        return max(shared, key=lambda each: each[1], default=(None, 0))

    def keep(self, owner: object, tokens: Tokens, cache: KeyValues) -> None:
        """Keep a row's keys and values; those of its beginnings are no longer needed."""
        for kept in [kept for kept in self._kept if kept.owner is owner]:
            shared = common(kept.tokens, tokens)
            if shared == len(tokens):  # a longer one serves as well
                self.touch(kept)
                return
            if shared == len(kept.tokens):
                self.remove(kept)
        self._kept.append(KeptPrefix(owner, tokens, cache))
        self.nbytes += cache.nbytes

    def touch(self, kept: KeptPrefix) -> None:
        """Count it as just used."""
        self._kept.remove(kept)
        self._kept.append(kept)

    def remove(self, kept: KeptPrefix) -> None:
        """Let go of one."""
        self._kept.remove(kept)
        self.nbytes -= kept.cache.nbytes

    def shrink(self, most_bytes: int) -> None:
        """Let the longest unused go until at most so many bytes are kept."""
        while self._kept and self.nbytes > most_bytes:
            self.remove(self._kept[0])

    def forget(self, owner: object) -> None:
        """Let go of all that were computed with these weights."""
        for kept in [kept for kept in self._kept if kept.owner is owner]:
            self.remove(kept)
