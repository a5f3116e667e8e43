"""Run every distinct prefix once.

    rows [B, L] of one batch ──► prefix trees ──► one forward pass over their nodes ──► logprobs [B, T]

      all responses of a group share its prompt, all groups share the system prompt, and short answers often begin
      alike, so most tokens of a batch follow a prefix that another row has too:

      <sys> <user> 1 + 2 ─┬─ 3 ─┬─ <end>        one node per distinct prefix; a node sees its ancestors and itself,
                          │     └─ 0 ── <end>   and its position is its depth. The last token of a row predicts
                          └─ The ── ...         nothing that is needed, so it is not run at all.

The idea is Prefix Grouper's (arXiv:2506.05433), taken to its end: there the prompt is shared, here all prefixes are.
Logits exist only for nodes that predict a completion token, a few rows at a time, and only within their chunk: the
backward pass needs only their expectation of the output embeddings, which the forward pass keeps.

Not covered: models that take no custom mask, that depend on the order of the tokens rather than on their positions
(sliding windows, recurrent layers, ALiBi), or that change the logits after the head. `unshareable` names them, and the
trainer then runs TRL's plain pass. Attention is dense over the nodes of the merged trees, so very long completions
(thousands of tokens) gain little; NODES bounds the waste.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

NODES = 4096
"""Most nodes merged in one pass (a longer row is alone); their mask takes NODES² bytes."""

LOGITS = 2**24
"""Most logits alive at once: 64 MiB of float32."""


class PrefixTrees(NamedTuple):
    """Rows merged by prefix. N nodes, U of which predict one of the M tokens that are needed."""

    tokens: Tensor  # [N] int64
    positions: Tensor  # [N] int64, depth in the tree
    sees: Tensor  # [N, N] bool, true where the column is an ancestor of the row, or the row itself
    heads: Tensor  # [U] int64, nodes whose next token is needed
    target_heads: Tensor  # [M] int64 into heads
    target_ids: Tensor  # [M] int64, vocabulary
    target_places: Tensor  # [M] int64 into the flat [B * T] output


def grow(rows: Sequence[tuple[Sequence[int], int]], width: int, nodes: int = NODES) -> list[PrefixTrees]:
    """Return the prefix trees of `rows`, each a row's tokens (no padding) and the length of its prompt (at least 1).

    The logprob of completion token t of row b belongs at place b * width + t. Rows stay in order; the next
    trees begin where one more row would exceed `nodes`.
    """
    grown = []
    trees = _Builder()
    for index, (tokens, prompt) in enumerate(rows):
        if trees.tokens and trees.missing(tokens) + len(trees.tokens) > nodes:
            grown.append(trees.built())
            trees = _Builder()
        trees.add(tokens, prompt, index * width)
    return [*grown, trees.built()] if trees.tokens else grown


class _Builder:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.children: dict[tuple[int, int], int] = {}
        self.targets: list[tuple[int, int, int]] = []  # node, token, place

    def missing(self, tokens: Sequence[int]) -> int:
        node = -1
        for depth, token in enumerate(tokens[:-1]):
            child = self.children.get((node, token))
            if child is None:
                return len(tokens) - 1 - depth
            node = child
        return 0

    def add(self, tokens: Sequence[int], prompt: int, place: int) -> None:
        node, last = -1, len(tokens) - 1
        for depth, token in enumerate(tokens):
            if depth >= prompt:
                self.targets.append((node, token, place + depth - prompt))
            if depth == last:
                return
            child = self.children.get((node, token))
            if child is None:
                child = len(self.tokens)
                self.children[node, token] = child
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(depth)
            node = child

    def built(self) -> PrefixTrees:
        sees = np.eye(len(self.tokens), dtype=np.bool_)
        for node, parent in enumerate(self.parents):  # a parent comes before its children
            if parent >= 0:
                sees[node, : parent + 1] = sees[parent, : parent + 1]
        targets = np.array(self.targets, dtype=np.int64).reshape(-1, 3)
        heads, target_heads = np.unique(targets[:, 0], return_inverse=True)
        return PrefixTrees(
            tokens=torch.tensor(self.tokens),
            positions=torch.tensor(self.depths),
            sees=torch.from_numpy(sees),
            heads=torch.from_numpy(heads),
            target_heads=torch.from_numpy(target_heads.reshape(-1)),
            target_ids=torch.from_numpy(targets[:, 1].copy()),
            target_places=torch.from_numpy(targets[:, 2].copy()),
        )


class NextToken(torch.autograd.Function):  # type: ignore[misc]
    """Logprob of given next tokens, and the entropy of their distributions, without keeping logits.

        logp_i = h_u · W[id_i] / t - log sum_v exp(h_u · W[v] / t)        u = the head that predicts target i
        d logp_i / d h_u = (W[id_i] - E_v[W[v]]) / t
        entropy_u = log sum_v exp(...) - h_u · E_v[W[v]] / t

    The expectation E_v[W[v]] = softmax(h_u W^T / t) W is all that the backward pass needs; the head gets no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [U, D] after the final norm
        weight: Tensor,  # [V, D] of the language-model head, frozen
        heads: Tensor,  # [M] int64 into hidden
        ids: Tensor,  # [M] int64, vocabulary
        temperature: float,
    ) -> tuple[Tensor, Tensor]:  # [M] and [U] float32, nats
        """Return logprob per target and entropy per head."""
        expected = torch.empty(hidden.shape, dtype=torch.float32, device=hidden.device)
        normalizer = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        rows = max(1, LOGITS // len(weight))
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = (hidden[part] @ weight.T).float().div_(temperature)
            normalizer[part] = logits.logsumexp(-1)
            probabilities = logits.sub_(normalizer[part, None]).exp_()
            expected[part] = (probabilities.to(weight.dtype) @ weight).float()
        chosen = (hidden[heads].float() * weight[ids].float()).sum(-1) / temperature
        entropy = normalizer - (hidden.float() * expected).sum(-1) / temperature
        ctx.save_for_backward(expected, weight, heads, ids)
        ctx.temperature, ctx.dtype = temperature, hidden.dtype
        ctx.mark_non_differentiable(entropy)
        return chosen - normalizer[heads], entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `hidden`; nothing else has one."""
        expected, weight, heads, ids = ctx.saved_tensors
        pulled = grads[0][:, None] / ctx.temperature
        hidden = torch.zeros_like(expected).index_add_(0, heads, pulled * (weight[ids].float() - expected[heads]))
        return hidden.to(ctx.dtype), None, None, None, None


def logprobs(
    model: PreTrainedModel,
    input_ids: Tensor,  # [B, P + T] int64, prompts padded left, completions right
    attention_mask: Tensor,  # [B, P + T], 0 where padded
    width: int,  # T
    temperature: float,
    nodes: int = NODES,
) -> tuple[Tensor, Tensor, int]:
    """Return logprobs [B, T] and entropies [B, T] (float32, nats, 0 where padded), and how many tokens were run."""
    prompt_width = input_ids.shape[1] - width
    mask = attention_mask.bool().cpu()
    prompts = mask[:, :prompt_width].sum(1).tolist()
    ids = input_ids.cpu()
    rows = [(row[kept].tolist(), prompt) for row, kept, prompt in zip(ids, mask, prompts, strict=True)]
    flat = torch.zeros(len(rows) * width, device=input_ids.device)
    entropies = flat.clone()
    run = 0
    weight = model.get_output_embeddings().weight
    for grown in grow(rows, width, nodes):
        trees = PrefixTrees(*(part.to(input_ids.device) for part in grown))
        hidden = model.base_model(
            input_ids=trees.tokens[None],
            position_ids=trees.positions[None],
            attention_mask=trees.sees[None, None],
            use_cache=False,
        ).last_hidden_state[0, trees.heads]
        if not len(trees.heads):
            continue
        logps, entropy = NextToken.apply(hidden, weight, trees.target_heads, trees.target_ids, temperature)
        flat = flat.scatter(0, trees.target_places, logps)
        entropies = entropies.scatter(0, trees.target_places, entropy[trees.target_heads])
        run += len(trees.tokens)
    return flat.view(-1, width), entropies.view(-1, width), run


def unshareable(model: PreTrainedModel) -> str | None:
    """Return why prefixes of `model` cannot be shared, or None when they can.

    A probe decides in the end: two short rows with a common prefix through both passes.
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
    if config._attn_implementation not in ("sdpa", "eager"):
        return f"its attention ({config._attn_implementation}) takes no custom mask"
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None or head.weight.requires_grad:
        return "its head is not a frozen linear map"
    return _probe(model)


def _probe(model: PreTrainedModel) -> str | None:
    device = model.get_input_embeddings().weight.device
    vocabulary = model.config.get_text_config().vocab_size
    ids = (torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 6, 7]]) * 7 % vocabulary).to(device)
    with torch.no_grad():
        ours = logprobs(model, ids, torch.ones_like(ids), 2, 1.0)[0]
        plain = model(input_ids=ids).logits[:, 2:4].float().log_softmax(-1).gather(-1, ids[:, 3:, None])[..., 0]
    apart = (ours - plain).abs().max().item()
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.25
    return None if apart <= tolerance else f"its logprobs then differ by {apart:.2g} nats"
