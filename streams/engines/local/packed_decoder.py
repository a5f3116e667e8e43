"""Choose the tokens that each step of continuous decoding runs, and keep its keys and values within their bound.

    waiting ──► running ──► done ──► kept
       ▲           │ the youngest, when memory runs out; it resumes later and keeps its tokens
       └───────────┘

A step is one pass over the next token of every decoding row, and pieces of the prompts of the other rows. Only the
decoding loop's thread calls this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from streams.engines.fair_share import Turns, next_turn, take_turn
from streams.engines.local.decoding_row import DecodingRow, draw_next
from streams.engines.local.key_values import (
    BLOCK,
    CachedPrefix,
    CacheShape,
    KeyValues,
    PrefixStore,
    Tokens,
    as_tokens,
    common_length,
)
from streams.engines.local.lora import LoraPair, PackedLora, Span, overflows
from streams.engines.local.packed_pass import ATTENTION, PackedPass, logits_in_pieces
from streams.engines.local.prompt_scores import ScoredText
from streams.engines.local.self_check import is_finite
from streams.engines.protocol import EngineCounts
from streams.engines.rendering.prompts import Prompts
from streams.engines.token_stream import TokenStream

MOST_ROWS = 64
"""Maximum rows run together, which bounds the logits. The others wait."""
PIECE_BESIDE = 64
"""Maximum tokens of prompts in a step with decoding rows, which wait that long for their next token."""
PIECE_ALONE = 512
"""The same when no row decodes: longer pieces are quicker, and a new row waits for at most one."""
SMALLEST_PIECE = 16
"""Several prompts share a piece evenly, but none gets less than this."""
SHORTEST_REUSED = 8
"""A shared beginning with fewer tokens is not worth a copy or a wait."""


@dataclass(eq=False, frozen=True, slots=True)
class LoadedVersion:
    """An adapter version in memory; cached results belong to this object, not to its number."""

    folder: Path | None
    pairs: Mapping[str, LoraPair]


@dataclass(eq=False, slots=True)
class PackedRow:
    """A stream that waits or runs."""

    stream: TokenStream
    row: DecodingRow
    loaded: LoadedVersion
    cache: KeyValues
    tokens: Tokens
    """Prompt and drawn tokens."""
    admitted_before: bool = False

    @property
    def pending(self) -> int:
        """Tokens without keys and values yet; 1 in a decoding row."""
        return len(self.tokens) - self.cache.length


Piece = tuple[PackedRow, int]
"""A row, and the number of its pending tokens that a step runs."""


class PackedDecoder:
    """Decodes streams in packed passes; a `Decoder`."""

    def __init__(
        self,
        model: Any,
        prompts: Prompts,
        versions: Mapping[int, LoadedVersion],
        cache_bytes: int,
        weight: Callable[[str], float] = lambda _: 1.0,
    ) -> None:
        """Take the model, and `versions`, which another thread may change. `weight`: that of an owner's turns."""
        self._model, self._prompts, self._versions = model, prompts, versions
        self._shape = CacheShape.read(model)
        self._most_bytes = max(cache_bytes, (prompts.context_tokens + BLOCK) * self._shape.token_bytes)
        self._lora = PackedLora(model)
        self._waiting: list[PackedRow] = []
        self._running: list[PackedRow] = []  # in the order of their admission
        self._prefixes = PrefixStore()
        self._turns, self._weight = Turns(), weight
        self._run_tokens = self._reused_tokens = self._drawn_tokens = 0

    # --- what the loop calls -----------------------------------------------------------------------------------------

    def admit(self, stream: TokenStream) -> None:
        """Have the stream wait for its place."""
        generation = stream.generation
        loaded = self._versions.get(generation.version)
        if loaded is None:
            stream.finish("error", error=f"adapter version {generation.version} was unloaded before the answer began")
            return
        prompt, sampling = generation.prompt_token_ids, generation.sampling
        room = min(sampling.max_tokens, self._prompts.context_tokens - len(prompt))
        row = DecodingRow(0, generation.slot, prompt, sampling, generation.draw_key, room)
        if generation.constraint is not None:
            row.allowed = generation.constraint.begin()
        self._waiting.append(PackedRow(stream, row, loaded, KeyValues(self._shape), as_tokens(prompt)))

    def drop(self, stream: TokenStream) -> None:
        """Forget a cancelled stream; its keys and values are kept as if it were done."""
        self._waiting = [row for row in self._waiting if row.stream is not stream]
        for row in [row for row in self._running if row.stream is stream]:
            self._release(row)

    def clear(self) -> None:
        """Forget every stream, and every prefix: a failed step may have run out of memory."""
        self._waiting.clear()
        self._running.clear()
        self._prefixes = PrefixStore()

    def step(self) -> None:
        """Run one pass; see above."""
        with torch.inference_mode():
            self._fill()
            pieces = self._fitting(self._pieces())
            ready, logits = self._run(pieces)
            draw_next([row.row for row in ready], logits.float(), self._prompts)
        for row in ready:
            self._advance(row)

    def text(self, version: int, tokens: tuple[int, ...], top: int) -> ScoredText:
        """Return a text to be scored with a version; any thread may call this."""
        return ScoredText(self._versions[version].pairs, tokens, top, KeyValues(self._shape))

    def run_text(self, text: ScoredText) -> None:
        """Run the next piece of a text."""
        with torch.inference_mode():
            piece = text.piece(PIECE_BESIDE if self._running else PIECE_ALONE)
            spans = [(slice(0, len(piece)), text.pairs)] if text.pairs else []
            self._lora.use_packed(spans, spans)
            packed = PackedPass([text.cache], [len(piece)])
            text.take(packed.run(self._model, piece, torch.arange(len(piece), device=piece.device)).float())

    def forget(self, loaded: LoadedVersion) -> None:
        """Release the cache of a version that is no longer served."""
        self._prefixes.forget(loaded)

    def close(self) -> None:
        """Restore the model."""
        self.clear()
        self._lora.remove()

    def counts(self) -> EngineCounts:
        """Return the present work; any thread may call this."""
        return EngineCounts(
            rows_running=len(self._running),
            rows_waiting=len(self._waiting),
            cached_tokens=self._prefixes.tokens,
            cached_bytes=self._prefixes.nbytes,
            prompt_tokens_run=self._run_tokens,
            prompt_tokens_reused=self._reused_tokens,
            tokens_drawn=self._drawn_tokens,
        )

    # --- admission ---------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Admit waiting streams, taking owners in turn and each owner's in order, until the room is used."""
        for row in self._by_turns():
            if len(self._running) == MOST_ROWS:
                return
            source, shared = self._source(row)
            if self._soon_shared(row) >= shared + SHORTEST_REUSED:
                continue
            needed = row.cache.grown_bytes(len(row.tokens) + BLOCK)
            if self._running and self._running_bytes() + needed > self._most_bytes:
                return
            self._waiting.remove(row)
            self._begin(row, source, shared)
            self._running.append(row)
            self._turns = take_turn(self._turns, row.stream.generation.owner, self._weight)

    def _by_turns(self) -> Iterator[PackedRow]:
        """Yield each row that waits once; the next owner depends on the rows admitted meanwhile."""
        queues: dict[str, deque[PackedRow]] = {}
        for row in self._waiting:
            queues.setdefault(row.stream.generation.owner, deque()).append(row)
        while (owner := next_turn(self._turns, queues)) is not None:
            yield queues[owner].popleft()
            if not queues[owner]:
                del queues[owner]

    def _source(self, row: PackedRow) -> tuple[CachedPrefix | PackedRow | None, int]:
        """Return the source and length of the row's computed beginning; at least one token is left to run."""
        source: CachedPrefix | PackedRow | None
        source, shared = self._prefixes.find(row.loaded, row.tokens)
        for other in self._running:
            if other.loaded is row.loaded:
                computed = min(common_length(other.tokens, row.tokens), other.cache.length)
                if computed > shared:
                    source, shared = other, computed
        shared = min(shared, len(row.tokens) - 1)
        return (source, shared) if shared >= SHORTEST_REUSED else (None, 0)

    def _soon_shared(self, row: PackedRow) -> int:
        """Return how much of the row's beginning a running prompt will compute but has not computed yet."""
        longest = 0
        for other in self._running:
            if other.loaded is row.loaded and other.pending > 1:
                shared = min(common_length(other.tokens, row.tokens), len(row.tokens) - 1)
                if shared > other.cache.length:
                    longest = max(longest, shared)
        return longest

    def _begin(self, row: PackedRow, source: CachedPrefix | PackedRow | None, shared: int) -> None:
        """Give the row the keys and values of its beginning."""
        if isinstance(source, CachedPrefix):
            if shared == len(source.tokens):
                self._prefixes.remove(source)
                row.cache = source.cache  # it continues in the same memory
            else:
                self._prefixes.touch(source)
                row.cache = source.cache.copy_beginning(shared)
        elif source is not None:
            row.cache = source.cache.copy_beginning(shared)
        if not row.admitted_before:
            row.admitted_before, row.stream.cached_tokens = True, shared
            self._reused_tokens += shared

    # --- a step ------------------------------------------------------------------------------------------------------

    def _pieces(self) -> list[Piece]:
        """Return the tokens to run: one of each decoding row, and the prompts' even shares of a piece."""
        decoding = [row for row in self._running if row.pending == 1]
        prefilling = [row for row in self._running if row.pending > 1]
        left = PIECE_BESIDE if decoding else PIECE_ALONE
        pieces = [(row, 1) for row in decoding]
        for index, row in enumerate(prefilling):
            share = max(SMALLEST_PIECE, left // (len(prefilling) - index))
            count = min(row.pending, share, left)
            if count:
                pieces.append((row, count))
                left -= count
        return pieces

    def _fitting(self, pieces: list[Piece]) -> list[Piece]:
        """Make room for the pieces: kept prefixes leave first, then the youngest rows wait again."""
        while True:
            needed = self._running_bytes() + sum(row.cache.grown_bytes(count) for row, count in pieces)
            self._prefixes.shrink(max(0, self._most_bytes - needed))
            if needed <= self._most_bytes or len(self._running) == 1:
                return sorted(pieces, key=lambda piece: piece[0].stream.generation.version)
            youngest = self._running.pop()
            youngest.cache = KeyValues(self._shape)
            self._waiting.insert(0, youngest)
            pieces = [piece for piece in pieces if piece[0] is not youngest]

    def _run(self, pieces: Sequence[Piece]) -> tuple[list[PackedRow], Tensor]:
        """Run the pieces; return the rows with all tokens run, and the logits after them [rows, V]."""
        counts = [count for _, count in pieces]
        ready = [row for row, count in pieces if count == row.pending]
        ends = [end for end, (row, count) in zip(accumulate(counts), pieces, strict=True) if count == row.pending]
        ids = np.concatenate([row.tokens[row.cache.length :][:count] for row, count in pieces])
        self._lora.use_packed(_spans(pieces), _spans([(row, 1) for row in ready]))
        packed = PackedPass([row.cache for row, _ in pieces], counts)
        device = self._shape.device
        logits = packed.run(
            self._model,
            torch.from_numpy(ids).long().to(device),
            torch.tensor([end - 1 for end in ends], dtype=torch.long, device=device),
        )
        self._run_tokens += sum(count for row, count in pieces if not row.row.tokens)
        return ready, logits

    def _advance(self, row: PackedRow) -> None:
        """Push the row's new token to its stream, and end the row if it is done."""
        answer, stream = row.row, row.stream
        if answer.finish == "error":
            self._running.remove(row)  # and its keys and values with it: they may not be finite
            stream.finish("error", error=answer.error)
            return
        self._drawn_tokens += 1
        row.tokens = np.append(row.tokens, np.int32(answer.tokens[-1]))
        stream.push(answer.tokens[-1], answer.logprobs[-1])
        if answer.finish is not None:
            self._release(row)
            stream.finish(answer.finish, stop=None if answer.stop is None else answer.stop.stop)

    def _release(self, row: PackedRow) -> None:
        """End the row, and cache its keys and values for the next turn, if its version is still served."""
        self._running.remove(row)
        if self._versions.get(row.stream.generation.version) is row.loaded:
            self._prefixes.keep(row.loaded, row.tokens[: row.cache.length], row.cache)

    def _running_bytes(self) -> int:
        return sum(row.cache.nbytes for row in self._running)

    # --- self-check --------------------------------------------------------------------------------------------------

    def check(self, prompts: list[tuple[int, ...]], answers: Tensor, prompt_of_row: Tensor) -> Tensor:
        """Return the logits for `check_decoding`; see `logits_in_pieces`."""
        self._model.config._attn_implementation = ATTENTION
        return logits_in_pieces(self._model, prompts, answers, prompt_of_row)

    def check_adapter(self, loaded: LoadedVersion) -> None:
        """Raise EventError (bad_adapter) if the model's logits with an adapter are not finite."""

        def run(ids: Tensor) -> Tensor:
            count = len(ids)
            self._lora.use_packed([(slice(0, count), loaded.pairs)], [(slice(0, 1), loaded.pairs)])
            return PackedPass([KeyValues(self._shape)], [count]).run(self._model, ids, ids.new_tensor([count - 1]))

        if loaded.folder is not None and not is_finite(self._model, run):
            raise overflows(loaded.folder)


def _spans(pieces: Sequence[Piece]) -> list[Span]:
    """Return the runs of tokens that one version changes, each with its factors."""
    spans, begin = [], 0
    for loaded, neighbours in groupby(pieces, key=lambda piece: piece[0].loaded):
        end = begin + sum(count for _, count in neighbours)
        if loaded.pairs:
            spans.append((slice(begin, end), loaded.pairs))
        begin = end
    return spans
