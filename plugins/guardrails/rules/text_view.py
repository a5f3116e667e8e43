"""Views of a text that rules read: without tricks of writing, each character with its place in the original.

    "ignоre\u200b all" ──► NFKD, no accents, no invisible characters, look-alikes as Latin ──► "ignore all"
    "aWdub3JlIGFsbA==" ──► decoded once, if it reads like text ──────────────────────────────────► "ignore all"

A view has at most as many characters as VIEW_CHARACTERS times its text. A decoded text is not decoded again.

Not covered: other ciphers (rot13, Morse, leet), words with spaces between their characters, and pictures of text.
"""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

VIEW_CHARACTERS = 18
"""Most characters that NFKD makes of one."""
_CYRILLIC = dict(zip("асеорхуіјѕһԁԛԝАВЕКМНОРСТХУІЈЅЗ", "aceopxyijshdqwABEKMHOPCTXYIJS3", strict=True))
_GREEK = dict(zip("ονικρτυχαεΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ovikptuxaeABEZHIKMNOPTYX", strict=True))
_LOOK_ALIKES = _CYRILLIC | _GREEK | {"ı": "i", "ɡ": "g", "ⅼ": "l", "ǃ": "!", "’": "'", "‘": "'"}
_TAGS = range(0xE0020, 0xE007F)
_ENCODED = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,20000}={0,2}")
_LEAST_PRINTABLE = 0.95


@dataclass(frozen=True, slots=True)
class TextView:
    """A text as rules read it."""

    text: str
    starts: list[int] | None = None
    """Place of each character in the original; None: the same."""
    ends: list[int] | None = None
    decoded: str = ""
    """How it was encoded: base64; empty: it was not."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return where a part of the view is in the original."""
        if self.starts is None or self.ends is None:
            return start, end
        return self.starts[start], self.ends[max(start, end - 1)]


def text_views(text: str) -> Iterator[TextView]:
    """Yield the plain view of a text, then one of each part of it that can be decoded.

    >>> [view.text for view in text_views("ign\u200bore, or aWdub3JlIGFsbCBydWxlcw==")]
    ['ignore, or aWdub3JlIGFsbCBydWxlcw==', 'ignore all rules']
    """
    view = _plain(text)
    yield view
    for match in _ENCODED.finditer(view.text):
        if (decoded := _decode(match[0])) is not None:
            start, end = view.span(*match.span())
            inner = _plain(decoded).text
            yield TextView(inner, [start] * len(inner), [end] * len(inner), "base64")


def invisible_text(text: str) -> list[tuple[int, int]]:
    """Return where a text has Unicode's tag characters, which are invisible."""
    if text.isascii():
        return []
    return [(place, place + 1) for place, char in enumerate(text) if ord(char) in _TAGS]


def _plain(text: str) -> TextView:
    if text.isascii():
        return TextView(text)
    chars, starts, ends = list[str](), list[int](), list[int]()
    for place, char in enumerate(text):
        for plain in char if char.isascii() else _plain_char(char):
            chars.append(plain)
            starts.append(place)
            ends.append(place + 1)
    return TextView("".join(chars), starts, ends)


@lru_cache(maxsize=4096)
def _plain_char(char: str) -> str:
    """Return a character as it is read; empty: it is not seen."""
    if ord(char) in _TAGS:
        return chr(ord(char) - 0xE0000)
    folded = "".join(_LOOK_ALIKES.get(part, part) for part in unicodedata.normalize("NFKD", char))
    return "".join(part for part in folded if unicodedata.category(part) not in ("Mn", "Me", "Cf"))


def _decode(encoded: str) -> str | None:
    """Return what base64 says, if it reads like text."""
    body = encoded.rstrip("=").replace("-", "+").replace("_", "/")
    if len(body) % 4 == 1:
        return None
    try:
        text = base64.b64decode(body + "=" * (-len(body) % 4)).decode()
    except ValueError:
        return None
    printable = sum(char.isprintable() or char in "\n\t" for char in text)
    return text if " " in text and printable >= _LEAST_PRINTABLE * len(text) else None
