"""What makes vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np


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
