"""Answer prompts of tokens with the requested logprobs: a function of its arguments.

    adapter, requests ──► PromptBatch: one pass for all of them ──► an answer to each, as soon as it is done

The same request gives the same bits alone, next to any others, and after any restart; tests ensure that. The sampler
also compares both when it starts, and once for each shape of adapter. Where they differ (other devices and number
formats, other libraries) requests are answered one by one, which costs time and changes nothing else.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugins.tinker.sampling.prompt_batch import PromptBatch, run_pieces
from plugins.tinker.sampling.row_linear import RowAdapter, RowLinears
from streams.engines.base_model import Base
from streams.engines.local.key_values import CacheShape, KeyValues
from streams.engines.local.lora import overflows, read_lora
from streams.engines.local.packed_pass import ATTENTION, logits_in_pieces
from streams.engines.local.prompt_scores import Array, DrawnSequence, PromptDraw
from streams.engines.local.self_check import check_decoding, is_finite
from streams.engines.rendering.prompts import Prompts
from streams.errors import CallError

COMPANIES = (1, 3, 16, 130)
"""Numbers of tokens of the other row in the comparison."""
PROBE_TOKENS = 6
"""Number of tokens of the row that is compared."""
NO_ADAPTER = RowAdapter({})
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrawnPrompt:
    """The answers to a prompt, and the scores of its places."""

    sequences: list[DrawnSequence]
    prompt: Mapping[str, Array]
    """Scores by name: prompt_logprobs [P] with NaN in the first place, prompt_topk_tokens and _logprobs [P, k], alt
    tokens."""


class PromptSampler:
    """Answers prompts of tokens. It owns its base, like every engine."""

    def __init__(self, base: Base, threads: int, capacity: int) -> None:
        """`capacity` adapters stay in memory. Raises SettingsError for a model with attention that cannot be packed."""
        torch.set_num_threads(threads or os.cpu_count() or 1)
        self._model: Any = base.model
        self._prompts, self._table, self._capacity = Prompts(base), base.token_table, capacity
        self._shape = CacheShape.read(self._model)
        self._adapters: OrderedDict[Path, RowAdapter] = OrderedDict()
        self._plain_attention = self._model.config._attn_implementation
        check_decoding(self._model, self._decode_pieces)
        self._linears = RowLinears(self._model)
        self._exact = {NO_ADAPTER.shape: self._rows_are_exact()}

    def close(self) -> None:
        """Restore the model."""
        self._linears.remove()
        self._model.config._attn_implementation = self._plain_attention

    def draw(self, adapter: Path | None, request: PromptDraw) -> DrawnPrompt:
        """Return the answers with the adapter in a folder; None: with the base model.

        Raises CallError for a prompt that cannot be answered, EventError for an adapter that cannot be used.
        """
        ((_, drawn),) = self.draw_all(adapter, [request])
        return drawn

    def draw_all(self, adapter: Path | None, requests: Sequence[PromptDraw]) -> Iterator[tuple[int, DrawnPrompt]]:
        """Yield the answers to each request with its place, in the order in which they are done. Raises as `draw`."""
        rooms = [self.room(request) for request in requests]
        loaded = self._load(adapter)
        self._linears.use(loaded)
        indices = range(len(requests))
        for part in [indices] if self._exact[loaded.shape] else [[index] for index in indices]:
            batch = PromptBatch(self._model, [(requests[index], rooms[index]) for index in part], self._ends_with)
            while batch.is_left:
                for place in batch.step():
                    state = batch.requests[place]
                    yield part[place], DrawnPrompt(state.sequences, state.scores.arrays())

    def room(self, request: PromptDraw) -> int:
        """Return the maximum tokens of an answer. Raises CallError for a prompt that cannot be answered."""
        if (unknown := self._table.first_unknown(request.prompt)) is not None or not request.prompt:
            content = "no tokens" if unknown is None else f"id {unknown}"
            raise CallError("invalid", f"the prompt has {content}; ids are 0 to {self._table.size - 1}", "prompt")
        left = self._prompts.context_tokens - len(request.prompt)
        if left < 1:
            raise CallError(
                "context_length_exceeded",
                f"the prompt has {len(request.prompt)} tokens, and the context is {self._prompts.context_tokens}",
                "prompt",
            )
        return left if request.max_tokens is None else min(left, request.max_tokens)

    def _ends_with(self, request: PromptDraw, tokens: Sequence[int]) -> bool:
        ends = self._table.ends if request.stop_tokens is None else request.stop_tokens
        return tokens[-1] in ends or self._prompts.first_stop(tokens, request.stop_texts) is not None

    # --- adapters -----------------------------------------------------------------------------------------------------

    def _load(self, adapter: Path | None) -> RowAdapter:
        """Load an adapter into memory and return it; the least recently used leaves. Raises EventError."""
        if adapter is None:
            return NO_ADAPTER
        loaded = self._adapters.pop(adapter, None)
        if loaded is None:
            loaded = RowAdapter(read_lora(adapter, self._model))
            self._linears.use(loaded)
            if not is_finite(self._model, lambda ids: run_pieces(self._model, [KeyValues(self._shape)], [ids], [1])[0]):
                raise overflows(adapter)
            if loaded.shape not in self._exact:
                self._exact[loaded.shape] = self._rows_are_exact()
        self._adapters[adapter] = loaded
        while len(self._adapters) > self._capacity:
            self._adapters.popitem(last=False)
        return loaded

    # --- what it checks -----------------------------------------------------------------------------------------------

    def _decode_pieces(self, prompts: list[tuple[int, ...]], answers: Tensor, prompt_of_row: Tensor) -> Tensor:
        self._model.config._attn_implementation = ATTENTION
        return logits_in_pieces(self._model, prompts, answers, prompt_of_row)

    def _rows_are_exact(self) -> bool:
        """Return whether a row has the same logits, to the bit, alone and next to others."""
        alone = self._probe(0)
        exact = all(torch.equal(alone, self._probe(company)) for company in COMPANIES)
        if not exact:
            log.warning("requests are answered one by one: on this machine neighbours change the last digits of a row")
        return exact

    def _probe(self, company: int) -> Tensor:
        """Return the logits of a row's piece and of its next token, next to another row of `company` tokens."""
        size = self._model.get_input_embeddings().num_embeddings
        ids = torch.arange(3, 3 + PROBE_TOKENS + 1 + company, device=self._shape.device) % size
        rows = [(ids[:PROBE_TOKENS], ids[PROBE_TOKENS : PROBE_TOKENS + 1])]
        if company:
            rows.insert(0, (ids[PROBE_TOKENS + 1 :], ids[:1]))
        caches = [KeyValues(self._shape) for _ in rows]
        with torch.inference_mode():
            runs = [
                run_pieces(self._model, caches, pieces, [len(piece) for piece in pieces])[-1]
                for pieces in zip(*rows, strict=True)
            ]
        return torch.cat(runs)
