"""Rank chunks by the words of a query: BM25 (Robertson and Zaragoza 2009), over what is there now.

    add(row, text), remove(row, text) ──► postings by word, counts of what is there ──► scores(query): float64 [rows]

It is numpy over arrays, since an index of a log has to take a document in at once and answer as a new one would: SQL in
DuckDB took 4.5 ms a query, bm25s adds nothing to an index, and tantivy counts removed documents until it merges.

Not covered: stems; `tide` does not find `tides`, which vectors do.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter, defaultdict

import numpy as np

K1, B = 1.2, 0.75
_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """Return the words of a text, without their case and form.

    >>> words_of("Tides, ﬁsh & the MOON_1")
    ['tides', 'fish', 'the', 'moon_1']
    """
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class WordIndex:
    """The words of numbered chunks. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[str, array[int]] = defaultdict(lambda: array("i"))
        self._counts: dict[str, array[int]] = defaultdict(lambda: array("i"))
        self._frequency: Counter[str] = Counter()
        """Chunks with a word, of those that are there."""
        self._lengths = array("i")
        """Of every row that was added."""
        self._chunks = self._words = 0
        """How many there are now."""

    def add(self, text: str) -> int:
        """Take in a chunk, and return its row: the number of chunks that were added before."""
        words, row = Counter(words_of(text)), len(self._lengths)
        for word, count in words.items():
            self._rows[word].append(row)
            self._counts[word].append(count)
        self._frequency.update(words.keys())
        self._lengths.append(words.total())
        self._chunks, self._words = self._chunks + 1, self._words + self._lengths[row]
        return row

    def remove(self, row: int, text: str) -> None:
        """Count a chunk no longer; its row keeps its number."""
        self._frequency.subtract({*words_of(text)})
        self._chunks, self._words = self._chunks - 1, self._words - self._lengths[row]

    def scores(self, query: str) -> np.ndarray:
        """Return the score of each row: float64 [rows]; 0 where no word of the query is. Rows that were removed have
        scores, too. The same chunks have the same scores, whatever rows they are in."""
        scores = np.zeros(len(self._lengths))
        if not self._words:
            return scores
        lengths = np.frombuffer(self._lengths, np.int32) * (self._chunks / self._words)
        norms = K1 * (1 - B + B * lengths)
        for word, times in sorted(Counter(words_of(query)).items()):
            if frequency := self._frequency[word] if word in self._rows else 0:
                rows = np.frombuffer(self._rows[word], np.int32)
                counts = np.frombuffer(self._counts[word], np.int32)
                weight = times * np.log1p((self._chunks - frequency + 0.5) / (frequency + 0.5))
                scores[rows] += weight * (K1 + 1) * counts / (counts + norms[rows])
        return scores
