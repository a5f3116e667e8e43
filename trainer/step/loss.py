"""Losses: the contribution of each token of a response to the loss of its batch.

    logprobs now and as sampled, advantages, mask ──► Loss.per_token ──► [B, T] ──► mean over the whole batch

`trainer.loss` names one of `LOSSES`, or a function of the user's own as `module:function` (docs/algorithms.md). A loss
sees one micro-batch and returns its tokens' losses. The mean is taken over the whole batch, so neither micro-batches
nor the shares of several processes change it. The KL term (`trainer.beta`) and importance weights
(`trainer.importance`, folded into the advantages) apply to each loss alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from streams import references
from streams.errors import SettingsError
from streams.settings.model import Trainer

Mean = Literal["responses", "tokens", "max_tokens"]
"""The mean that a batch's loss takes: over responses (each a mean over its tokens), over tokens, or over responses
times the maximum tokens of one."""
Level = Literal["token", "response"]
"""The ratio of a token: its own, or the geometric mean over the tokens of its response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """The tokens of a micro-batch: B responses, T the tokens of the longest."""

    logp: Tensor  # [B, T] float32, nats: each sampled token under the weights being trained, with gradient
    old: Tensor  # [B, T] float32, nats: the same token under the version that sampled it, no gradient
    ratio: Tensor  # [B, T], or [B, 1] at level "response", float32: exp(logp - old), with gradient
    advantages: Tensor  # [B, T] float32, no gradient
    mask: Tensor  # [B, T] float32: 1 where the policy wrote the token
    settings: Trainer


PerToken = Callable[[LossTokens], Tensor]


def clipped(tokens: LossTokens) -> Tensor:
    """Return -min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A), [B, T].

    PPO, arXiv:1707.06347 equation 7, with one bound for each side as in DAPO, arXiv:2503.14476 section 3.1.
    """
    ratio = tokens.ratio
    bounded = ratio.clamp(1 - tokens.settings.epsilon_low, 1 + tokens.settings.epsilon_high)
    return -torch.minimum(ratio * tokens.advantages, bounded * tokens.advantages)


def capped(tokens: LossTokens) -> Tensor:
    """Return -sg(min(r, epsilon_high)) A logp, [B, T], where sg lets no gradient through: CISPO, arXiv:2506.13585."""
    weight = tokens.ratio.clamp(max=tokens.settings.epsilon_high).detach()
    return -weight * tokens.advantages * tokens.logp


def outside_bounds(tokens: LossTokens) -> Tensor:
    """Return which tokens the bounds of `clipped` clip, [B, T] bool: beyond them in their advantage's direction."""
    below = (tokens.ratio < 1 - tokens.settings.epsilon_low) & (tokens.advantages < 0)
    return below | ((tokens.ratio > 1 + tokens.settings.epsilon_high) & (tokens.advantages > 0))


def above_cap(tokens: LossTokens) -> Tensor:
    """Return which tokens the cap of `capped` clips, [B, T] bool."""
    return (tokens.ratio > tokens.settings.epsilon_high) & (tokens.advantages > 0)


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss per token, and its reduction to one number."""

    per_token: PerToken
    mean: Mean = "tokens"
    level: Level = "token"
    held_back: PerToken = outside_bounds
    """Which tokens count as clipped, [B, T] bool."""

    def clipped_share(self, tokens: LossTokens) -> float:
        """Return the share of clipped tokens."""
        share: float = ((self.held_back(tokens) * tokens.mask).sum() / tokens.mask.sum().clamp(min=1.0)).item()
        return share


LOSSES = {
    "grpo": Loss(clipped, "responses"),  # arXiv:2402.03300 section 4.1.1
    "dapo": Loss(clipped, "tokens"),  # arXiv:2503.14476 section 3.3
    "bnpo": Loss(clipped, "tokens"),  # TRL's mean over a local batch; the batch is whole here, so it is dapo's
    "dr_grpo": Loss(clipped, "max_tokens"),  # arXiv:2503.20783 section 3.2
    "cispo": Loss(capped, "tokens", held_back=above_cap),  # arXiv:2506.13585 section 3.1
    "gspo": Loss(clipped, "responses", "response"),  # arXiv:2507.18071 section 4.1
}


def loss(*, mean: Mean = "tokens", level: Level = "token") -> Callable[[PerToken], PerToken]:
    """Mark a function of yours as a loss with this mean and this level of ratio; unmarked, it has the defaults."""

    def mark(function: PerToken) -> PerToken:
        function.loss_form = (mean, level)  # type: ignore[attr-defined]
        return function

    return mark


def loss_of(name: str) -> Loss:
    """Return the loss that `trainer.loss` names. Raises SettingsError if it cannot be imported."""
    if name in LOSSES:
        return LOSSES[name]
    function = references.load("trainer.loss", name)
    form: tuple[Mean, Level] = getattr(function, "loss_form", ("tokens", "token"))
    return Loss(function, *form)


def ratio_of(logp: Tensor, old: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Return exp(logp - old), [B, T]; at level "response" the exponential of its mean over the tokens, [B, 1]."""
    difference = logp - old
    if level == "token":
        return difference.exp()
    tokens = mask.sum(-1, keepdim=True).clamp(min=1.0)
    return ((difference * mask).sum(-1, keepdim=True) / tokens).exp()


def reference_kl(tokens: LossTokens, reference: Tensor) -> Tensor:
    """Return the k3 estimate of KL(policy || reference), [B, T], nats, weighted by the ratio (arXiv:2512.02556)."""
    difference = reference - tokens.logp
    return tokens.ratio * (difference.exp() - difference - 1)


def token_losses(chosen: Loss, tokens: LossTokens) -> Tensor:
    """Return the loss of each token, [B, T]. Raises SettingsError if a user's own returns another shape."""
    losses = chosen.per_token(tokens)
    if losses.shape != tokens.logp.shape:
        raise SettingsError(
            f"trainer.loss={tokens.settings.loss} returned a tensor of shape {list(losses.shape)}, expected a loss for "
            f"each token, {list(tokens.logp.shape)}"
        )
    return losses
