"""A text while it is scored, piece by piece, with the keys and values of its tokens so far.

tokens ──► piece ──► a pass ──► take(logits) ──► … ──► scores: a logprob and the likeliest tokens of each place
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from streams.engines.local.key_values import KeyValues
from streams.engines.local.lora import LoraPair
from streams.engines.local.prompt_scores import PlaceScores, PromptDraw
from streams.engines.protocol import TextScores


class ScoredText:
    """One text; run each `piece` and give its logits to `take`, until `is_run`."""

    def __init__(self, pairs: Mapping[str, LoraPair], tokens: tuple[int, ...], top: int, cache: KeyValues) -> None:
        self.pairs, self.cache = pairs, cache
        """The adapter for scoring, and a cache of its own for this text."""
        self._ids, self._top = torch.tensor(tokens, device=cache.data.device), top
        request = PromptDraw(prompt=tokens, key="", scores_prompt=True, top_prompt=top)
        self._places = PlaceScores(request, self._ids)
        self._next: tuple[list[int], list[float]] = [], []

    @property
    def is_run(self) -> bool:
        """Whether all its tokens were run."""
        return self.cache.length == len(self._ids)

    def piece(self, most: int) -> Tensor:
        """Return the tokens to run next, [at most `most`]."""
        return self._ids[self.cache.length :][:most]

    def take(self, logits: Tensor) -> None:
        """Take the logits [T, V] after the piece, which is in the cache by now."""
        self._places.take(self.cache.length - len(logits), logits)
        if self.is_run:
            logprobs, tokens = logits[-1].log_softmax(-1).topk(self._top)
            self._next = tokens.tolist(), logprobs.tolist()

    def scores(self) -> TextScores:
        """Return the scores."""
        arrays = self._places.arrays()
        rows = zip(arrays["prompt_topk_tokens"][1:].tolist(), arrays["prompt_topk_logprobs"][1:].tolist(), strict=True)
        likeliest = (tuple(zip(*row, strict=True)) for row in (*rows, self._next))
        return TextScores(logprobs=tuple(arrays["prompt_logprobs"][1:].tolist()), likeliest=tuple(likeliest))
