"""Per-token numbers as bytes: token ids, logprobs and loss masks; and bytes of any other kind.

    [1, 2, 256] ──► TokenIds.of ──► 01 00 00 00 02 00 00 00 00 01 00 00 ──► Avro bytes, numpy, a digest: never copied
                                    little-endian, whatever the machine

So a record of a thousand tokens is read and written as a few values, not as thousands. The views compare and hash by
their bytes, their items are plain Python numbers, and a slice is a view of the same kind. An existing view is sound:
its bytes are checked when it is made, at C speed.
"""

from __future__ import annotations

import math
import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, overload

if TYPE_CHECKING:
    import numpy as np

V = TypeVar("V", int, float, bool)

MAX_LOGPROB = 2.0**-10
"""Nats by which rounding may lift a logprob above 0. A power of 2 is the same number in 32 bits and in 64."""
MAX_REPR = 8
"""Maximum items in a repr; of a longer view, three are printed."""
_HIGH_BYTES = bytes(range(0x80, 0xFF))
"""The last byte of every float32 from -1.7e38 to -0.0, and of no other."""


class PerToken(Sequence[V]):
    """A number per token, over bytes."""

    __slots__ = ("data",)
    data: bytes

    CODE: ClassVar[str]
    """Of an item, as in `struct`."""
    BYTES: ClassVar[int]
    """Of an item."""
    LAYOUT: ClassVar[str]
    """The layout in words, for the Avro schema."""
    TYPES: ClassVar[frozenset[type]]
    """Types of the items that `of` takes."""

    def __init__(self, data: bytes = b"") -> None:
        """View these bytes. Raises ValueError if they break a rule, with the place, the expected and the actual
        value."""
        if self._is_unsound(data):
            raise ValueError(f"{type(self).__name__}{self._problem(data)}")
        _put(self, data)

    @classmethod
    def of(cls, values: Iterable[V]) -> Self:
        """Return a view of these numbers. Raises ValueError for the first that is not a number, or out of range."""
        items = tuple(values)
        if not set(map(type, items)) <= cls.TYPES:
            place, odd = next((i, item) for i, item in enumerate(items) if type(item) not in cls.TYPES)
            (expected, *_) = sorted(kind.__name__ for kind in cls.TYPES)
            raise ValueError(f"{cls.__name__}[{place}]: expected {expected}, got {type(odd).__name__} {odd!r:.60}")
        try:
            return cls(struct.pack(f"<{len(items)}{cls.CODE}", *items))
        except (struct.error, OverflowError):
            place = next(i for i, item in enumerate(items) if cls._broken(item))
            problem = f"expected {cls._broken(items[place])}, got {items[place]!r:.60}"
            raise ValueError(f"{cls.__name__}[{place}]: {problem}") from None

    def numpy(self) -> np.ndarray[tuple[int], np.dtype[Any]]:
        """Return the items as a read-only array over the same memory."""
        import numpy as np

        return np.frombuffer(self.data, f"<{self.CODE}")

    def __len__(self) -> int:
        return len(self.data) // self.BYTES

    def __iter__(self) -> Iterator[V]:
        return iter(self._items(self.data))

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> V | Self:
        if isinstance(index, slice):
            items: memoryview[Any] = memoryview(self.data).cast(self.CODE)  # type: ignore[call-overload]  # one of them
            return type(self)(items[index].tobytes())
        start = range(len(self))[index] * self.BYTES
        return self._items(self.data[start : start + self.BYTES])[0]

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        items = ", ".join(map(repr, self if len(self) <= MAX_REPR else self[:3]))
        return f"{type(self).__name__}([{items}{'' if len(self) <= MAX_REPR else f', … {len(self)} in all'}])"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: make another one")

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (self.data,)

    @classmethod
    def _items(cls, data: bytes) -> tuple[V, ...]:
        return struct.unpack(f"<{len(data) // cls.BYTES}{cls.CODE}", data)

    @classmethod
    def _problem(cls, data: bytes) -> str:
        """Return the problem of unsound bytes."""
        if len(data) % cls.BYTES:
            return f": expected {cls.LAYOUT}, got {len(data)} bytes"
        place, item = next((i, item) for i, item in enumerate(cls.items_of(data)) if cls._broken(item))
        return f"[{place}]: expected {cls._broken(item)}, got {item}"

    @classmethod
    def items_of(cls, data: bytes) -> Sequence[Any]:
        """Return the items of bytes that may be unsound."""
        return cls._items(data)

    @classmethod
    @abstractmethod
    def _is_unsound(cls, data: bytes) -> bool:
        """Return whether any item breaks a rule. No loop over the items: this is called for every record."""

    @classmethod
    @abstractmethod
    def _broken(cls, item: V) -> str | None:
        """Return the expectation that an item breaks, or None."""


_put = PerToken.data.__set__  # type: ignore[attr-defined]  # the slot's own, which `__setattr__` does not stop


class TokenIds(PerToken[int]):
    """Token ids, 0 or more.

    >>> TokenIds.of([1, 2, 256])
    TokenIds([1, 2, 256])
    """

    __slots__ = ()
    CODE, BYTES, LAYOUT = "i", 4, "little-endian int32, 4 bytes a token"
    TYPES = frozenset({int})

    @classmethod
    def _is_unsound(cls, data: bytes) -> bool:
        return bool(len(data) % 4) or not data[3::4].isascii()  # the sign is the first bit of each last byte

    @classmethod
    def _broken(cls, item: int) -> str | None:
        return None if 0 <= item < 1 << 31 else f"an id from 0 to {(1 << 31) - 1}"


class Logprobs(PerToken[float]):
    """Logprobs in nats: finite, and not above 0.

    >>> Logprobs.of([-0.5, -0.25])
    Logprobs([-0.5, -0.25])
    """

    __slots__ = ()
    CODE, BYTES, LAYOUT = "f", 4, "little-endian float32, 4 bytes a token"
    TYPES = frozenset({float, int})

    @classmethod
    def _is_unsound(cls, data: bytes) -> bool:
        if len(data) % 4:
            return True
        if not data[3::4].translate(None, _HIGH_BYTES):
            return False
        items = cls._items(data)  # greedy answers have a 0.0
        return not (math.isfinite(sum(items)) and max(items) <= MAX_LOGPROB)

    @classmethod
    def _broken(cls, item: float) -> str | None:
        if not -_FLOAT32_MAX <= item <= _FLOAT32_MAX:  # a NaN is not, either
            return "a finite number of 32 bits"
        return None if item <= MAX_LOGPROB else "a logprob, which is at most 0"


_FLOAT32_MAX = 3.4028234663852886e38


class LossMask(PerToken[bool]):
    """Whether the policy wrote the token, so that the loss is computed on it.

    >>> LossMask.of([True, False]).data
    b'\\x01\\x00'
    """

    __slots__ = ()
    CODE, BYTES, LAYOUT = "?", 1, "1 byte a token, 0 or 1"
    TYPES = frozenset({bool})

    @property
    def trained_tokens(self) -> int:
        """The number of tokens that the policy wrote."""
        return self.data.count(1)

    @classmethod
    def _is_unsound(cls, data: bytes) -> bool:
        return bool(data.translate(None, b"\0\1"))

    @classmethod
    def items_of(cls, data: bytes) -> Sequence[Any]:
        return data

    @classmethod
    def _broken(cls, item: int) -> str | None:
        return None if item in (0, 1) else "0 or 1"


class Octets(PerToken[int]):
    """Bytes with a meaning only to their owner, e.g. a tensor's. All are sound.

    >>> Octets.of([1, 255]).data
    b'\\x01\\xff'
    """

    __slots__ = ()
    CODE, BYTES, LAYOUT = "B", 1, "bytes of any kind"
    TYPES = frozenset({int})

    @classmethod
    def _is_unsound(cls, data: bytes) -> bool:
        return False

    @classmethod
    def _broken(cls, item: int) -> str | None:
        return None if 0 <= item < 256 else "a byte, from 0 to 255"


VIEWS: tuple[type[PerToken[Any]], ...] = (TokenIds, Logprobs, LossMask, Octets)
