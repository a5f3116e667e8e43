"""An embedder without a model: the sum of a random vector per word, so texts with the same words are near.

As a program it indexes the documents of a folder, as a process that is killed: FOLDER, and how many documents.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from plugins.knowledge.index.generation import IndexGeneration, IndexRecipe
from plugins.knowledge.index.word_index import words_of
from schemas.events import DocumentEvent
from tests.support.factories import document_event, text_digest

NOUNS = (
    *("moon", "tide", "wave", "wind", "sand", "rock", "fish", "gull"),
    *("boat", "sail", "rope", "salt", "foam", "reef", "crab", "kelp"),
)
PAUSE_S = 0.05
"""How long the program takes for the texts of a call, so that it can be killed between two."""


class WordVectors:
    """Counts the texts that it embeds."""

    def __init__(self, digest: str = "words", dimensions: int = 32, pause_s: float = 0.0) -> None:
        self.digest, self.dimensions = digest, dimensions
        self.texts, self.pause_s = 0, pause_s

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit rows."""
        self.texts += len(texts)
        time.sleep(self.pause_s)
        rows = np.array([sum(_vector(word, self.dimensions) for word in ["", *words_of(text)]) for text in texts])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@cache
def _vector(word: str, dimensions: int) -> np.ndarray:
    seed = int.from_bytes(sha256(word.encode()).digest()[:8])
    return np.random.default_rng(seed).standard_normal(dimensions)


def document(name: str, text: str, /, **metadata: str) -> DocumentEvent:
    """Return the event that added a document."""
    return document_event(document_id=name, text=text, digest=text_digest(text), metadata=metadata)


def documents(count: int) -> list[DocumentEvent]:
    """Return documents of few words, of which many have the same score for a query."""
    drawn = np.random.default_rng(7).integers(len(NOUNS), size=(count, 5))
    return [
        document(f"sea/{number:05}", " ".join(NOUNS[word] for word in words), parity=str(number % 2))
        for number, words in enumerate(drawn)
    ]


def indexed(embedder: WordVectors, folder: Path, events: Sequence[DocumentEvent]) -> IndexGeneration:
    """Return the whole index of documents."""
    generation = IndexGeneration(IndexRecipe("test", embedder.digest, 800), embedder, folder)
    for event in events:
        generation.change(event.document_id, event)
    while generation.pending:
        generation.embed()
    return generation


if __name__ == "__main__":
    print("begins", flush=True)
    indexed(WordVectors(pause_s=PAUSE_S), Path(sys.argv[1]), documents(int(sys.argv[2])))
    print("whole", flush=True)
