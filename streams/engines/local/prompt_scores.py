"""Scores of a prompt's places, and the next token of an answer, from the logits of a pass. Logprobs are the model's
own: at temperature 1 over all tokens, however a token was drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streams.engines.local.decoding_row import draw
from streams.engines.local.key_values import KeyValues
from streams.engines.local.lora import LoraPair
from streams.engines.protocol import TextScores, uniform

NO_TARGET = -1
"""A place of `targets` without a request."""
PROMPT_DRAWS = "prompt"
"""Part of the key of draws at the places of a prompt."""
Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDraw:
    """A prompt, and the options of its answer."""

    prompt: tuple[int, ...]
    key: str
    """Seeds the random numbers."""
    samples: int = 1
    max_tokens: int | None = None
    """Maximum tokens; None: as many as fit the context."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    stop_tokens: frozenset[int] | None = None
    """Ids that end an answer; None: the model's own."""
    stop_texts: tuple[str, ...] = ()
    scores_prompt: bool = False
    top_prompt: int = 0
    """Number of likeliest tokens to name at each place of the prompt."""
    top_sampled: int = 0
    """The same for the answers."""
    prompt_draws: int = 0
    """Number of tokens to draw at each place of the prompt."""
    targets: NDArray[np.int64] | None = None
    """[P - 1, K]: tokens to score at the places of the prompt, except the first."""

    @property
    def scores_places(self) -> bool:
        """Whether the request includes scores of the prompt's places."""
        return bool(self.scores_prompt or self.top_prompt or self.prompt_draws or self.targets is not None)


@dataclass(slots=True)
class DrawnSequence:
    """One answer."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: Literal["stop", "length"] | None = None
    top: list[tuple[Array, Array]] = field(default_factory=list)
    """The likeliest tokens, with logprobs, at each token's place."""

    def append(self, request: PromptDraw, number: int, logits: Tensor, logprobs: Tensor) -> None:
        """Draw the next token of the answer with this number by logits [1, V] and their logprobs."""
        drawn = draw_tokens(request, logits, [uniform(request.key, number, len(self.tokens))])
        self.tokens.append(int(drawn.item()))
        self.logprobs.append(logprobs[0, self.tokens[-1]].item())
        if (top := _top(logprobs, request.top_sampled)) is not None:
            self.top.append((top[0][0], top[1][0]))


class PlaceScores:
    """The scores of the places of a prompt, collected as its logits come."""

    def __init__(self, request: PromptDraw, ids: Tensor) -> None:
        self._request, self._ids = request, ids
        self._parts: dict[str, list[Array]] = {}

    def take(self, begin: int, logits: Tensor) -> None:
        """Take the logits [T, V] after the tokens from `begin` on, each of which is about the next place."""
        if not self._request.scores_places:
            return
        logits = logits[: len(self._ids) - 1 - begin]
        for name, part in self._scores(begin, logits, logits.log_softmax(-1)):
            self._parts.setdefault(name, []).append(part)

    def _scores(self, begin: int, logits: Tensor, logprobs: Tensor) -> Iterator[tuple[str, Array]]:
        request = self._request
        if request.scores_prompt:
            following = self._ids[begin + 1 : begin + 1 + len(logits), None]
            yield "prompt_logprobs", logprobs.gather(1, following)[:, 0].cpu().numpy()
        if (top := _top(logprobs, request.top_prompt)) is not None:
            yield "prompt_topk_tokens", top[0]
            yield "prompt_topk_logprobs", top[1]
        if request.targets is not None:
            targets = torch.from_numpy(request.targets[begin : begin + len(logits)]).to(logits.device)
            scored = logprobs.gather(1, targets.clamp(min=0))
            yield "target_prompt_logprobs", torch.where(targets == NO_TARGET, 0.0, scored).cpu().numpy()
        if request.prompt_draws:
            draws = []
            for slot in range(request.prompt_draws):
                key = f"{request.key} {PROMPT_DRAWS}"
                draws.append(draw_tokens(request, logits, [uniform(key, slot, begin + t) for t in range(len(logits))]))
            tokens = torch.stack(draws, dim=1)
            yield "prompt_alt_tokens", tokens.to(torch.int32).cpu().numpy()
            yield "prompt_alt_logprobs", logprobs.gather(1, tokens).cpu().numpy()

    def arrays(self) -> dict[str, Array]:
        """Return the complete scores, with a first row for the place that nothing precedes."""
        whole: dict[str, Array] = {}
        for name, parts in self._parts.items():
            array = np.concatenate(parts)
            if name in ("prompt_logprobs", "prompt_topk_tokens", "prompt_topk_logprobs"):
                first = np.full((1, *array.shape[1:]), np.nan if array.dtype.kind == "f" else 0, array.dtype)
                array = np.concatenate([first, array])
            whole[name] = array
        return whole


def draw_tokens(request: PromptDraw, logits: Tensor, numbers: list[float]) -> Tensor:
    """Return a token for each row [rows, V], by these random numbers."""
    masked = logits.clone()
    if request.top_k is not None and 0 < request.top_k < masked.shape[-1]:
        least = masked.topk(request.top_k, dim=-1).values[:, -1:]
        masked.masked_fill_(masked < least, -torch.inf)
    rows = len(numbers)
    return draw(masked, [request.temperature] * rows, [request.top_p] * rows, numbers)[0]


def _top(logprobs: Tensor, count: int) -> tuple[Array, Array] | None:
    """Return the likeliest tokens of each row and their logprobs, the likeliest first; None if none are requested."""
    if not count:
        return None
    values, tokens = logprobs.topk(count, dim=-1)
    return tokens.to(torch.int32).cpu().numpy(), values.cpu().numpy()


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
