"""Answer any number of generations with a model in this process, starting each as soon as it comes.

    submit (any thread) ──► waiting ──► running ──► done ──► its keys and values are kept for the next turn
                                           │
           one pass a step: the next token of every row that decodes, and a piece of the unfinished prompts

Rows are admitted between two steps, also during a long prompt, of which each step runs a piece. A prompt runs only the
part after the longest beginning with keys and values that are kept or in a running row; one that shares more with a
prompt still being run waits for that, so the slots of one prompt run it once. Rows of several adapter versions are in
one pass, each with its own factors next to the shared weights (lora.py).

Tokens depend only on the draw key, the slot and their number (decoding_row.py), so they are those of
`TransformersEngine.sample`, except for rounding: logprobs agree to self_check.AGREEMENT. When memory runs out, kept
prefixes go first, then the youngest row waits again and keeps its tokens. Texts are scored one at a time in a separate
cache, which holds the keys and values of one context beyond the bound.

Not covered: rows that share a beginning each have a copy while they run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from streams.engines.base_model import Base, load_base
from streams.engines.constraint import Constraint, ConstraintCompiler
from streams.engines.decoding_loop import DecodingLoop
from streams.engines.local.lora import read_lora
from streams.engines.local.packed_decoder import LoadedVersion, PackedDecoder
from streams.engines.local.packed_linear import PackedLinears
from streams.engines.local.self_check import check_decoding
from streams.engines.protocol import EngineCounts, TextScores, check_folder, check_generation, check_text
from streams.engines.rendering.prompts import Prompts
from streams.engines.rendering.template_rendering import ChatRendering
from streams.engines.token_stream import Generation, TokenStream
from streams.settings.model import Settings

CACHE_BYTES = 1 << 30
"""Maximum bytes of keys and values of running rows and kept prefixes; at least one full context is allowed."""


class ContinuousEngine:
    """A `TokenEngine` that serves a `Base` and any number of its adapter versions."""

    name = "transformers"

    def __init__(
        self,
        base: Base,
        threads: int = 1,
        cache_bytes: int = CACHE_BYTES,
        weight: Callable[[str], float] = lambda _: 1.0,
    ) -> None:
        """Take over `base`: nothing else may run its model until `close`. `threads` 0 uses all cores.

        `weight`: that of an owner's turns (`Generation.owner`) while several owners wait for a row. Raises
        SettingsError for a model without chat template, or with attention that cannot be packed.
        """
        self.base_digest, self.tokenizer_digest = base.base_digest, base.tokenizer_digest
        self._model: Any = base.model
        torch.set_num_threads(threads or os.cpu_count() or 1)
        prompts = Prompts(base)
        self.context_tokens, self.token_table = prompts.context_tokens, base.token_table
        self._plain_attention = self._model.config._attn_implementation
        self._versions = {0: LoadedVersion(None, {})}
        self._decoder = PackedDecoder(self._model, prompts, self._versions, cache_bytes, weight)
        check_decoding(self._model, self._decoder.check)
        self._linears = PackedLinears(self._model)
        self._loop = DecodingLoop(self._decoder)
        self._constraints = ConstraintCompiler(lambda: self._vocabulary(base.tokenizer))

    def load(self, version: int, adapter: Path | None) -> None:
        """Make `version` ready from its verified local folder; see `TokenEngine.load`."""
        check_folder(version, adapter)
        loaded = self._versions.get(version)
        if loaded is None or loaded.folder != adapter:
            fresh = LoadedVersion(adapter, read_lora(adapter, self._model) if adapter else {})
            self._loop.call(lambda: self._decoder.check_adapter(fresh))
            self.unload(version)
            self._versions[version] = fresh

    def unload(self, version: int) -> None:
        """Take no more generations for `version`, unless it is the base; see `TokenEngine.unload`."""
        if version and (loaded := self._versions.pop(version, None)):
            self._loop.post(lambda: self._decoder.forget(loaded))

    def constrain(self, grammar: str) -> Constraint:
        """Compile a grammar; see `TokenEngine.constrain`."""
        return self._constraints.compile(grammar)

    def submit(self, generation: Generation) -> TokenStream:
        """Begin to answer; see `TokenEngine.submit`."""
        check_generation(generation, self, self._versions)
        return self._loop.submit(TokenStream(generation))

    def score(self, version: int, tokens: tuple[int, ...], top: int) -> TextScores:
        """Score a text, a piece between two steps of the answers in progress; see `TokenEngine.score`."""
        check_text(version, tokens, self, self._versions)
        text = self._decoder.text(version, tokens, top)
        while not text.is_run:
            self._loop.call(lambda: self._decoder.run_text(text))
        return text.scores()

    def counts(self) -> EngineCounts:
        """Return the present work."""
        return self._decoder.counts()

    def close(self) -> None:
        """End every stream, and restore the model."""
        self._loop.close()
        self._decoder.close()
        self._linears.remove()
        self._model.config._attn_implementation = self._plain_attention

    def _vocabulary(self, tokenizer: Any) -> Any:
        from llguidance.hf import from_tokenizer

        table = self.token_table
        return from_tokenizer(tokenizer, n_vocab=table.size, eos_token=sorted(table.ends))


def build_tokens(settings: Settings) -> tuple[ContinuousEngine, ChatRendering]:
    """Return the engine of `model.base` and its rendering. Raises SettingsError if it cannot start."""
    base = load_base(settings.model)
    engine = ContinuousEngine(base, settings.policy.threads, weight=settings.fleet.weight_of)
    return engine, ChatRendering(base.tokenizer, base.token_table, base.tokenizer_digest)
