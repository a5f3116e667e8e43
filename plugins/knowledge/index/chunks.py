"""Cut a document into chunks by a rule with a version.

    text ──► paragraphs, joined while they fit ──► too long for one: its sentences, else its words ──► (start, end)

The same text has the same chunks in every process. A chunk is a part of the text, so an answer can be looked up in it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from schemas.events import DocumentEvent

_ENDS = (
    re.compile(r"\n(?:[^\S\n]*\n)+[^\S\n]*|\n(?=#{1,6} )"),
    re.compile(r"(?<=[.!?…。])\s+|\n+"),
    re.compile(r"\s+"),
)
"""Between which a text is cut: paragraphs and headings, sentences and lines, words."""


class Chunk(NamedTuple):
    """A part of a document."""

    ordinal: int
    start: int
    end: int


def rule_of(characters: int) -> str:
    """Return the name of the rule by which chunks have at most so many characters. Another cut is another rule."""
    return f"paragraphs/1:{characters}"


def chunk_key(event: DocumentEvent, ordinal: int, rule: str, embedder: str) -> bytes:
    """Return the key of a chunk's vector: of its document's text, its place, its rule and its embedder."""
    return hashlib.sha256(f"{event.digest}:{ordinal}:{rule}:{embedder}".encode()).digest()


def chunks_of(text: str, characters: int) -> list[Chunk]:
    """Return the chunks of a text, each of at most so many characters."""
    spans = _join(text, _parts(text, 0, len(text), characters), characters)
    return [Chunk(ordinal, *span) for ordinal, span in enumerate(spans)]


def _parts(text: str, start: int, end: int, characters: int, level: int = 0) -> Iterator[tuple[int, int]]:
    """Yield parts without space around them that are short enough."""
    part = text[start:end]
    start, end = end - len(part.lstrip()), start + len(part.rstrip())
    if start >= end:
        return
    if end - start <= characters:
        yield start, end
        return
    if level == len(_ENDS):
        yield from ((first, min(first + characters, end)) for first in range(start, end, characters))
        return
    for match in _ENDS[level].finditer(text, start, end):
        yield from _parts(text, start, match.start(), characters, level + 1)
        start = match.end()
    yield from _parts(text, start, end, characters, level + 1)


def _join(text: str, parts: Iterator[tuple[int, int]], characters: int) -> Iterator[tuple[int, int]]:
    """Yield neighbours as one while they fit; a heading begins a new one."""
    first: tuple[int, int] | None = None
    for start, end in parts:
        if first is not None and end - first[0] <= characters and not text.startswith("#", start):
            first = first[0], end
            continue
        if first is not None:
            yield first
        first = start, end
    if first is not None:
        yield first
