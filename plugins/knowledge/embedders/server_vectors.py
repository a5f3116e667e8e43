"""Vectors of a server that speaks OpenAI's embeddings.

    texts, 64 at once ──► POST URL {model, input, encoding_format: base64} ──► float32 ──► unit length

Its key is the variable STREAMWARD_KNOWLEDGE_KEY. The digest is of URL, model and the length of its vectors.

Not covered: a server that serves other weights below the same name; give them another name.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import httpx2
import numpy as np

from plugins.knowledge.embedders.minilm import unit_rows
from schemas import json_text
from streams.egress.http_client import AnswerTooLarge, bearer, fetch, new_client
from streams.errors import ProviderError

KEY = "STREAMWARD_KNOWLEDGE_KEY"
TEXTS_AT_ONCE = 64
LIMIT_S = 60.0
MOST_BYTES = 16 * 1024 * 1024


class ServerVectors:
    """The embedder. Any thread may use it. Its methods raise ProviderError."""

    def __init__(self, url: str, model: str) -> None:
        """Raises SettingsError for a key that no header can have."""
        self._url, self._model = url, model
        self._client = new_client(headers=bearer(os.environ.get(KEY), KEY), trust_env=False)

    @cached_property
    def dimensions(self) -> int:
        """Numbers of a vector, found with a text."""
        return int(self._request(["length"]).shape[1])

    @cached_property
    def digest(self) -> str:
        """Of URL, model and dimensions."""
        return hashlib.sha256(f"{self._url}\n{self._model}\n{self.dimensions}".encode()).hexdigest()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [texts, dimensions], rows of unit length."""
        parts = [self._request(texts[start : start + TEXTS_AT_ONCE]) for start in range(0, len(texts), TEXTS_AT_ONCE)]
        return unit_rows(np.concatenate(parts)) if parts else np.zeros((0, self.dimensions), np.float32)

    def _request(self, texts: Sequence[str]) -> np.ndarray:
        body = {"model": self._model, "input": list(texts), "encoding_format": "base64"}
        try:
            status, raw = fetch(self._client, "POST", self._url, limit_s=LIMIT_S, most_bytes=MOST_BYTES, json=body)
        except (AnswerTooLarge, httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise ProviderError(f"embeddings of {self._url}: {exc or type(exc).__name__}; repeat it later") from exc
        if status != 200:
            raise ProviderError(
                f"embeddings of {self._url}: HTTP {status}: {raw[:200].decode(errors='replace')}; check "
                f"knowledge.embedder and {KEY}"
            )
        try:
            rows = sorted(json_text.parse(raw)["data"], key=lambda row: int(row["index"]))
            vectors = np.stack([_vector(row["embedding"]) for row in rows])
        except (ValueError, LookupError, TypeError) as exc:
            raise ProviderError(f"embeddings of {self._url}: no list of embeddings ({exc!r}); check the URL") from exc
        if len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise ProviderError(f"embeddings of {self._url}: {len(vectors)} vectors for {len(texts)} texts")
        return vectors


def _vector(value: Any) -> np.ndarray:
    """Return float32 [dimensions] of base64, or of a list, as some servers send it. Raises ValueError."""
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), "<f4")
    return np.asarray(value, np.float32)
