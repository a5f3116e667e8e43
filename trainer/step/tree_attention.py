"""Attention in a tree of tokens: each token sees its ancestors and itself, and nothing else is computed.

    runs of nodes ──► Paths: blocks of runs of about equal size ──► queries × (ancestors, own keys), a block at a time

A run is the part that one row adds to the tree: consecutive nodes after the path of their ancestors. Nodes of different
runs meet only on a path, so N nodes cost the sum over runs of queries times path, not N². Eight trajectories that share
a prompt of 128 tokens and add 256 each take 0.8 million products in place of 4.7.

Keys are gathered for each run, those of a shared path once per run. Within a path a key is seen if it is not deeper
than the query, so the mask needs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

NAME = "prefix_tree"
"""Name of this attention in Transformers."""

QUERIES = 128
"""Maximum queries of a run: a longer one is cut, so that its early queries meet no keys that they cannot see."""

WASTE, SLACK = 1.2, 2**14
"""Runs are padded together while that multiplies the products by at most this factor, or adds at most so many."""


class NodeRun(NamedTuple):
    """Nodes that follow each other, each the parent of the next."""

    path: NDArray[np.int64]  # nodes from the root to the last of the run
    new: int
    """Number of the run's own nodes, at the end of the path."""


class Block(NamedTuple):
    """R runs padded to n queries and K keys."""

    queries: Tensor  # [R, n] int64, nodes; padding repeats a node, and its output is not used
    keys: Tensor  # [R, K] int64, nodes by depth; padding is deeper than any query
    sees: Tensor  # [R, 1, n, K] bool


class Paths(NamedTuple):
    """Which of N nodes see each other."""

    blocks: tuple[Block, ...]
    places: Tensor  # [N] int64, of each node's query in those of all blocks, padding included

    def to(self, device: torch.device) -> Paths:
        """Return the same on `device`."""
        blocks = tuple(Block(*(part.to(device) for part in block)) for block in self.blocks)
        return Paths(blocks, self.places.to(device))


def paths(runs: Sequence[NodeRun], nodes: int) -> Paths:
    """Return the visibility of `nodes` nodes; each is in one of the `runs`."""
    blocks, places, begun = [], np.empty(nodes, np.int64), 0
    for alike in _alike([piece for run in runs for piece in _pieces(run)]):
        width, depth = max(run.new for run in alike), max(len(run.path) for run in alike)
        queries, keys = np.zeros((len(alike), width), np.int64), np.zeros((len(alike), depth), np.int64)
        above = np.empty(len(alike), np.int64)
        for number, run in enumerate(alike):
            own_nodes = run.path[len(run.path) - run.new :]
            queries[number, : run.new], keys[number, : len(run.path)] = own_nodes, run.path
            above[number] = len(run.path) - run.new
            places[own_nodes] = begun + number * width + np.arange(run.new)
        begun += queries.size
        sees = np.arange(depth) <= (above[:, None] + np.arange(width))[..., None]
        blocks.append(Block(torch.from_numpy(queries), torch.from_numpy(keys), torch.from_numpy(sees[:, None])))
    return Paths(tuple(blocks), torch.from_numpy(places))


def _pieces(run: NodeRun) -> Iterator[NodeRun]:
    above = len(run.path) - run.new
    for start in range(0, run.new, QUERIES):
        stop = min(run.new, start + QUERIES)
        yield NodeRun(run.path[: above + stop], stop - start)


def _alike(runs: Sequence[NodeRun]) -> Iterator[list[NodeRun]]:
    """Yield the runs, those of about equal size together."""
    together: list[NodeRun] = []
    needed = depth = 0
    for run in sorted(runs, key=lambda run: (run.new, len(run.path))):  # stable
        products, deepest = run.new * len(run.path), max(depth, len(run.path))
        padded = (len(together) + 1) * run.new * deepest
        if together and padded > max(WASTE * (needed + products), needed + products + SLACK):
            yield together
            together, needed, deepest = [], 0, len(run.path)
        together.append(run)
        needed, depth = needed + products, deepest
    if together:
        yield together


@contextmanager
def attention_of(model: PreTrainedModel) -> Iterator[None]:
    """Let the layers of `model` attend along the `paths` that its forward pass is given."""
    config = model.config
    usual = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = usual


def _attend(
    module: nn.Module,
    query: Tensor,  # [1, heads, N, D]
    key: Tensor,  # [1, key heads, N, D]
    value: Tensor,  # [1, key heads, N, D]
    attention_mask: Tensor | None,  # None: `paths` has everything
    *,
    paths: Paths,
    **options: Any,  # of transformers: `scaling` (default: 1 / sqrt(D)), `dropout`, and others without effect here
) -> tuple[Tensor, None]:
    """Return the outputs, [1, N, heads, D]. Heads that share their keys are run as more queries of these."""
    scaling, dropout = options.get("scaling"), options.get("dropout", 0.0)
    heads, shared, wide = query.shape[1], key.shape[1], value.shape[-1]
    outputs = []
    for block in paths.blocks:
        (runs, width), times = block.queries.shape, heads // shared
        queries = _gather(query, block.queries).reshape(runs, shared, times * width, -1)
        sees = block.sees.expand(-1, times, -1, -1).reshape(runs, 1, times * width, -1)
        attended = scaled_dot_product_attention(
            queries, _gather(key, block.keys), _gather(value, block.keys), sees, dropout_p=dropout, scale=scaling
        )
        outputs.append(attended.reshape(runs, heads, width, wide).transpose(1, 2).reshape(-1, heads, wide))
    return torch.cat(outputs).index_select(0, paths.places)[None], None


def _gather(states: Tensor, nodes: Tensor) -> Tensor:
    """Return the states of some nodes: [1, H, N, D] and [R, n] give [R, H, n, D]."""
    return states[0].transpose(0, 1).index_select(0, nodes.flatten()).unflatten(0, nodes.shape).transpose(1, 2)


AttentionInterface.register(NAME, _attend)
