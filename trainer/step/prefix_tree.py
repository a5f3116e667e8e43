"""Run every distinct prefix once.

    rows of one batch ──► prefix trees ──► one forward pass over their nodes ──► logprobs [B, T]

      all responses of a group share its prompt, all groups share the system prompt, short answers often begin alike,
      and trajectories have their first turns in common, so most tokens of a batch follow a prefix that another row has
      too:

      <sys> <user> 1 + 2 ─┬─ 3 ─┬─ <end>        one node per distinct prefix; a node sees its ancestors and itself,
                          │     └─ 0 ── <end>   and its position is its depth. What follows the last token that the
                          └─ The ── ...         policy wrote is not run, nor is that token: they predict nothing needed.

This extends Prefix Grouper (arXiv:2506.05433), which shares the prompt, to all prefixes.
Logits exist only for nodes that predict a token which the policy wrote: observations are context, and cost no head.
They exist a few rows at a time, and only within their chunk: the backward pass needs only their expectation of the
output embeddings, which the forward pass keeps.

Not covered: models that take no custom attention, that depend on the order of the tokens rather than on their positions
(sliding windows, recurrent layers, ALiBi), or that change the logits after the head. `unshareable` names them, and the
trainer then runs TRL's plain pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.step.sharded import WholeHead, whole_head
from trainer.step.tree_attention import NodeRun, Paths, attention_of, paths

NODES = 4096
"""Maximum nodes merged in one pass; a longer row is alone."""

LOGITS = 2**24
"""Maximum logits alive at once: 64 MiB of float32."""


class PrefixTrees(NamedTuple):
    """Rows merged by prefix. N nodes, U of which predict one of the M tokens that are needed."""

    tokens: Tensor  # [N] int64
    positions: Tensor  # [N] int64, depth in the tree
    paths: Paths  # which node sees which
    heads: Tensor  # [U] int64, nodes whose next token is needed
    target_heads: Tensor  # [M] int64 into heads
    target_ids: Tensor  # [M] int64, vocabulary
    target_places: Tensor  # [M] int64 into the flat [B * T] output
    moving: Tensor | None  # [U] bool, heads that a gradient may reach; None: all

    def to(self, device: torch.device) -> PrefixTrees:
        """Return the same on `device`."""
        return PrefixTrees(*(None if part is None else part.to(device) for part in self))  # type: ignore[arg-type]


class NeededToken(NamedTuple):
    """A needed logprob."""

    position: int
    """Index, in the tokens that are run, of the one that predicts it."""
    token: int
    place: int
    """Index in the flat output."""
    moves: bool = True
    """Whether a gradient may reach it."""


class TokenRow(Protocol):
    """One sequence, and its needed logprobs."""

    @property
    def run(self) -> Sequence[int]:
        """The tokens that go through the model."""
        ...

    @property
    def targets(self) -> Iterator[NeededToken]:
        """The logprobs that are needed, in the order of their places."""
        ...


R = TypeVar("R", bound=TokenRow)


class Row(NamedTuple):
    """One sequence: its tokens without padding, and the places of tokens with needed logprobs."""

    tokens: Sequence[int]
    prompt: int
    """Number of tokens before the completion, at least 1."""
    needed: Sequence[int]
    """Places in the completion, ascending."""
    place: int
    """Index of the completion's first token in the flat output."""

    @property
    def run(self) -> Sequence[int]:
        """The tokens that go through the model: those before the last needed one."""
        return self.tokens[: self.prompt + self.needed[-1]] if self.needed else ()

    @property
    def targets(self) -> Iterator[NeededToken]:
        """The needed tokens of the row itself, each predicted by the one before it."""
        for needed in self.needed:
            yield NeededToken(self.prompt + needed - 1, self.tokens[self.prompt + needed], self.place + needed)


def grow(rows: Sequence[TokenRow], nodes: int = NODES) -> list[PrefixTrees]:
    """Return the prefix trees of `rows`.

    Rows stay in order; the next trees begin where one more row would exceed `nodes`. A row without needed tokens is in
    none.
    """
    return [trees.build() for trees, _ in _plant(rows, nodes) if trees.tokens]


def cut(rows: Sequence[R], nodes: int) -> list[list[R]]:
    """Return `rows` as `grow` puts them into trees: runs of neighbours of at most `nodes` nodes; a longer row alone."""
    return [members for _, members in _plant(rows, nodes)]


def _plant(rows: Sequence[R], nodes: int) -> Iterator[tuple[_Builder, list[R]]]:
    trees, members = _Builder(), cast(list[R], [])
    for row in rows:
        if trees.tokens and trees.missing(row.run) + len(trees.tokens) > nodes:
            yield trees, members
            trees, members = _Builder(), []
        trees.add(row)
        members.append(row)
    yield trees, members


class _Builder:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.depths: list[int] = []
        self.children: dict[tuple[int, int], int] = {}
        self.runs: list[NodeRun] = []
        self.targets: list[tuple[int, int, int, bool]] = []  # node, token, place, moves

    def missing(self, tokens: Sequence[int]) -> int:
        return len(tokens) - len(self._path_of(tokens))

    def add(self, row: TokenRow) -> None:
        tokens = row.run
        path = self._path_of(tokens)
        new = len(tokens) - len(path)
        for depth in range(len(path), len(tokens)):
            node = len(self.tokens)
            self.children[path[-1] if path else -1, tokens[depth]] = node
            self.tokens.append(tokens[depth])
            self.depths.append(depth)
            path.append(node)
        if new:
            self.runs.append(NodeRun(np.array(path), new))
        self.targets += [(path[target.position], target.token, target.place, target.moves) for target in row.targets]

    def _path_of(self, tokens: Sequence[int]) -> list[int]:
        """Return the nodes of the longest prefix of `tokens` that is in the tree."""
        path: list[int] = []
        node = -1
        for token in tokens:
            child = self.children.get((node, token))
            if child is None:
                break
            path.append(node := child)
        return path

    def build(self) -> PrefixTrees:
        targets = np.array(self.targets, dtype=np.int64).reshape(-1, 4)
        heads, target_heads = np.unique(targets[:, 0], return_inverse=True)
        moving = np.bincount(target_heads.reshape(-1), targets[:, 3], len(heads)) > 0
        return PrefixTrees(
            tokens=torch.tensor(self.tokens),
            positions=torch.tensor(self.depths),
            paths=paths(self.runs, len(self.tokens)),
            heads=torch.from_numpy(heads),
            target_heads=torch.from_numpy(target_heads.reshape(-1)),
            target_ids=torch.from_numpy(targets[:, 1].copy()),
            target_places=torch.from_numpy(targets[:, 2].copy()),
            moving=None if moving.all() else torch.from_numpy(moving),
        )


_ONE_TOKEN = grow([Row((0, 0), 1, (0,), 0)])
"""The shortest possible pass."""


class NextToken(torch.autograd.Function):  # type: ignore[misc]
    """Logprob of given next tokens, and the entropy of their distributions, without keeping logits.

        logp_i = h_u · W[id_i] / t - log sum_v exp(h_u · W[v] / t)        u = the head that predicts target i
        d logp_i / d h_u = (W[id_i] - E_v[W[v]]) / t
        entropy_u = log sum_v exp(...) - h_u · E_v[W[v]] / t

    The backward pass needs only the expectation E_v[W[v]] = softmax(h_u W^T / t) W; the head gets no gradient.
    Heads that are not `moving` have no expectation, so no gradient may reach them, and their entropy is 0.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [U, D] after the final norm
        output: WholeHead,
        trees: PrefixTrees,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:  # [M] and [U] float32, nats
        """Return logprob per target and entropy per head."""
        weight, bias = output
        heads, ids, moving = trees.target_heads, trees.target_ids, trees.moving
        blank = torch.empty if moving is None else torch.zeros
        expected = blank(hidden.shape, dtype=torch.float32, device=hidden.device)
        normalizer = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        alive = max(1, LOGITS // len(weight))
        for start in range(0, len(hidden), alive):
            part = slice(start, start + alive)
            logits = (hidden[part] @ weight.T).float()
            logits = (logits if bias is None else logits.add_(bias)).div_(temperature)
            normalizer[part] = logits.logsumexp(-1)
            if moving is None:
                probabilities = logits.sub_(normalizer[part, None]).exp_()
                expected[part] = (probabilities.to(weight.dtype) @ weight).float()
            elif len(places := moving[part].nonzero()[:, 0]):
                probabilities = logits[places].sub_(normalizer[part][places, None]).exp_()
                expected[part.start + places] = (probabilities.to(weight.dtype) @ weight).float()
        rows = weight[
            ids
        ]  # kept in place of the weight, which may be here for this pass only (trainer/step/sharded.py)
        chosen = (hidden[heads].float() * rows.float()).sum(-1) / temperature
        entropy = normalizer - (hidden.float() * expected).sum(-1) / temperature
        if moving is not None:
            entropy = entropy * moving
        ctx.save_for_backward(expected, rows, heads)
        ctx.temperature, ctx.dtype = temperature, hidden.dtype
        ctx.mark_non_differentiable(entropy)
        return chosen - normalizer[heads], entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `hidden`, the only input with one."""
        expected, rows, heads = ctx.saved_tensors
        pulled = grads[0][:, None] / ctx.temperature
        hidden = torch.zeros_like(expected).index_add_(0, heads, pulled * (rows.float() - expected[heads]))
        return hidden.to(ctx.dtype), None, None, None


def logprobs(
    model: PreTrainedModel,
    rows: Sequence[TokenRow],
    shape: tuple[int, int],
    temperature: float,
    nodes: int = NODES,
    passes: int = 0,
) -> tuple[Tensor, Tensor, int]:
    """Return logprobs and entropies [*shape] (float32, nats, 0 where not needed), and how many tokens were run.

    If the rows take fewer than `passes` through the model, one token with weight 0 is run for each missing pass.
    """
    flat = torch.zeros(shape[0] * shape[1], device=model.device)
    entropies = flat.clone()
    forest = [trees.to(model.device) for trees in grow(rows, nodes)]
    one_token = _ONE_TOKEN[0].to(model.device)
    states = [_hidden_states(model, trees)[trees.heads] for trees in forest]
    idle = [_hidden_states(model, one_token) for _ in range(len(forest), passes)]
    with whole_head(model) as output:
        for trees, hidden in zip(forest, states, strict=True):
            logps, entropy = NextToken.apply(hidden, output, trees, temperature)
            flat = flat.scatter(0, trees.target_places, logps)
            entropies = entropies.scatter(0, trees.target_places, entropy[trees.target_heads])
    for hidden in idle:
        flat = flat + 0.0 * hidden.sum()
    return flat.view(shape), entropies.view(shape), sum(len(trees.tokens) for trees in forest)


def _hidden_states(model: PreTrainedModel, trees: PrefixTrees) -> Tensor:
    """Return the states [N, D] of all nodes after the final norm."""
    with attention_of(model):
        states: Tensor = model.base_model(
            input_ids=trees.tokens[None], position_ids=trees.positions[None], paths=trees.paths, use_cache=False
        ).last_hidden_state
    return states[0]


def unshareable(model: PreTrainedModel) -> str | None:
    """Return why prefixes of `model` cannot be shared, or None when they can.

    A final probe runs two short rows with a common prefix through both passes.
    """
    config = model.config.get_text_config()
    if config is not model.config:
        return "it is not a plain language model"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "it has layers other than full attention"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return "it has a sliding window"
    for name in ("final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            return f"its logits are changed after the head ({name})"
    if config._attn_implementation != "sdpa":
        return f"its attention ({config._attn_implementation}) is not the one that is run along the tree (sdpa)"
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or isinstance(head.bias, nn.Parameter) or head.weight.requires_grad:
        return "its head is not a frozen linear map"
    return _probe(model)


def _probe(model: PreTrainedModel) -> str | None:
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 6, 7]]) * 7 % vocabulary
    rows = [Row(row.tolist(), 3, (0, 1), 2 * number) for number, row in enumerate(ids)]
    ids = ids.to(model.get_input_embeddings().weight.device)
    with torch.no_grad():
        shared = logprobs(model, rows, (2, 2), 1.0)[0]
        plain = model(input_ids=ids).logits[:, 2:4].float().log_softmax(-1).gather(-1, ids[:, 3:, None])[..., 0]
    apart = (shared - plain).abs().max().item()
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.25
    return None if apart <= tolerance else f"its logprobs then differ by {apart:.2g} nats"
