"""Embedders: texts to vectors, by name.

static          a table of word pieces, distilled from MiniLM once: no network is run    static_vectors.py
minilm          all-MiniLM-L6-v2, from an installed package                              minilm.py
URL#MODEL       any server with OpenAI's embeddings                                      server_vectors.py
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from streams.errors import SettingsError

if TYPE_CHECKING:
    import numpy as np

LOCAL = ("static", "minilm")
"""Those that run here."""


class Embedder(Protocol):
    """Makes vectors of texts, of which those of equal meaning are near."""

    @property
    def digest(self) -> str:
        """Of its weights and rules: another embedder's vectors are not compared with its own."""

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [texts, dimensions]: rows of unit length. A text's row does not depend on the others."""


class TokenEmbedder(Embedder, Protocol):
    """An embedder that runs here, and so knows its tokens."""

    @property
    def most_tokens(self) -> int:
        """Tokens of a text that are read; `embed` leaves out the rest."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without those that frame it."""

    def embed_tokens(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Return the vectors of texts that are tokens already, each of at most `most_tokens`."""


@lru_cache(maxsize=8)
def local_embedder(name: str) -> TokenEmbedder:
    """Return an embedder that runs here. Raises SettingsError if its package is not installed."""
    if name == "minilm":
        from plugins.knowledge.embedders.minilm import MiniLM

        return MiniLM()
    from plugins.knowledge.embedders.static_vectors import StaticVectors

    return StaticVectors()


@lru_cache(maxsize=8)
def embedder(name: str) -> Embedder:
    """Return an embedder: `static`, `minilm`, or URL#MODEL. Raises SettingsError, ProviderError."""
    if name in LOCAL:
        return local_embedder(name)
    url, _, model = name.partition("#")
    if not url.startswith(("http://", "https://")) or not model:
        raise SettingsError(
            f"knowledge.embedder={name}: expected {', '.join(LOCAL)}, or the URL of a server's embeddings with the "
            "model after a #, as in http://127.0.0.1:8000/v1/embeddings#nomic-embed-text"
        )
    from plugins.knowledge.embedders.server_vectors import ServerVectors

    return ServerVectors(url, model)
