"""Texts that are almost the same: no pair is missed, as MinHash would miss some.

    texts ──► words, in one case and Unicode form ──► 5-grams ──► Jaccard ≥ bound ──► union-find ──► Clusters

Two texts are compared by their words alone; one with fewer than five words is one 5-gram. Of J(x, y) ≥ t it follows
that x and y share one of the |x| - ⌈t |x|⌉ + 1 rarest 5-grams of x (Chaudhuri et al., ICDE 2006), so only those are
looked up.

Not covered: what says the same in other words, another language, or with other numbers in a short text.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

SHINGLE_WORDS = 5
NEAR = 0.8
"""Jaccard index from which on two texts are almost the same, unless a caller says another."""
_WORD = re.compile(r"\w+")
Shingles = frozenset[tuple[str, ...]]


class Clusters:
    """A union-find over the numbers of rows."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def root(self, row: int) -> int:
        """Return the lowest row of its cluster."""
        parents = self._parents
        while parents[row] != row:
            parents[row] = row = parents[parents[row]]
        return row

    def join(self, first: int, second: int) -> None:
        """Make two clusters one."""
        low, high = sorted((self.root(first), self.root(second)))
        self._parents[high] = low


def join_similar(texts: Sequence[str], bound: float, clusters: Clusters) -> None:
    """Join the clusters of texts whose 5-grams have a Jaccard index of `bound` or more."""
    first_rows: dict[tuple[str, ...], int] = {}
    for row, text in enumerate(texts):
        clusters.join(row, first_rows.setdefault(words(text), row))
    by_row = {row: shingles(text_words) for text_words, row in first_rows.items()}
    counts = Counter(shingle for row_shingles in by_row.values() for shingle in row_shingles)
    rows_by_shingle: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for row, row_shingles in by_row.items():
        size = len(row_shingles) - math.ceil(bound * len(row_shingles) - 1e-9) + 1
        common = [shingle for shingle in row_shingles if counts[shingle] > 1]
        if len(row_shingles) - len(common) >= size:  # its rarest 5-grams are in no other text
            continue
        rarest = sorted(row_shingles, key=lambda shingle: (counts[shingle], shingle))
        prefix = rarest[:size]
        for other in set().union(*(rows_by_shingle[shingle] for shingle in prefix)):
            if clusters.root(other) != clusters.root(row) and jaccard(row_shingles, by_row[other]) >= bound:
                clusters.join(row, other)
        for shingle in prefix:
            rows_by_shingle[shingle].append(row)


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text, in one case and one Unicode form; a text without any is one.

    >>> words("What is 4 + 7?")
    ('what', 'is', '4', '7')
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    return tuple(_WORD.findall(plain)) or (plain.strip(),)


def shingles(text_words: Sequence[str]) -> Shingles:
    """Return the 5-grams of words; of fewer than five words, the whole."""
    count = max(1, len(text_words) - SHINGLE_WORDS + 1)
    return frozenset(tuple(text_words[start : start + SHINGLE_WORDS]) for start in range(count))


def jaccard(first: Shingles, second: Shingles) -> float:
    """Return the share that two sets have in common of what they have together."""
    common = len(first & second)
    return common / (len(first) + len(second) - common)
