"""The chunks of one index: ranked by words, by vectors, or by both.

    put(document, its chunks and vectors), remove ──► rows ──► filter ──► best by words ─┐
                                                                └──────► best by vectors ─┴─► reciprocal ranks ──► hits

Filters choose rows before the best are taken, so a filtered search has as many hits as there are. The order is that of
scores, and of equal scores that of names. A chunk's products are its own, since they are taken row by row: the score
does not depend on which row a chunk is in, so an index that is made again answers alike. (A product with the
whole matrix is no faster, and takes both cores.)

Reciprocal ranks: Cormack, Clarke and Buettcher 2009, with a share for each ranking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from plugins.knowledge.index.chunks import Chunk
from plugins.knowledge.index.word_index import WordIndex
from schemas.events import DocumentEvent

SearchMode = Literal["hybrid", "words", "vectors"]
Filter = Mapping[str, str | Sequence[str]]
"""Values of metadata that a document has to have: one, or one of several."""
DEPTH = 100
"""Hits of each ranking that are fused, at least."""
RANK_OFFSET = 60
"""Of the paper: how little the first ranks differ."""


@dataclass(frozen=True)
class SearchQuery:
    """A search: its text, its filter, and how many chunks."""

    text: str
    vector: np.ndarray | None
    """float32 [dimensions]; None: words alone."""
    limit: int
    weight: float = 0.5
    """Share of vectors, 0 to 1."""
    filter: Filter | None = None
    mode: SearchMode = "hybrid"


class ChunkRow(NamedTuple):
    """A chunk in the index."""

    document: DocumentEvent
    chunk: Chunk
    key: bytes

    @property
    def text(self) -> str:
        """Its part of the document."""
        return (self.document.text or "")[self.chunk.start : self.chunk.end]

    @property
    def order(self) -> tuple[str, int]:
        """Its place among those of equal score."""
        return self.document.document_id, self.chunk.ordinal


class Hit(NamedTuple):
    """A chunk that was found."""

    row: ChunkRow
    score: float
    word_rank: int | None
    vector_rank: int | None


class Corpus:
    """The chunks of one index. Not thread-safe."""

    def __init__(self, dimensions: int) -> None:
        self._words, self._rows = WordIndex(), list[ChunkRow | None]()
        self._of: dict[str, list[int]] = {}
        """Rows of each document."""
        self._vectors = np.zeros((64, dimensions), np.float32)
        self._present = np.zeros(64, np.bool_)
        self._digest = 0

    def __len__(self) -> int:
        """Documents in it."""
        return len(self._of)

    @property
    def rows(self) -> list[ChunkRow]:
        """Every chunk."""
        return [row for row in self._rows if row is not None]

    @property
    def digest(self) -> str:
        """Of its chunks, whatever order they came in."""
        return f"{self._digest:064x}"

    def put(self, document: DocumentEvent, chunks: Sequence[tuple[Chunk, bytes, np.ndarray]]) -> None:
        """Take in the chunks of a document, in the place of those that it had."""
        self.remove(document.document_id)
        rows = self._of[document.document_id] = []
        for chunk, key, vector in chunks:
            entry = ChunkRow(document, chunk, key)
            row = self._words.add(entry.text)
            if row == len(self._vectors):
                self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
                self._present = np.concatenate([self._present, np.zeros_like(self._present)])
            self._rows.append(entry)
            self._vectors[row], self._present[row] = vector, True
            self._digest = (self._digest + _number_of(entry)) % (1 << 256)
            rows.append(row)

    def remove(self, document_id: str) -> None:
        """Leave out a document; it has no effect if there is none."""
        for row in self._of.pop(document_id, ()):
            if (entry := self._rows[row]) is not None:
                self._words.remove(row, entry.text)
                self._digest = (self._digest - _number_of(entry)) % (1 << 256)
            self._rows[row], self._present[row] = None, False
        if np.count_nonzero(self._present) < len(self._rows) // 2 - 1024:
            self._pack()

    def search(self, query: SearchQuery) -> list[Hit]:
        """Return the best chunks."""
        allowed, depth = self._mask(query.filter), max(DEPTH, query.limit)
        by_words, by_vectors = list[int](), list[int]()
        if query.mode != "vectors":
            word_scores = self._words.scores(query.text)
            by_words = self._best(word_scores, allowed & (word_scores > 0), depth)
        if query.mode != "words" and query.vector is not None:
            by_vectors = self._best(np.vecdot(self._vectors[: len(self._rows)], query.vector), allowed, depth)
        weight = {"words": 0.0, "vectors": 1.0, "hybrid": query.weight}[query.mode]
        scores: dict[int, float] = {}
        for rows, share in ((by_words, 1 - weight), (by_vectors, weight)):
            for rank, row in enumerate(rows, start=1):
                scores[row] = scores.get(row, 0.0) + share * (RANK_OFFSET + 1) / (RANK_OFFSET + rank)
        ranks = [{row: rank for rank, row in enumerate(rows, start=1)} for rows in (by_words, by_vectors)]
        hits = [Hit(self._row(row), score, *(of.get(row) for of in ranks)) for row, score in scores.items() if score]
        return sorted(hits, key=lambda hit: (-hit.score, hit.row.order))[: query.limit]

    def _row(self, row: int) -> ChunkRow:
        entry = self._rows[row]
        assert entry is not None  # noqa: S101 - rows that are present have one
        return entry

    def _mask(self, filter_: Filter | None) -> np.ndarray:
        """Return which rows a filter lets in: bool [rows]."""
        present = self._present[: len(self._rows)]
        if not filter_:
            return present
        allowed = np.zeros_like(present)
        values = [(name, {value} if isinstance(value, str) else {*value}) for name, value in filter_.items()]
        for rows in self._of.values():
            if rows and all(self._row(rows[0]).document.metadata.get(name) in of for name, of in values):
                allowed[rows] = True
        return allowed

    def _best(self, scores: np.ndarray, allowed: np.ndarray, depth: int) -> list[int]:
        """Return the rows with the best scores in their order, of those that are allowed."""
        rows = np.flatnonzero(allowed)
        if len(rows) > depth:
            rows = rows[scores[rows] >= np.partition(scores[rows], -depth)[-depth]]
        return sorted(rows.tolist(), key=lambda row: (-scores[row], self._row(row).order))[:depth]

    def _pack(self) -> None:
        """Copy the rows without those that are left out, which would be read by each search."""
        packed = Corpus(self._vectors.shape[1])
        for rows in self._of.values():
            entries = [self._row(row) for row in rows]
            chunks = [(entry.chunk, entry.key, self._vectors[row]) for entry, row in zip(entries, rows, strict=True)]
            if entries:
                packed.put(entries[0].document, chunks)
        self.__dict__.update(packed.__dict__)


def _number_of(entry: ChunkRow) -> int:
    """Return a chunk's part of the digest: a sum, so that a chunk is added and taken away without the others."""
    name = entry.document.document_id.encode()
    facts = repr(sorted(entry.document.metadata.items())).encode()
    return int.from_bytes(hashlib.sha256(b"\0".join((name, facts, entry.key))).digest())
