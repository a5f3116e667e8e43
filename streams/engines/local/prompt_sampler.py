"""Answer one prompt of tokens several times, with the logprobs of whatever is asked for: a function of its arguments.

    prompt ──► run in pieces ──► logprobs of its tokens, the likeliest, those of named ones
                     └─► keys and values, shared by n rows ──► a token a row and step ──► tokens, logprobs

Each prompt is a batch of its own: no cached beginning and no neighbour changes the last digit of a logit, so the same
arguments give the same tokens, in whatever company and after whatever restart. The price is throughput where many
prompts are answered once each; rounds (transformers_engine.py) and streams (continuous.py) run them together.

Logprobs are those of the model itself: of temperature 1 over all tokens, however the token was drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicCache

from streams.engines.base_model import Base
from streams.engines.local.decoding_row import draw
from streams.engines.local.shared_prefix import FanOut
from streams.engines.local.transformers_engine import COMPACT_SHARE, ResidentVersion, TransformersEngine
from streams.engines.protocol import uniform
from streams.errors import CallError

PIECE_TOKENS = 512
"""Tokens of a prompt whose logits are in memory at once."""
NO_TARGET = -1
"""A place of `targets` that asks for nothing."""
PROMPT_DRAWS = "prompt"
"""Part of the key of what is drawn in the places of a prompt."""
Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDraw:
    """A prompt, and how it is to be answered."""

    prompt: tuple[int, ...]
    key: str
    """Seeds the random numbers."""
    samples: int = 1
    max_tokens: int | None = None
    """None: as many as fit the context."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    stop_tokens: frozenset[int] | None = None
    """None: those that end an answer of this model."""
    stop_texts: tuple[str, ...] = ()
    scores_prompt: bool = False
    top_prompt: int = 0
    """How many of the likeliest tokens to name in each place of the prompt."""
    top_sampled: int = 0
    """The same of the answers."""
    prompt_draws: int = 0
    """How many tokens to draw in each place of the prompt."""
    targets: NDArray[np.int64] | None = None
    """[P - 1, K]: tokens to score in the places of the prompt, the first one left out."""


@dataclass(slots=True)
class DrawnSequence:
    """One answer."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: Literal["stop", "length"] | None = None
    top: list[tuple[Array, Array]] = field(default_factory=list)
    """Of each token, the likeliest tokens and their logprobs."""


@dataclass(frozen=True, slots=True)
class DrawnPrompt:
    """The answers to a prompt, and the scores of its places."""

    sequences: list[DrawnSequence]
    prompt: Mapping[str, Array]
    """By name: prompt_logprobs [P] with NaN in the first place, prompt_topk_tokens and _logprobs [P, k], alt tokens."""


class PromptSampler(TransformersEngine):
    """Answers prompts of tokens, one at a time. Its base is its own, as that of every engine."""

    def __init__(self, base: Base, threads: int, capacity: int) -> None:
        """`capacity` adapters stay in memory. Raises SettingsError as TransformersEngine."""
        super().__init__(base, threads, capacity)
        self._table = base.token_table

    def draw(self, adapter: Path | None, request: PromptDraw) -> DrawnPrompt:
        """Return the answers with the adapter of a folder; None: the base model's.

        Raises CallError for a prompt that cannot be answered, EventError for an adapter that cannot be used.
        """
        room = self._room(request)
        version = self._load(0 if adapter is None else 1, adapter)
        with torch.inference_mode():
            cache, logits, about = self._run_prompt(version, request)
            sequences = self._decode_rows(version, request, cache, logits, room)
        return DrawnPrompt(sequences, about)

    def _room(self, request: PromptDraw) -> int:
        """Return how many tokens an answer may have."""
        if (unknown := self._table.first_unknown(request.prompt)) is not None or not request.prompt:
            got = "no tokens" if unknown is None else f"id {unknown}"
            raise CallError("invalid", f"the prompt has {got}; ids are 0 to {self._table.size - 1}", "prompt")
        left = self.context_tokens - len(request.prompt)
        if left < 1:
            raise CallError(
                "context_length_exceeded",
                f"the prompt has {len(request.prompt)} tokens, and the context is {self.context_tokens}",
                "prompt",
            )
        return left if request.max_tokens is None else min(left, request.max_tokens)

    # --- the prompt ---------------------------------------------------------------------------------------------------

    def _run_prompt(
        self, version: ResidentVersion, request: PromptDraw
    ) -> tuple[DynamicCache, Tensor, Mapping[str, Array]]:
        """Return the keys and values of the prompt, the logits after it, and the scores of its places."""
        self._lora.use([(slice(0, 1), version.pairs)])
        cache, device = DynamicCache(), self._model.device
        ids = torch.tensor(request.prompt, device=device)
        scores = PlaceScores(request, ids)
        logits = ids.new_empty(0)
        for begin in range(0, len(ids), PIECE_TOKENS):
            piece = ids[begin : begin + PIECE_TOKENS]
            keep = len(piece) if scores.is_wanted else 1
            places = torch.arange(begin, begin + len(piece), device=device)[None]
            out = self._model(input_ids=piece[None], position_ids=places, past_key_values=cache, logits_to_keep=keep)
            logits = out.logits[0].float()
            scores.take(begin, logits)
        return cache, logits[-1:], scores.arrays()

    # --- the answers --------------------------------------------------------------------------------------------------

    def _decode_rows(
        self, version: ResidentVersion, request: PromptDraw, cache: DynamicCache, logits: Tensor, room: int
    ) -> list[DrawnSequence]:
        sequences = [DrawnSequence() for _ in range(request.samples)]
        device = self._model.device
        mask = torch.ones(1, len(request.prompt), dtype=torch.bool, device=device)
        fanout = FanOut(cache, mask, torch.zeros(len(sequences), dtype=torch.int64, device=device))
        positions = torch.full((len(sequences),), len(request.prompt), device=device)
        live = list(range(len(sequences)))
        self._lora.use([(slice(0, len(live)), version.pairs)])
        tokens = self._draw_rows(request, logits.expand(len(live), -1), sequences, live, room)
        while unfinished := [row for row, number in enumerate(live) if sequences[number].reason is None]:
            if (len(live) - len(unfinished)) * COMPACT_SHARE >= len(live):
                rows = torch.tensor(unfinished, device=device)
                fanout.keep(rows)
                live, tokens, positions = [live[row] for row in unfinished], tokens[rows], positions[rows]
                self._lora.use([(slice(0, len(live)), version.pairs)])
            logits = self._step(fanout, tokens, positions).float()
            tokens = self._draw_rows(request, logits, sequences, live, room)
            positions = positions + 1
        return sequences

    def _draw_rows(
        self, request: PromptDraw, logits: Tensor, sequences: list[DrawnSequence], live: list[int], room: int
    ) -> Tensor:
        """Draw a token for every row, and append it to those that are not done."""
        logprobs = logits.log_softmax(-1)
        numbers = [uniform(request.key, number, len(sequences[number].tokens)) for number in live]
        tokens = draw_tokens(request, logits, numbers)
        own = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        top = _top(logprobs, request.top_sampled)
        for row, (number, token) in enumerate(zip(live, tokens.tolist(), strict=True)):
            sequence = sequences[number]
            if sequence.reason is not None:
                continue
            sequence.tokens.append(token)
            sequence.logprobs.append(own[row])
            if top is not None:
                sequence.top.append((top[0][row], top[1][row]))
            sequence.reason = self._reason(request, sequence.tokens, room)
        return tokens

    def _reason(self, request: PromptDraw, tokens: list[int], room: int) -> Literal["stop", "length"] | None:
        """Return why an answer ends here; None if it does not."""
        ends = self._table.ends if request.stop_tokens is None else request.stop_tokens
        if tokens[-1] in ends or self._prompts.first_stop(tokens, request.stop_texts) is not None:
            return "stop"
        return "length" if len(tokens) >= room else None


class PlaceScores:
    """The scores of the places of a prompt, collected as its logits come."""

    def __init__(self, request: PromptDraw, ids: Tensor) -> None:
        self._request, self._ids = request, ids
        self._parts: dict[str, list[Array]] = {}
        self.is_wanted = bool(
            request.scores_prompt or request.top_prompt or request.prompt_draws or request.targets is not None
        )

    def take(self, begin: int, logits: Tensor) -> None:
        """Take the logits [T, V] after the tokens from `begin` on: those of each are about the next place."""
        if not self.is_wanted:
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
            wanted = torch.from_numpy(request.targets[begin : begin + len(logits)]).to(logits.device)
            scored = logprobs.gather(1, wanted.clamp(min=0))
            yield "target_prompt_logprobs", torch.where(wanted == NO_TARGET, 0.0, scored).cpu().numpy()
        if request.prompt_draws:
            draws = []
            for slot in range(request.prompt_draws):
                key = f"{request.key} {PROMPT_DRAWS}"
                draws.append(draw_tokens(request, logits, [uniform(key, slot, begin + t) for t in range(len(logits))]))
            tokens = torch.stack(draws, dim=1)
            yield "prompt_alt_tokens", tokens.to(torch.int32).cpu().numpy()
            yield "prompt_alt_logprobs", logprobs.gather(1, tokens).cpu().numpy()

    def arrays(self) -> dict[str, Array]:
        """Return them whole: what is about every place of the prompt has a first row that nothing came before."""
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
    """Return the likeliest tokens of each row and their logprobs, the likeliest first; None if none are asked for."""
    if not count:
        return None
    values, tokens = logprobs.topk(count, dim=-1)
    return tokens.to(torch.int32).cpu().numpy(), values.cpu().numpy()
