"""A batch as shares of whole groups: how it is split, and what each share contributes to the step.

    groups in the recorded order ──► split: N runs of neighbours ──► one gradient each ──► ((g0 + g1) + g2) + … ──► step
                                                                     any process           float32, in this order

The gradient of a share is a function of the weights, the batch and the number of the share: means are those of the
whole batch. So N processes, or one that computes the shares in turn, give the same bytes. Another number of shares
changes the last digits, since sums of floats depend on their order.

A group is never split between two shares: its responses share their prompt, which is run once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from schemas.events import AdvantagedGroup
from trainer.step.token_chains import tokens_of


class Share(NamedTuple):
    """A share's contribution to the step."""

    gradient: Tensor  # [P] float32, on the CPU; P numbers are trained
    sums: Tensor  # [K] float64, what the step's metrics are made of


class OtherRanks(Protocol):
    """The other processes of a step: they compute all shares but the first. Each call raises LostProcessError."""

    def begin(self, weights: Tensor, groups: Sequence[AdvantagedGroup]) -> None:
        """Send the batch `groups` and these weights [P] to each."""
        ...

    def shares(self, own_s: float) -> Iterator[Share]:
        """Yield their shares, in order of ranks; share 0 took `own_s` seconds."""
        ...


def split(groups: Sequence[AdvantagedGroup], count: int) -> list[list[AdvantagedGroup]]:
    """Return `count` runs of neighbouring groups with about as many tokens each; some are empty if groups are few.

    A group belongs to the share that has the middle of its tokens, counted from the first group.
    """
    weights = [tokens_of(group) for group in groups]
    total = sum(weights)
    shares: list[list[AdvantagedGroup]] = [[] for _ in range(count)]
    before = 0
    for group, weight in zip(groups, weights, strict=True):
        shares[(2 * before + weight) * count // (2 * total)].append(group)
        before += weight
    return shares


def weights_of(parameters: Sequence[Tensor]) -> Tensor:
    """Return all numbers of `parameters` one after another, [P] float32, on the CPU."""
    return torch.cat([parameter.detach().flatten().float().cpu() for parameter in parameters])


def copy_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the present weights."""
    return [parameter.detach().clone() for parameter in parameters]


def is_equal(weights: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether both are the same numbers."""
    return all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))


def gradient_of(parameters: Sequence[Tensor]) -> Tensor:
    """Return their gradients in the layout of `weights_of`, 0 for a missing one."""
    return weights_of([torch.zeros_like(weights) if weights.grad is None else weights.grad for weights in parameters])


def set_weights(parameters: Sequence[Tensor], flat: Tensor) -> None:
    """Set the weights to `flat`, made by `weights_of`."""
    with torch.no_grad():
        for parameter, part in zip(parameters, _parts(parameters, flat), strict=True):
            parameter.copy_(part)


def set_gradient(parameters: Sequence[Tensor], flat: Tensor) -> None:
    """Set their gradients to `flat`."""
    for parameter, part in zip(parameters, _parts(parameters, flat), strict=True):
        parameter.grad = part.to(device=parameter.device, dtype=parameter.dtype)


def _parts(parameters: Sequence[Tensor], flat: Tensor) -> Iterator[Tensor]:
    for parameter, part in zip(parameters, flat.split([weights.numel() for weights in parameters]), strict=True):
        yield part.view(parameter.shape).clone()
