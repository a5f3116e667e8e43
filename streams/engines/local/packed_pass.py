"""Run the tokens of many rows in one pass, some one token and some a piece of their prompt, without padding.

    rows          a: 1 token   b: 1 token   c: 40 of its prompt's tokens
    the pass      [1, 42]: linear layers see 42 tokens; attention takes each row's queries to that row's own cache

Each row has its own tensor of keys and values (key_values.py), so a row is admitted, set aside or dropped without
touching the others. Heads that share a key head are consecutive queries of it: nothing is repeated.

It only works for attention that is softmax(q k) v over all earlier tokens: no sliding windows, soft caps or state
spaces. At its start the engine compares it with plain forwards, and refuses a model for which they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from streams.engines.local.key_values import CacheShape, KeyValues

ATTENTION = "streamward_packed"
"""The name under which transformers finds `attend_packed`; without a `PackedPass` it is plain SDPA."""


class PackedPass(Cache):  # type: ignore[misc]
    """The caches of the rows of one pass, and the places of each row's new tokens."""

    def __init__(self, caches: Sequence[KeyValues], counts: Sequence[int]) -> None:
        """Make room for `counts[i]` new tokens in `caches[i]`; each count is at least 1."""
        super().__init__(layers=[])
        self.counts = list(counts)
        self._caches = caches
        self._length = max(cache.length for cache in caches)
        whole: list[list[tuple[Tensor, ...]]] = [[], []]
        fresh: list[list[tuple[Tensor, ...]]] = [[], []]
        for cache, count in zip(caches, counts, strict=True):
            cache.make_room(count)
            begin, end = cache.length, cache.length + count
            for part in (0, 1):
                whole[part].append(cache.data[:, None, part, :, :end].unbind(0))
                fresh[part].append(cache.data[:, part, :, begin:end].unbind(0))
        self.keys, self.values = ([*zip(*rows, strict=True)] for rows in whole)  # [layer][row]: [1, heads, tokens, d]
        self._fresh = [[*zip(*rows, strict=True)] for rows in fresh]
        self._masks: dict[int, list[Tensor | None]] = {}

    def run(self, model: Any, ids: Tensor, last: Tensor) -> Tensor:
        """Run the new tokens `ids` [sum of counts] and return the logits after those at `last` [rows], [rows, V]."""
        pieces = zip(self._caches, self.counts, strict=True)
        spans = [torch.arange(cache.length, cache.length + count) for cache, count in pieces]
        logits: Tensor = model(
            input_ids=ids[None],
            position_ids=torch.cat(spans).to(ids.device)[None],
            attention_mask=ids.new_zeros(1, 1, 1, 1),  # of four dimensions: taken as it is, `attend_packed` has its own
            past_key_values=self,
            logits_to_keep=last,
            packed=self,
        ).logits[0]
        for cache, count in zip(self._caches, self.counts, strict=True):
            cache.length += count
        return logits

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values [1, kv heads, tokens, d] to their rows, and return them."""
        for fresh, states in zip(self._fresh, (key_states, value_states), strict=True):
            for room, state in zip(fresh[layer_idx], states[0].split(self.counts, dim=1), strict=True):
                room.copy_(state)
        return key_states, value_states

    def masks(self, per_key: int) -> list[Tensor | None]:
        """Return, for each row, the mask added to the scores of its new tokens, with `per_key` query heads per key
        head."""
        if per_key not in self._masks:  # the same in every layer of a model
            pairs = zip(self._caches, self.counts, strict=True)
            self._masks[per_key] = [_causal_mask(cache, count, per_key) for cache, count in pairs]
        return self._masks[per_key]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens before this pass, in the longest row."""
        return self._length


def _causal_mask(cache: KeyValues, count: int, per_key: int) -> Tensor | None:
    """Return 0 or, for a later token, -inf: [per_key * count, tokens]; None for a single token, which sees all."""
    if count == 1:
        return None
    mask = cache.data.new_full((count, cache.length + count), -torch.inf).triu(cache.length + 1)
    return mask.repeat(per_key, 1)


def attend_packed(
    module: nn.Module,
    query: Tensor,  # [1, heads, tokens, d]
    key: Tensor,  # [1, kv heads, tokens, d], the new ones
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention of each token on its own row, [1, tokens, heads, d].

    `options` are those of transformers, and `packed`, the `PackedPass`; without one this is plain SDPA.
    """
    packed: PackedPass | None = options.pop("packed", None)
    if packed is None:
        output, weights = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, weights
    heads, width = query.shape[1], query.shape[3]
    per_key = heads // key.shape[1]
    queries = query[0].split(packed.counts, dim=1)
    keys, values = packed.keys[module.layer_idx], packed.values[module.layer_idx]
    outputs = []
    for row_query, row_key, row_value, mask in zip(queries, keys, values, packed.masks(per_key), strict=True):
        count = row_query.shape[1]
        row_query = row_query.reshape(1, -1, per_key * count, width)
        output = scaled_dot_product_attention(
            row_query, row_key, row_value, attn_mask=mask, scale=options.get("scaling")
        )
        outputs.append(output.reshape(heads, count, width))
    return torch.cat(outputs, dim=1).transpose(0, 1)[None].contiguous(), None


def logits_in_pieces(model: Any, prompts: Sequence[Sequence[int]], answers: Tensor, prompt_of_row: Tensor) -> Tensor:
    """Return the logits for `check_decoding`: prompts in two pieces, the second in a pass with rows that decode."""
    rows = [[*prompts[p], *answer] for p, answer in zip(prompt_of_row.tolist(), answers.tolist(), strict=True)]
    cuts = [(0, 5, -1, None), (0, -2, -1, None), (0, 7, -2, None)]  # one token of a row beside more of another
    caches = [KeyValues(CacheShape.read(model)) for _ in rows]
    logits: list[list[Tensor]] = [[] for _ in rows]
    for number in range(3):
        pieces = [row[cut[number] : cut[number + 1]] for row, cut in zip(rows, cuts, strict=True)]
        ids = answers.new_tensor([token for piece in pieces for token in piece])
        counts = [len(piece) for piece in pieces]
        after = PackedPass(caches, counts).run(model, ids, torch.arange(len(ids), device=ids.device))
        for parts, part in zip(logits, after.split(counts), strict=True):
            parts.append(part)
    return torch.stack([torch.cat(parts)[-1 - answers.shape[1] :] for parts in logits])


AttentionInterface.register(ATTENTION, attend_packed)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
