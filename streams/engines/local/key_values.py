"""Keys and values of single rows, some of them cached for the next turn of a conversation.

a row is done ──► cached, by version and tokens ──► the next prompt that begins with them continues in the same memory
                      │ least recently used leaves    └ one that shares only a beginning gets a copy of that
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
"""Room grows by a quarter, and by at least this many tokens."""


class CacheShape(NamedTuple):
    """The layout of one token's keys and values in this model."""

    layers: int
    heads: int  # of keys and values
    width: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def read(cls, model: Any) -> CacheShape:
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
        """Tokens with stored keys and values."""
        self.data = self._empty(0)  # [layers, keys and values, heads, capacity, width]

    @property
    def nbytes(self) -> int:
        """Bytes held, including room for more tokens."""
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

    def copy_beginning(self, length: int) -> KeyValues:
        """Return a copy of the first `length` tokens."""
        copy = KeyValues(self._shape)
        copy.make_room(length)
        copy.data[..., :length, :] = self.data[..., :length, :]
        copy.length = length
        return copy

    def _capacity(self, count: int) -> int:
        capacity, needed = int(self.data.shape[3]), self.length + count
        if needed <= capacity:
            return capacity
        return -(-max(needed, capacity + capacity // 4) // BLOCK) * BLOCK

    def _empty(self, capacity: int) -> Tensor:
        shape = self._shape
        size = (shape.layers, 2, shape.heads, capacity, shape.width)
        return torch.empty(size, dtype=shape.dtype, device=shape.device)


Tokens = npt.NDArray[np.int32]


def as_tokens(ids: Sequence[int]) -> Tokens:
    """Return token ids in the form for `common_length`."""
    return np.array(ids, dtype=np.int32)


def common_length(left: Tokens, right: Tokens) -> int:
    """Return the length of the common beginning.

    >>> common_length(as_tokens([1, 2, 3]), as_tokens([1, 2, 4, 5]))
    2
    """
    length = min(len(left), len(right))
    equal = left[:length] == right[:length]
    return length if equal.all() else int(equal.argmin())


@dataclass(eq=False, slots=True)
class CachedPrefix:
    """The keys and values of a conversation that may continue."""

    owner: object  # the weights they were computed with; compared by identity
    tokens: Tokens
    cache: KeyValues


class PrefixStore:
    """Cached prefixes, the least recently used first."""

    def __init__(self) -> None:
        self._prefixes: list[CachedPrefix] = []
        self.nbytes = 0

    @property
    def tokens(self) -> int:
        """Number of tokens with stored keys and values."""
        return sum(len(prefix.tokens) for prefix in tuple(self._prefixes))

    def find(self, owner: object, tokens: Tokens) -> tuple[CachedPrefix | None, int]:
        """Return the prefix of `owner` that shares the most tokens, and their number."""
        longest: CachedPrefix | None = None
        length = 0
        for prefix in self._of_owner(owner):
            shared = common_length(prefix.tokens, tokens)
            if shared > length:
                longest, length = prefix, shared
        return longest, length

    def keep(self, owner: object, tokens: Tokens, cache: KeyValues) -> None:
        """Store a row's keys and values; those of its beginnings are no longer needed."""
        for prefix in self._of_owner(owner):
            shared = common_length(prefix.tokens, tokens)
            if shared == len(tokens):  # a longer one serves as well
                self.touch(prefix)
                return
            if shared == len(prefix.tokens):
                self.remove(prefix)
        self._prefixes.append(CachedPrefix(owner, tokens, cache))
        self.nbytes += cache.nbytes

    def touch(self, prefix: CachedPrefix) -> None:
        """Count it as just used."""
        self._prefixes.remove(prefix)
        self._prefixes.append(prefix)

    def remove(self, prefix: CachedPrefix) -> None:
        """Remove one."""
        self._prefixes.remove(prefix)
        self.nbytes -= prefix.cache.nbytes

    def shrink(self, most_bytes: int) -> None:
        """Remove the least recently used until at most this many bytes are stored."""
        while self._prefixes and self.nbytes > most_bytes:
            self.remove(self._prefixes[0])

    def forget(self, owner: object) -> None:
        """Remove all that were computed with these weights."""
        for prefix in self._of_owner(owner):
            self.remove(prefix)

    def _of_owner(self, owner: object) -> list[CachedPrefix]:
        return [prefix for prefix in self._prefixes if prefix.owner is owner]
