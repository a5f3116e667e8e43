"""Order a few texts by how well they answer a query, without an index: as a search of an index of them would.

texts ──► vectors, those of before from a cache ──► Corpus ──► fusion of words and vectors ──► scores
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from plugins.knowledge.embedders import Embedder, embedder
from plugins.knowledge.index.chunks import Chunk
from plugins.knowledge.index.corpus import Corpus, SearchQuery
from plugins.knowledge.log.knowledge_settings import Knowledge
from schemas.events import DocumentEvent
from streams.settings.model import Settings

MOST_CACHED = 20_000
_CACHED: dict[bytes, np.ndarray] = {}
"""Vectors of memories, which each run asks for again."""


def fuse(query: str, texts: Sequence[str], vectors: np.ndarray, weight: float) -> list[float]:
    """Return the score of each text. `vectors`: of the query and the texts, float32 [1 + texts, dimensions]."""
    corpus, scores = Corpus(vectors.shape[1]), [0.0] * len(texts)
    for place, text in enumerate(texts):
        document = DocumentEvent(
            event_id="",
            document_id=f"{place:06}",
            created_at=0,
            kind="added",
            sequence=0,
            actor="",
            reason="",
            text=text,
        )
        corpus.put(document, [(Chunk(0, 0, len(text)), b"", vectors[place + 1])])
    for hit in corpus.search(SearchQuery(query, vectors[0], len(scores), weight)):
        scores[int(hit.row.document.document_id)] = hit.score
    return scores


def rank_memories(settings: Settings, question: str, texts: Sequence[str]) -> list[int]:
    """Return the places of texts, the one that says most about a question first. Raises the embedder's errors."""
    knowledge = settings.of_plugin(Knowledge)
    vectors = _vectors(embedder(knowledge.embedder), [question, *texts])
    scores = fuse(question, texts, vectors, knowledge.weight)
    return sorted(range(len(texts)), key=lambda place: (-scores[place], place))


SEARCHES = (rank_memories,)


def _vectors(model: Embedder, texts: Sequence[str]) -> np.ndarray:
    """Return the vectors of texts: float32 [texts, dimensions]."""
    keys = [hashlib.sha256(f"{model.digest}:{text}".encode()).digest() for text in texts]
    vectors = {key: vector for key in keys if (vector := _CACHED.get(key)) is not None}
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in vectors}
    if missing:
        vectors |= zip(missing, model.embed([*missing.values()]), strict=True)
    if len(_CACHED) > MOST_CACHED:
        _CACHED.clear()
    _CACHED.update(vectors)
    return np.stack([vectors[key] for key in keys])
