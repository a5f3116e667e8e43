"""The settings of indexes: how documents are cut, what embeds them, and where vectors are kept."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from streams.settings.model import Section


class Knowledge(Section):
    """How documents are indexed; all but the weight takes effect once a new index is whole, and the old one answers
    until then."""

    embedder: str = Field(
        "static",
        description="what makes vectors of texts: static, minilm, or the URL of a server's /v1/embeddings with the "
        "model after a #",
    )
    chunk_characters: int = Field(800, ge=100, le=100_000, description="most characters of a chunk")
    folder: Path = Field(
        Path(".streamward/knowledge"), description="folder of vectors, which are made again where it is deleted"
    )
    weight: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of vectors in a hybrid search; 0: words alone, 1: vectors alone",
    )
