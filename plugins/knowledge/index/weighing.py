"""Choose the share of vectors in hybrid searches: on one half of some questions, measured on the other.

questions with the documents that are meant ──► drawn halves ──► recall in ten by weight ──► the best of the first half
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plugins.knowledge.index.corpus import SearchQuery
from plugins.knowledge.index.generation import IndexGeneration
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
    ordered = sorted(questions, key=lambda question: hashlib.sha256(repr(question).encode()).digest())
    generation = documents.whole(wait_s)
    asked = [*zip(ordered, generation.embedder.embed([question.query for question in ordered]), strict=True)]
    halves = asked[::2], asked[1::2]
    recalls = [(weight, *(_recall(generation, index, half, weight) for half in halves)) for weight in WEIGHTS]
    best = max(recall for _, recall, _ in recalls)
    places = [place for place, (_, recall, _) in enumerate(recalls) if recall == best]
    middle = places[len(places) // 2]
    return [
        WeightRecall(weight, first, second, place == middle) for place, (weight, first, second) in enumerate(recalls)
    ]


def _recall(
    generation: IndexGeneration, index: str, asked: Sequence[tuple[MeantDocument, np.ndarray]], weight: float
) -> float:
    recalled = 0
    for question, vector in asked:
        hits = generation.search(index, SearchQuery(question.query, vector, LIMIT, weight)).hits
        recalled += question.document_id in {hit.row.document.document_id for hit in hits}
    return recalled / len(asked)
