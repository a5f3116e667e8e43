"""Find near-duplicate texts: unlike MinHash, it misses no pair that the rules below define.

    texts ──► words (question_text.py) ──► 5-grams ──► Jaccard ≥ bound ───────────────┐
                                      └──► 12 to 60 words, all but one the same ──────┴─► union-find ──► Clusters

Two texts are compared only by their words; one with fewer than five words is one 5-gram. Of J(x, y) ≥ t it follows
that x and y share one of the |x| - ⌈t |x|⌉ + 1 rarest 5-grams of x (Chaudhuri et al., ICDE 2006), so only those are
looked up. One word of 18 changed leaves 9 of 19 5-grams, so short texts are compared word by word, too: with one word
replaced, inserted or left out, of n, they are 1 - 1/n alike.

Questions of one template are not near-duplicates. So two texts of fewer than 100 words are not if their numbers differ,
or if only numbers, operators and names do; nor are short ones if more than 3 of them differ in the same word.

Not covered: paraphrases and translations; one word of fewer than 12, which is often the topic of the question; a single
character of a script without spaces.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from streams.rows.question_text import is_ideograph, words_of
from streams.scorers.canonical_text import comparison_form

SHINGLE_WORDS = 5
NEAR = 0.8
"""Default similarity above which two texts are near-duplicates."""
LEAST_WORDS = 12
"""Of a question that is compared word by word."""
HALF = LEAST_WORDS // 2
"""Words that two texts with one difference share at the beginning, or at the end."""
TEMPLATE = 3
"""More texts that differ in the same word are a template."""
QUESTION_WORDS = 100
"""A text with fewer words is a question: other numbers or names make it a different one."""
Exact = tuple[str, ...]
Shingles = frozenset[Exact]


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
    """Join the clusters of texts that are almost the same: alike by `bound` or more."""
    first_rows: dict[Exact, int] = {}
    by_row: dict[int, ComparedText] = {}
    for row, text in enumerate(texts):
        compared = compared_text(text)
        first = first_rows.setdefault(compared.words, row)
        clusters.join(row, first)
        if first == row:
            by_row[row] = compared
    templates = Clusters(len(texts))
    for row, similar in _pairs_but_for_a_word(by_row, bound, templates):
        clusters.join(row, similar)
    _join_by_shingles(by_row, bound, clusters, templates)


class ComparedText(NamedTuple):
    """A text as it is compared with others."""

    words: Exact
    numbers: Exact
    """In order of size; none of a text that is no question, but a document."""
    frame: Exact | None
    """Its words without numbers, operators and names; None: it is no question, but a document."""

    def asks_something_else(self, other: ComparedText) -> bool:
        """Return whether it is another question, however alike the words: by its numbers, or by nothing but names."""
        return self.numbers != other.numbers or (self.frame is not None and self.frame == other.frame)


def compared_text(text: str) -> ComparedText:
    """Return how a text is compared.

    >>> compared_text("What is 4 + 7?").words
    ('what', 'is', '4', '+', '7')
    """
    read = words_of(text)
    if not read.exact:
        return ComparedText((comparison_form(text).casefold().strip(),), (), None)
    if len(read.exact) >= QUESTION_WORDS:
        return ComparedText(read.exact, (), None)
    return ComparedText(read.exact, tuple(sorted(word for word in read.exact if word[0].isdigit())), read.frame)


# --- by 5-grams -------------------------------------------------------------------------------------------------------


def _join_by_shingles(
    by_row: Mapping[int, ComparedText], bound: float, clusters: Clusters, templates: Clusters
) -> None:
    """Join the clusters of rows that are alike by their 5-grams, and of no template."""
    shingles_of = {row: shingles(compared.words) for row, compared in by_row.items()}
    counts = Counter(shingle for row_shingles in shingles_of.values() for shingle in row_shingles)
    rows_by_shingle: defaultdict[tuple[Exact, Exact], defaultdict[int, list[int]]]
    rows_by_shingle = defaultdict(lambda: defaultdict(list))
    """By numbers and 5-gram, then by template: rows of one template are not compared."""
    for row, row_shingles in shingles_of.items():
        compared, template = by_row[row], templates.root(row)
        size = len(row_shingles) - math.ceil(bound * len(row_shingles) - 1e-9) + 1
        common = [shingle for shingle in row_shingles if counts[shingle] > 1]
        if len(row_shingles) - len(common) >= size:  # its rarest 5-grams are in no other text
            continue
        prefix = sorted(row_shingles, key=lambda shingle: (counts[shingle], shingle))[:size]
        places = [rows_by_shingle[compared.numbers, shingle] for shingle in prefix]
        candidates = (rows for place in places for root, rows in place.items() if root != template)
        for candidate in set().union(*candidates):
            if (
                clusters.root(candidate) != clusters.root(row)
                and jaccard(row_shingles, shingles_of[candidate]) >= bound
            ):
                clusters.join(row, candidate)
        for place in places:
            place[template].append(row)


def shingles(text_words: Sequence[str]) -> Shingles:
    """Return the 5-grams of words; of fewer than five words, the whole."""
    count = max(1, len(text_words) - SHINGLE_WORDS + 1)
    return frozenset(tuple(text_words[start : start + SHINGLE_WORDS]) for start in range(count))


def jaccard(first: Shingles, second: Shingles) -> float:
    """Return the share that two sets have in common of what they have together."""
    common = len(first & second)
    return common / (len(first) + len(second) - common)


# --- word by word -----------------------------------------------------------------------------------------------------


def _pairs_but_for_a_word(
    by_row: Mapping[int, ComparedText], bound: float, templates: Clusters
) -> Iterator[tuple[int, int]]:
    """Yield the pairs of questions that have all words but one in common, and join those that are of one template.

    A word is either not among the first six, or not among the last six. So two such texts begin or end alike.
    """
    frames: dict[tuple[Exact, Exact], int] = {}
    starts, ends = defaultdict[Exact, list[int]](list), defaultdict[Exact, list[int]](list)
    for row, compared in by_row.items():
        if compared.frame is not None:
            templates.join(row, frames.setdefault((compared.frame, compared.numbers), row))
            if len(compared.words) >= LEAST_WORDS:
                starts[compared.words[:HALF]].append(row)
                ends[compared.words[-HALF:]].append(row)
    for places, buckets in ((slice(HALF, None), starts), (slice(HALF), ends)):
        for rows in buckets.values():
            if len(rows) > 1:
                pairs = _but_for_a_word(by_row, rows, places, templates)
                yield from (pair for pair in pairs if 1 - 1 / len(by_row[pair[0]].words) >= bound)


def _but_for_a_word(
    by_row: Mapping[int, ComparedText], rows: Iterable[int], places: slice, templates: Clusters
) -> Iterator[tuple[int, int]]:
    """Yield the pairs of rows without the same word at one of these places, or without any there."""
    whole: dict[Exact, int] = {}
    without: defaultdict[tuple[int, Exact], list[int]] = defaultdict(list)
    for row in rows:
        text = by_row[row].words
        whole[text] = row
        for place in range(len(text))[places]:
            if text[place].isalpha() and not is_ideograph(text[place]):
                without[place, text[:place] + text[place + 1 :]].append(row)
    for (_, rest), alike in without.items():
        alike += [whole[rest]] if rest in whole else []
        if len(alike) > TEMPLATE:
            for row in alike:
                templates.join(row, alike[0])
            continue
        for row, similar in combinations(alike, 2):
            if not by_row[row].asks_something_else(by_row[similar]):
                yield row, similar
