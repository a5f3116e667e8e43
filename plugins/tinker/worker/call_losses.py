"""The losses of the Tinker API: what an example adds to the sum of its call.

    logprobs [T] or [T, K] with gradient, inputs of the same shape, config ──► loss_of ──► [] , summed over tokens

Sums over tokens and examples, never means: a mean is put into weights or advantages by the client. The formulas are
those of Tinker's documentation (tinker-docs.thinkingmachines.ai/tinker/losses), r = exp(logp - q), q the input
`logprobs`:

    cross_entropy        - w logp                                             w: weights, 1 where not sent
    importance_sampling  - r A
    ppo                  - min(r A, clip(r, low, high) A)                     arXiv:1707.06347
    cispo                - sg[clip(r, low, high)] A logp                      arXiv:2506.13585
    gspo                 ppo with r = exp(sg[mean of logp - q over the mask] + logp - sg[logp])     arXiv:2507.18071
    dro                  - (A logp - beta / 2 (logp - q)^2)                   arXiv:2405.19107
    stable_reinforce     - sg[min(r, 1)] A logp + kl_coeff / 2 (logp - q)^2   over the sampled tokens alone

Tinker publishes no objective for stable_reinforce, only what it is for and the name of its one coefficient. Ours is
REINFORCE with importance weights truncated at 1 (arXiv:1802.01561 section 4.1), which bounds what a stale or badly
rounded sampler can do, and the quadratic estimate of the KL divergence from the sampler; on-policy it is REINFORCE.

Departure: a token with advantage 0 adds nothing even where r overflows, which the formula would make not a number.
`dro` alone moves tokens without an advantage, since its penalty is over all of them, as documented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
"""By name, each [T] or [T, K] like the logprobs; `sampled`, bool, for stable_reinforce."""
Config = Mapping[str, float]

LossOf = Callable[[Tensor, Inputs, Config], Tensor]


def cross_entropy(logp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return the weighted negative logprobs, []."""
    weights = inputs.get("weights")
    return -(logp if weights is None else logp * weights).sum()


def importance_sampling(logp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return the policy gradient's surrogate with importance weights, []."""
    return -(_ratio(logp, inputs) * inputs["advantages"]).sum()


def ppo(logp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return PPO's clipped surrogate, token by token, []."""
    return _surrogate(_ratio(logp, inputs), inputs, config)


def cispo(logp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return the policy gradient with a clipped importance weight, which has no gradient, []."""
    weight = _clip(_ratio(logp, inputs), inputs, config).detach()
    return -(weight * inputs["advantages"] * logp).sum()


def gspo(logp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return PPO's surrogate with the ratio of the whole sequence and the gradient of each token, []."""
    in_ratio = inputs["sequence_ratio_mask"] != 0
    sequence = (logp.detach() - inputs["logprobs"])[in_ratio].mean()
    ratio = (sequence + logp - logp.detach()).masked_fill(inputs["advantages"] == 0, 0.0).exp()
    return _surrogate(ratio, inputs, config)


def dro(logp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return the advantage's objective with a quadratic penalty for leaving the sampler, []."""
    penalty = (logp - inputs["logprobs"]) ** 2
    return -(logp * inputs["advantages"] - 0.5 * config["beta"] * penalty).sum()


def stable_reinforce(logp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return REINFORCE with truncated importance weights and a penalty for leaving the sampler, []."""
    sampled = inputs["sampled"]
    logp, q, advantages = logp[sampled], inputs["logprobs"][sampled], inputs["advantages"][sampled]
    weight = (logp - q).exp().clamp(max=1.0).detach()
    return (0.5 * config["kl_coeff"] * (logp - q) ** 2 - weight * advantages * logp).sum()


LOSS_OF: dict[str, LossOf] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "gspo": gspo,
    "dro": dro,
    "stable_reinforce": stable_reinforce,
}
"""The names are those of plugins.tinker.calls.call_forms.LOSSES."""


def moving(loss: str, inputs: Inputs) -> Tensor | None:
    """Return where the loss may have a gradient, bool like the logprobs; None: everywhere."""
    if loss == "cross_entropy":
        return inputs["weights"] != 0 if "weights" in inputs else None
    if loss == "stable_reinforce":
        return inputs["sampled"]
    return None if loss == "dro" else inputs["advantages"] != 0


def _ratio(logp: Tensor, inputs: Inputs) -> Tensor:
    """Return exp(logp - q), and 1 without gradient where the advantage is 0."""
    return (logp - inputs["logprobs"]).masked_fill(inputs["advantages"] == 0, 0.0).exp()


def _clip(ratio: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """Return the ratio within its bounds: each token's own where they are inputs, else those of the config."""
    low, high = (
        inputs.get(name, ratio.new_tensor(config[name])) for name in ("clip_low_threshold", "clip_high_threshold")
    )
    return torch.clamp(ratio, low, high)


def _surrogate(ratio: Tensor, inputs: Inputs, config: Config) -> Tensor:
    advantages = inputs["advantages"]
    return -torch.minimum(ratio * advantages, _clip(ratio, inputs, config) * advantages).sum()
