"""Static vectors: a text's vector is the sum of its word pieces' vectors, which were distilled from MiniLM once.

    each of the 30,522 pieces ──► MiniLM ──► [384] ──► 256 principal components, evened out ──► less for frequent pieces
    text ──► its pieces' rows of that table ──► sum, at unit length: 200 times faster than MiniLM, without torch

As model2vec does it (https://github.com/MinishLab/model2vec), with two choices made on 3,000 glosses of WordNet that no
figure is about: components are divided by the fourth root of their variance, and a piece of probability p counts
a / (a + p), as in SIF (Arora et al., 2017), where p is that of its rank in the vocabulary by Zipf's law.

The table is made in a child process (half a minute), since MiniLM takes 1 GB that this process would never give back,
and kept in the cache. Its digest is of its bytes: another machine's may differ in the last bits, and is another
embedder then.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from plugins.knowledge.embedders.minilm import MiniLM, WordPieces, model_folder, unit_rows
from streams.errors import SettingsError
from streams.files import cache_folder, hold_when_free, sha256_of

DIMENSIONS = 256
LAYOUT = 1
"""Version of the table's making."""
SMOOTHING = 3e-5
"""a of SIF."""
EVENNESS = 0.25
"""Power of a component's variance that it is divided by; 0.5 would be whitening."""
ZIPF_OFFSET = 2.7
"""Of Mandelbrot's form of the law."""
ROWS_AT_ONCE = 512


class StaticVectors:
    """The embedder. Any thread may use it."""

    dimensions = DIMENSIONS
    most_tokens = 8192

    def __init__(self) -> None:
        """Load the table, which the first call on a machine makes. Raises SettingsError."""
        self._pieces = WordPieces()
        file = _table_file()
        self._table = np.load(file).astype(np.float32)
        self.digest = sha256_of(file)
        self.vocabulary = self._pieces.vocabulary
        self.token_ids = self._pieces.token_ids

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [texts, 256], rows of unit length."""
        return self.embed_tokens(self.token_ids(texts))

    def embed_tokens(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Return float32 [rows, 256]; of a row the first `most_tokens` count."""
        sums = [self._table[np.asarray(row[: self.most_tokens])].sum(0) for row in rows]
        return unit_rows(np.stack(sums)) if sums else np.zeros((0, DIMENSIONS), np.float32)


def component_table(states: np.ndarray) -> np.ndarray:
    """Return float16 [pieces, DIMENSIONS] of MiniLM's vectors of all pieces, float32 [pieces, 384]."""
    centred = states.astype(np.float64) - states.mean(0, dtype=np.float64)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    first = slice(None, -DIMENSIONS - 1, -1)
    axes = axes[:, first] * np.sign(axes[np.abs(axes).argmax(0), range(len(axes))])[first]  # eigenvectors have no sign
    shares = 1 / (np.arange(len(states)) + ZIPF_OFFSET)
    weights = SMOOTHING / (SMOOTHING + shares / shares.sum())
    table = centred @ axes / variances[first] ** EVENNESS * weights[:, None]
    return np.asarray(table / np.abs(table).max(), np.float16)


def _table_file() -> Path:
    """Return the file of the table, made if it is missing; one process at a time does. Raises SettingsError."""
    source = sha256_of(model_folder() / "model.safetensors")[:16]
    folder = cache_folder("embeddings")
    file = folder / f"static-{source}-{LAYOUT}.npy"
    try:
        if not file.exists():
            with hold_when_free(folder):
                if not file.exists():
                    _make_in_child(file)
    except OSError as exc:
        raise SettingsError(
            f"the table of static vectors (16 MB) cannot be written to {folder}: {exc}; make room, or set "
            "XDG_CACHE_HOME to a folder that can be written"
        ) from exc
    return file


def _make_in_child(file: Path) -> None:
    half = file.with_suffix(".half")
    command = [sys.executable, "-m", __name__, str(half)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # a second thread is no faster here, and slower on a busy machine
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}, which may mean out of memory"])[-1]
        raise SettingsError(f"static vectors cannot be made of MiniLM: {last}; name another knowledge.embedder")
    half.rename(file)


def main() -> None:
    """Write the table to the file that is named."""
    model = MiniLM()
    pieces = np.arange(model.vocabulary)
    means = [
        model.states([[piece] for piece in part.tolist()]).mean(1)
        for part in np.array_split(pieces, len(pieces) // ROWS_AT_ONCE)
    ]
    with Path(sys.argv[1]).open("wb") as file:
        np.save(file, component_table(np.concatenate(means)))


if __name__ == "__main__":
    main()
