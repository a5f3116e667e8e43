"""Sample many tasks at once with a model in this process.

    requests ──► prompts ──► shared beginning, run once a version ──► rest of each prompt, run once ──► first tokens
                                                                                                            │
                        a row leaves when it is done ◄── one token for every row ◄──────────────────────────┘

A prompt is run once however many slots it has (shared_prefix.py), the beginning that all prompts share (system message,
template) is run once per adapter version, and an adapter is applied next to the weights (lora.py). The last few
versions stay in memory, so that two that alternate are swapped without reading files. A slot's draws depend on its key,
slot and step (decoding_row.py), not on its neighbours. A round may have requests of several versions, of one policy or
of several: rows of one version are adjacent, and each version's factors are applied to its own rows (lora.py). The
weights are read once for all of them, which takes most of a step's time; a row draws from the distribution that it
would have alone, up to rounding.

Requests do not join a running round: the policy agent sends the next round when this one is done (continuous.py
admits them at any step, and takes 1.3 to 1.5 times as long for a round; `make bench BENCH=sampling` measures both). All
tensors are on one device.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from streams.engines.base_model import Base, load_base
from streams.engines.local.decoding_row import DecodingRow, draw_next
from streams.engines.local.key_values import CacheShape
from streams.engines.local.lora import BatchedLora, LoraPair, overflows, read_lora
from streams.engines.local.self_check import check_decoding, is_finite
from streams.engines.local.shared_prefix import ATTENTION, FanOut
from streams.engines.protocol import Completion, EnginePart, SamplingRequest, check_folder, failed_slot, failed_slots
from streams.engines.rendering.prompts import Prompts
from streams.errors import EventError
from streams.settings.model import Settings

CACHE_BYTES = 1 << 30
"""Maximum bytes of keys and values of rows decoded together; further requests are decoded after them."""
PREFILL_TOKENS = 8192
"""Maximum prompt tokens run together, without padding: bounds the activations."""
ROUND_ROWS = 256
"""Maximum slots decoded together: bounds the logits."""
SHORTEST_SHARED = 8
"""A shared beginning with fewer tokens than this is not worth a separate pass."""
CAPACITY = 3
"""Number of versions that keep factors and the cached beginning of prompts in memory: primary, candidate, and a pinned
one. A fleet, where policies take turns, keeps fleet.states."""
COMPACT_SHARE = 8
"""Finished rows are removed once they are at least 1 / this of the rows in the step."""


@dataclass(slots=True)
class ResidentVersion:
    """A version in memory."""

    folder: Path | None
    pairs: Mapping[str, LoraPair]
    beginning: tuple[int, ...] = ()
    """The part of the prompts' shared beginning that was run under this version."""
    cache: DynamicCache | None = None
    """Its keys and values."""
    last_prompt: tuple[int, ...] = ()


class RoundVersions(NamedTuple):
    """The versions of a round, and the one that answers each request."""

    lora: BatchedLora
    versions: Sequence[ResidentVersion]
    version_of: Sequence[int]
    """Index of the version of each request."""

    def apply(self, requests: Sequence[int]) -> None:
        """Have each row of a batch changed by its version; `requests` are those of the rows."""
        spans, start = [], 0
        for version, count in self.counts(requests):
            spans.append((slice(start, start + count), version.pairs))
            start += count
        self.lora.use(spans)

    def counts(self, requests: Sequence[int]) -> list[tuple[ResidentVersion, int]]:
        """Return each version with the number of its requests, which are adjacent."""
        groups = itertools.groupby(requests, key=lambda request: self.version_of[request])
        return [(self.versions[index], len(list(group))) for index, group in groups]


class TransformersEngine:
    """Serves a `Base` and one adapter at a time, of one policy or of several in turn."""

    name = "transformers"

    def __init__(self, base: Base, threads: int = 1, capacity: int = CAPACITY) -> None:
        """Take over `base`: nothing else may run its model until `close`. `threads` 0 uses all cores.

        `capacity` versions stay in memory.

        Raises SettingsError for a model without chat template, or with attention that cannot be fanned out.
        """
        self.base_digest, self.tokenizer_digest = base.base_digest, base.tokenizer_digest
        self.served_version = 0
        self._model: Any = base.model
        self._lora = BatchedLora(self._model)
        self._served, self._capacity = ResidentVersion(None, {}), capacity
        self._resident: dict[tuple[int, Path | None], ResidentVersion] = {(0, None): self._served}
        """Versions in the order in which they were last served. Several policies may have the same version number."""
        torch.set_num_threads(threads or os.cpu_count() or 1)
        self._prompts = Prompts(base)
        self.context_tokens = self._prompts.context_tokens
        self._plain_attention = self._model.config._attn_implementation
        self._check_itself()

    def serve(self, version: int, adapter: Path | None) -> None:
        """Serve `version` from now on. Raises EventError (bad_adapter) and keeps the old one if it cannot be used."""
        self._served, self.served_version = self._load(version, adapter), version

    def _load(self, version: int, adapter: Path | None) -> ResidentVersion:
        """Load a version into memory and return it; the least recently used leaves. Raises EventError."""
        check_folder(version, adapter)
        resident = self._resident.pop((version, adapter), None)
        if resident is None:
            resident = ResidentVersion(adapter, read_lora(adapter, self._model) if adapter else {})
            self._check_adapter(resident)
        self._resident[version, adapter] = resident
        for oldest in list(self._resident)[: -self._capacity]:
            del self._resident[oldest]
        return resident

    def _check_adapter(self, version: ResidentVersion) -> None:
        """Raise EventError (bad_adapter) if the model's logits with an adapter are not finite."""
        self._lora.use([(slice(0, 1), version.pairs)])
        if version.folder and not is_finite(self._model, lambda ids: self._model(input_ids=ids[None]).logits):
            raise overflows(version.folder)

    def close(self) -> None:
        """Restore the model."""
        self._lora.remove()
        self._model.config._attn_implementation = self._plain_attention

    def sample(self, requests: Sequence[SamplingRequest]) -> list[list[Completion]]:
        """Answer every slot of every request; see `Engine.sample`."""
        return self._answer(requests, self._one_version(len(requests)))

    def sample_mixed(self, parts: Sequence[EnginePart]) -> list[list[list[Completion]]]:
        """Answer requests of several versions in one round; see `MixedEngine`."""
        versions = [self._load(part.version, part.adapter) for part in parts]
        version_of = [index for index, part in enumerate(parts) for _ in part.requests]
        requests = [request for part in parts for request in part.requests]
        answers = iter(self._answer(requests, RoundVersions(self._lora, versions, version_of)))
        return [list(itertools.islice(answers, len(part.requests))) for part in parts]

    def _one_version(self, requests: int) -> RoundVersions:
        """Return a round in which the served version answers this many requests."""
        return RoundVersions(self._lora, [self._served], [0] * requests)

    def _answer(self, requests: Sequence[SamplingRequest], versions: RoundVersions) -> list[list[Completion]]:
        answers: list[list[Completion]] = [[] for _ in requests]
        rows: list[DecodingRow] = []
        for index, request in enumerate(requests):
            try:
                prompt = self._prompts.of_request(request)
            except EventError as exc:
                answers[index] = failed_slots(request, f"task {request.task.task_id}: {exc}")
                continue
            sampling = request.sampling
            room = min(sampling.max_tokens, self.context_tokens - len(prompt))
            for slot in range(request.task.group_size):
                rows.append(DecodingRow(index, slot, prompt, sampling, request.draw_key, room))
        # stable: the slots of a request stay adjacent, and so do the requests of a version
        rows.sort(key=lambda row: (versions.version_of[row.request], len(row.prompt)))
        for batch in self._batches(rows):
            with torch.inference_mode():
                self._decode(batch, versions)
            for row in batch:
                answers[row.request].append(self._completion(row))
        return answers

    # --- prompts -----------------------------------------------------------------------------------------------------

    def _batches(self, rows: Sequence[DecodingRow]) -> Iterator[list[DecodingRow]]:
        """Yield rows that fit together, none empty."""
        token_bytes = CacheShape.read(self._model).token_bytes
        batch: list[DecodingRow] = []
        cached = prefill = 0
        for row in rows:
            new = 0 if batch and batch[-1].request == row.request else len(row.prompt)
            is_full = (cached + new + row.room) * token_bytes > CACHE_BYTES or prefill + new > PREFILL_TOKENS
            if batch and (is_full or len(batch) == ROUND_ROWS):
                yield batch
                batch, cached, prefill, new = [], 0, 0, len(row.prompt)
            batch.append(row)
            cached, prefill = cached + new + row.room, prefill + new
        if batch:
            yield batch

    def _begin(
        self, prompts: Sequence[tuple[int, ...]], versions: RoundVersions, requests: Sequence[int]
    ) -> tuple[Tensor, DynamicCache, Tensor]:
        """Run the prompt of each request once.

        Return the logits after it [tasks, V], the caches, and their mask [tasks, P].
        """
        device = self._model.device
        shared, cache = self._begin_shared(prompts, versions.counts(requests))
        versions.apply(requests)
        rests = [prompt[len(shared) :] for prompt in prompts]
        longest = max(map(len, rests))
        ids = torch.tensor([[0] * (longest - len(rest)) + list(rest) for rest in rests], device=device)
        lengths = torch.tensor([len(rest) for rest in rests], device=device)
        real = torch.arange(longest, device=device) >= longest - lengths[:, None]  # padding is on the left
        positions = len(shared) + (real.cumsum(1) - 1).clamp(min=0)
        mask = torch.cat((real.new_ones(len(rests), len(shared)), real), dim=1)
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        seen = causal & real[:, None, :] | torch.eye(longest, dtype=torch.bool, device=device)  # no row sees nothing
        seen = torch.cat((seen.new_ones(len(rests), longest, len(shared)), seen), dim=2)[:, None]
        logits = self._model(
            input_ids=ids, attention_mask=seen, position_ids=positions, past_key_values=cache, logits_to_keep=1
        ).logits[:, -1]
        return logits, cache, mask

    def _begin_shared(
        self, prompts: Sequence[tuple[int, ...]], versions: Sequence[tuple[ResidentVersion, int]]
    ) -> tuple[tuple[int, ...], DynamicCache]:
        """Return the beginning that all prompts share, and its cache, expanded to one row per prompt.

        `versions`: those of the prompts, each with its number of prompts.
        """
        last_prompts = [version.last_prompt for version, _ in versions if version.last_prompt]
        shared = _common([*prompts, *last_prompts])
        shared = shared[: min(map(len, prompts)) - 1]  # each prompt keeps at least one own token, for logits
        start = 0
        for version, count in versions:
            version.last_prompt = prompts[start]
            start += count
        if len(shared) < SHORTEST_SHARED:
            return (), DynamicCache()
        begun = (version.beginning for version, _ in versions if version.cache is not None)
        shared = next((beginning for beginning in begun if _is_nearly(beginning, shared)), shared)
        fresh = [version for version, _ in versions if version.beginning != shared]
        if fresh:
            self._run_shared(shared, fresh)
        return shared, _expand([(version.cache, count) for version, count in versions if version.cache is not None])

    def _run_shared(self, shared: tuple[int, ...], versions: Sequence[ResidentVersion]) -> None:
        """Run a beginning once for each of these versions, in one pass."""
        self._lora.use([(slice(row, row + 1), version.pairs) for row, version in enumerate(versions)])
        caches = DynamicCache()
        ids = torch.tensor([shared] * len(versions), device=self._model.device)
        self._model(input_ids=ids, past_key_values=caches, logits_to_keep=1)
        for row, version in enumerate(versions):
            version.beginning, version.cache = shared, DynamicCache()
            for index, layer in enumerate(caches.layers):
                version.cache.update(layer.keys[row : row + 1], layer.values[row : row + 1], index)

    # --- decoding ----------------------------------------------------------------------------------------------------

    def _decode(self, rows: Sequence[DecodingRow], versions: RoundVersions) -> None:
        """Decode `rows`; those of one request, and of one version, must be adjacent."""
        first = [index for index, row in enumerate(rows) if index == 0 or rows[index - 1].request != row.request]
        ends = [*first[1:], len(rows)]
        counts = torch.tensor([end - start for start, end in zip(first, ends, strict=True)], device=self._model.device)
        task_of_row = torch.arange(len(first), device=counts.device).repeat_interleave(counts)
        requests = [rows[index].request for index in first]
        logits, cache, mask = self._begin([rows[index].prompt for index in first], versions, requests)
        live = list(rows)
        versions.apply([row.request for row in live])
        positions = torch.tensor([len(row.prompt) for row in rows], device=counts.device)
        fanout = FanOut(cache, mask, task_of_row)
        tokens = draw_next(live, logits[task_of_row].float(), self._prompts)
        while True:
            unfinished = [index for index, row in enumerate(live) if row.finish is None]
            if not unfinished:
                return
            if (len(live) - len(unfinished)) * COMPACT_SHARE >= len(live):
                places = torch.tensor(unfinished, device=counts.device)
                fanout.keep(places)
                live, tokens, positions = [live[index] for index in unfinished], tokens[places], positions[places]
                versions.apply([row.request for row in live])
            tokens = draw_next(live, self._step(fanout, tokens, positions).float(), self._prompts)
            positions = positions + 1

    def _step(self, fanout: FanOut, tokens: Tensor, positions: Tensor) -> Tensor:
        """Append one token to every row; return the logits after it, [rows, V]."""
        fanout.begin_step()
        logits: Tensor = self._model(
            input_ids=tokens[:, None],
            position_ids=positions[:, None],
            attention_mask=tokens.new_zeros(1, 1, 1, 1),  # of four dimensions: taken as it is, and `attend` needs none
            past_key_values=fanout,
            fanout=fanout,
        ).logits[:, -1]
        return logits

    def _completion(self, row: DecodingRow) -> Completion:
        if row.error or row.finish is None:
            return failed_slot(row.slot, row.error or "the slot was never decoded")
        text = self._prompts.text(row.tokens) if row.stop is None else row.stop.text
        return Completion(
            slot=row.slot,
            text=text,
            finish_reason=row.finish,
            prompt_token_ids=row.prompt,
            completion_token_ids=tuple(row.tokens),
            logprobs=tuple(row.logprobs),
        )

    # --- self-check --------------------------------------------------------------------------------------------------

    def _check_itself(self) -> None:
        """Refuse a model for which shared-prefix decoding gives other logits than its plain forward."""

        def decode(prompts: list[tuple[int, ...]], answers: Tensor, task_of_row: Tensor) -> Tensor:
            self._model.config._attn_implementation = ATTENTION
            logits, cache, mask = self._begin(prompts, self._one_version(len(prompts)), range(len(prompts)))
            fanout, steps = FanOut(cache, mask, task_of_row), [logits[task_of_row]]
            positions = torch.tensor([len(prompts[task]) for task in task_of_row.tolist()], device=answers.device)
            for step in range(answers.shape[1]):
                steps.append(self._step(fanout, answers[:, step], positions + step))
            return torch.stack(steps, dim=1)

        try:
            check_decoding(self._model, decode)
        finally:
            self._served.beginning, self._served.cache, self._served.last_prompt = (), None, ()


def build_engine(settings: Settings, capacity: int | None) -> TransformersEngine:
    """Return the engine of `model.base`. Raises SettingsError if it cannot start."""
    return TransformersEngine(load_base(settings.model), settings.policy.threads, capacity or CAPACITY)


def _common(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the common beginning of all.

    >>> _common([(1, 2, 3), (1, 2, 4), (1, 2)])
    (1, 2)
    """
    low, high = min(prompts), max(prompts)  # in sorted order, all share what these two share
    length = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:length]


def _is_nearly(beginning: tuple[int, ...], shared: tuple[int, ...]) -> bool:
    """Whether `beginning` can be used for `shared`: it is a prefix, and running the rest would gain little."""
    return shared[: len(beginning)] == beginning and len(shared) - len(beginning) < SHORTEST_SHARED


def _expand(caches: Sequence[tuple[DynamicCache, int]]) -> DynamicCache:
    """Return one cache with `count` rows of each of these, which have one row and as many tokens."""
    rows = DynamicCache()
    for index in range(len(caches[0][0].layers)):
        keys = [cache.layers[index].keys.expand(count, -1, -1, -1) for cache, count in caches]
        values = [cache.layers[index].values.expand(count, -1, -1, -1) for cache, count in caches]
        rows.update(_concatenate(keys), _concatenate(values), index)
    return rows


def _concatenate(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(tuple(rows))  # an expanded tensor is not copied if it is alone
