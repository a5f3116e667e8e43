"""Decode many slots on one copy of their prompt.

    prompt cache   [tasks, heads, P, d]   run once a task, never repeated ──┐
    own cache      [rows,  heads, t, d]   the tokens of each slot ──────────┴─► attention of rows on both

The slots of a task share the keys and values of their prompt, so the queries of all its slots are one matrix against
it: the scores over the prompt and over a slot's own tokens are concatenated before the softmax. This is exact, not an
approximation (the idea is Hydragen's, arXiv:2402.05099). Finished rows are removed; a row's place in the task x slot
grid is only looked up, so that costs one copy of the remaining rows.

It only works for attention that is softmax(q k) v over all earlier tokens: no sliding windows, soft caps or state
spaces. At its start the engine compares both ways of running, and refuses a model for which they differ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "streamward_fanout"
"""The name under which transformers finds `attend`; without a `FanOut` it is plain SDPA."""
FIRST_CAPACITY = 16
"""Initial room for a row's own tokens; doubled when full, so short answers cost little."""


class FanOut(Cache):  # type: ignore[misc]
    """Keys and values of prompts (per task) and of completions (per row)."""

    def __init__(self, prompts: DynamicCache, mask: Tensor, task_of_row: Tensor) -> None:
        """Take the cache of the prompts, `mask` [tasks, P] bool (false is padding), and the task of each row [rows]."""
        super().__init__(layers=[])
        self.prompt_keys: list[Tensor] = [layer.keys for layer in prompts.layers]  # [tasks, kv heads, P, d]
        self.prompt_values: list[Tensor] = [layer.values for layer in prompts.layers]
        self.own_keys: list[Tensor] = []  # [rows, kv heads, capacity, d]
        self.own_values: list[Tensor] = []
        self.length = 0
        """Own tokens per row; the same for every row, as all rows take their steps together."""
        dtype = self.prompt_keys[0].dtype
        self.bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
        self._place(task_of_row)

    def _place(self, task_of_row: Tensor) -> None:
        """Give each row its cell in the grid task x slot; rows of a task are adjacent."""
        counts = torch.bincount(task_of_row, minlength=self.bias.shape[0])
        first = counts.cumsum(0) - counts
        self.task_of_row = task_of_row
        self.slots = int(counts.max())
        self.cell_of_row = (
            task_of_row * self.slots + torch.arange(len(task_of_row), device=first.device) - first[task_of_row]
        )
        self.dense = len(task_of_row) == self.bias.shape[0] * self.slots

    def begin_step(self) -> None:
        """Make room for one more token per row."""
        capacity = self.own_keys[0].shape[2] if self.own_keys else 0
        if self.length == capacity:
            rows = len(self.task_of_row)
            added = capacity or FIRST_CAPACITY
            for layers, prompts in ((self.own_keys, self.prompt_keys), (self.own_values, self.prompt_values)):
                fresh = [layer.new_empty((rows, layer.shape[1], added, layer.shape[3])) for layer in prompts]
                layers[:] = [torch.cat(pair, dim=2) for pair in zip(layers, fresh, strict=True)] if layers else fresh
        self.length += 1

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write this step's keys and values [rows, kv heads, 1, d]; return the rows' own, without the prompt."""
        keys, values = self.own_keys[layer_idx], self.own_values[layer_idx]
        keys[:, :, self.length - 1 : self.length] = key_states
        values[:, :, self.length - 1 : self.length] = value_states
        return keys[:, :, : self.length], values[:, :, : self.length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens before this step, prompt padding included."""
        return int(self.bias.shape[1]) + self.length

    def keep(self, rows: Tensor) -> None:
        """Forget every row except `rows` [kept] (ascending), and every task without rows."""
        tasks, task_of_row = torch.unique_consecutive(self.task_of_row[rows], return_inverse=True)
        if len(tasks) < self.bias.shape[0]:
            self.bias = self.bias[tasks]
            for layers in (self.prompt_keys, self.prompt_values):
                for index, layer in enumerate(layers):
                    layers[index] = layer[tasks]
        for layers in (self.own_keys, self.own_values):
            for index, layer in enumerate(layers):
                layers[index] = layer[rows]
        self._place(task_of_row)


def attend(
    module: nn.Module,
    query: Tensor,  # [rows, heads, 1, d]
    key: Tensor,  # [rows, kv heads, t, d], the rows' own
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention of each row on its prompt and its own tokens, [rows, 1, heads, d].

    `options` are those of transformers, and `fanout`, the `FanOut`; without one this is plain SDPA.
    """
    fanout: FanOut | None = options.pop("fanout", None)
    if fanout is None:
        output, weights = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, weights
    scaling = options.get("scaling") or query.shape[3] ** -0.5
    prompt_key, prompt_value = fanout.prompt_keys[module.layer_idx], fanout.prompt_values[module.layer_idx]
    tasks, kv_heads, prompt_length, width = prompt_key.shape
    rows, heads = query.shape[:2]
    per_kv = heads // kv_heads
    query = query.reshape(rows, kv_heads, per_kv, width) * scaling

    def to_grid(x: Tensor) -> Tensor:  # [rows, kv heads, g, n] -> [tasks, kv heads, slots * g, n]
        if not fanout.dense:
            x = x.new_zeros((tasks * fanout.slots, *x.shape[1:])).index_copy_(0, fanout.cell_of_row, x)
        x = x.view(tasks, fanout.slots, kv_heads, per_kv, -1).transpose(1, 2)
        return x.reshape(tasks, kv_heads, fanout.slots * per_kv, -1)

    def to_rows(x: Tensor) -> Tensor:  # and back
        x = x.view(tasks, kv_heads, fanout.slots, per_kv, -1).transpose(1, 2)
        x = x.reshape(tasks * fanout.slots, kv_heads, per_kv, -1)
        return x if fanout.dense else x[fanout.cell_of_row]

    on_prompt = to_grid(query) @ prompt_key.transpose(2, 3) + fanout.bias[:, None, None, :]
    scores = torch.cat((to_rows(on_prompt), query @ key.transpose(2, 3)), dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    output = to_rows(to_grid(weights[..., :prompt_length]) @ prompt_value) + weights[..., prompt_length:] @ value
    return output.reshape(rows, 1, heads, width), None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
