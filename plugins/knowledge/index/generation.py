"""Every index by one recipe: what embeds, and how documents are cut.

    a document that is added or replaced ──► pending ──► embed: the chunks whose vectors are not kept yet ──► its corpus
    a document that is removed ──► out of its corpus at once

A document that is replaced answers in its old form until the new one has its vectors.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from plugins.knowledge.embedders import Embedder
from plugins.knowledge.index.chunks import Chunk, chunk_key, chunks_of, rule_of
from plugins.knowledge.index.corpus import Corpus, Hit, SearchQuery
from plugins.knowledge.index.vector_store import VectorStore
from schemas.events import DocumentEvent
from streams.errors import NotFoundError

T = TypeVar("T")
BATCH = 64
"""Chunks that are embedded at once, at least: a removal need not wait for them, but the end of the process does."""


class IndexRecipe(NamedTuple):
    """What an index is made by. Another one is another index."""

    embedder: str
    digest: str
    """Of the embedder."""
    characters: int

    @classmethod
    def read(cls, fields: Any) -> IndexRecipe | None:
        """Return a recipe that was kept as JSON; None if it is none."""
        try:
            return cls(str(fields["embedder"]), str(fields["digest"]), int(fields["characters"]))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def rule(self) -> str:
        """By which documents are cut."""
        return rule_of(self.characters)


class FoundChunks(NamedTuple):
    """What a search found, and in what."""

    hits: list[Hit]
    recipe: IndexRecipe
    digest: str
    """Of the index."""


class IndexGeneration:
    """The indexes of one recipe. Its methods may be called from any thread; one thread embeds."""

    def __init__(self, recipe: IndexRecipe, embedder: Embedder, folder: Path) -> None:
        """Raises OSError if the folder's vectors cannot be read."""
        self.recipe, self.embedder = recipe, embedder
        self._store = VectorStore(folder, recipe.digest, embedder.dimensions)
        self._corpora: dict[str, Corpus] = {}
        self._pending: dict[str, DocumentEvent] = {}
        self._lock = threading.Lock()

    @property
    def pending(self) -> int:
        """Documents that have no vectors yet."""
        return len(self._pending)

    def change(self, document_id: str, document: DocumentEvent | None) -> None:
        """Take in what a document is now; None: it was removed."""
        with self._lock:
            if document is not None:
                self._pending[document_id] = document
                return
            self._pending.pop(document_id, None)
            index = index_of(document_id)
            if (corpus := self._corpora.get(index)) is not None:
                corpus.remove(document_id)
                if not len(corpus):
                    del self._corpora[index]

    def embed(self) -> None:
        """Index some of the pending documents. Raises the embedder's errors, OSError."""
        with self._lock:
            pending = [*self._pending.values()]
        due: list[tuple[DocumentEvent, list[tuple[Chunk, bytes]]]] = []
        missing: dict[bytes, str] = {}
        for document in pending:
            chunks = self._keys(document)
            due.append((document, chunks))
            text = document.text or ""
            missing |= {key: text[chunk.start : chunk.end] for chunk, key in chunks if key not in self._store}
            if len(missing) >= BATCH or len(due) >= 16 * BATCH:
                break
        keys = [*missing]
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            self._store.put(batch, self.embedder.embed([missing[key] for key in batch]))
        with self._lock:
            for document, chunks in due:
                if self._pending.get(document.document_id) is document:  # not changed since
                    del self._pending[document.document_id]
                    corpus = self._corpora.setdefault(index_of(document.document_id), Corpus(self.embedder.dimensions))
                    corpus.put(document, [(chunk, key, self._store[key]) for chunk, key in chunks])

    def search(self, index: str, query: SearchQuery) -> FoundChunks:
        """Return the best chunks of an index. Raises NotFoundError."""
        with self._lock:
            if (corpus := self._corpora.get(index)) is None:
                raise NotFoundError(f"there is no index {index[:140]!r}; GET /rag/documents lists theirs")
            return FoundChunks(corpus.search(query), self.recipe, self.digest_of(corpus))

    def look(self, look: Callable[[Mapping[str, Corpus]], T]) -> T:
        """Return what `look` reads of the indexes, by name."""
        with self._lock:
            return look(self._corpora)

    def forget_others(self) -> None:
        """Forget the vectors of chunks that are in no index, as of removed documents. Raises OSError."""
        self._store.keep(self.look(lambda corpora: {row.key for corpus in corpora.values() for row in corpus.rows}))

    def digest_of(self, corpus: Corpus) -> str:
        """Return the digest of an index: of its recipe and its chunks. The same digest, the same hits."""
        return hashlib.sha256(json.dumps([self.recipe.digest, self.recipe.rule, corpus.digest]).encode()).hexdigest()

    def _keys(self, document: DocumentEvent) -> list[tuple[Chunk, bytes]]:
        chunks = chunks_of(document.text or "", self.recipe.characters)
        return [(chunk, chunk_key(document, chunk.ordinal, self.recipe.rule, self.recipe.digest)) for chunk in chunks]


def index_of(document_id: str) -> str:
    """Return the index of a document.

    >>> index_of("red.sea/tides/spring")
    'red.sea'
    """
    return document_id.partition("/")[0]
