"""Choose the share of vectors in hybrid searches: on one half of some questions, measured on the other.

questions with the documents that are meant ──► drawn halves ──► recall in ten by weight ──► the best of the first half
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from plugins.knowledge.index.corpus import SearchQuery
from plugins.knowledge.index.knowledge_index import KnowledgeIndex

WEIGHTS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
"""0: words alone, 1: vectors alone."""
LIMIT = 10


class MeantDocument(NamedTuple):
    """A question, and the document that is to be found with it."""

    query: str
    document_id: str


class WeightRecall(NamedTuple):
    """How often a weight finds what is meant among the first ten."""

    weight: float
    development: float
    held_out: float
    chosen: bool


def weigh(
    documents: KnowledgeIndex, index: str, questions: Sequence[MeantDocument], wait_s: float
) -> list[WeightRecall]:
    """Return the recall of each weight; of those that are best on the first half the middle one is chosen.

    Raises as `KnowledgeIndex.search`.
    """
    ordered = sorted(questions, key=lambda one: hashlib.sha256(repr(one).encode()).digest())
    halves = ordered[::2], ordered[1::2]
    recalls = [
        (
            weight,
            _recall(documents, index, halves[0], weight, wait_s),
            _recall(documents, index, halves[1], weight, wait_s),
        )
        for weight in WEIGHTS
    ]
    best = max(recall for _, recall, _ in recalls)
    places = [place for place, (_, recall, _) in enumerate(recalls) if recall == best]
    middle = places[len(places) // 2]
    return [
        WeightRecall(weight, first, second, place == middle) for place, (weight, first, second) in enumerate(recalls)
    ]


def _recall(
    documents: KnowledgeIndex, index: str, questions: Sequence[MeantDocument], weight: float, wait_s: float
) -> float:
    found = 0
    for question in questions:
        hits = documents.search(index, SearchQuery(question.query, None, LIMIT, weight), wait_s).hits
        found += question.document_id in {hit.row.document.document_id for hit in hits}
    return found / len(questions)
