"""A batch in shares, and their gradients as one.

    groups in the recorded order ──► split: N runs of neighbours ──► a gradient each ──► ((g0 + g1) + g2) + … ──► step
                                                                     any process         float32, in this order

A share's gradient is a function of the weights, the batch and the share's number: means are those of the whole batch,
whoever computes it. So N processes, or one that computes the shares in turn, give the same bytes. Another number of
shares gives other last digits, since sums of floats depend on their order.

Not covered: a group in two shares. Its responses share their prompt, which is run once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from schemas.events import AdvantagedGroup


class Share(NamedTuple):
    """What a share adds to the step."""

    gradient: Tensor  # [P] float32, on the CPU; P numbers are trained
    sums: Tensor  # [K] float64, what the step's metrics are made of


class Others(Protocol):
    """The processes that compute all shares but the first."""

    def meet(self, recipe: dict[str, str]) -> None:
        """Return when all are ready to compute by this recipe."""

    def begin(self, weights: Tensor, groups: Sequence[AdvantagedGroup]) -> None:
        """Let each begin with its share of the batch `groups`, with these weights [P]."""

    def shares(self, own_s: float) -> Iterator[Share]:
        """Yield theirs, in order. The first one took `own_s`, seconds."""


def split(groups: Sequence[AdvantagedGroup], count: int) -> list[list[AdvantagedGroup]]:
    """Return `count` runs of neighbouring groups with about as many tokens each; some are empty if groups are few.

    A group belongs to the share in which the middle of its tokens lies, counted from the first group on.
    """
    weights = [
        len(group.prompt_token_ids) + sum(len(r.completion_token_ids) for r in group.responses) for group in groups
    ]
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


def gradient_of(parameters: Sequence[Tensor]) -> Tensor:
    """Return their gradients as `weights_of` has the weights, 0 where there is none."""
    return weights_of([torch.zeros_like(one) if one.grad is None else one.grad for one in parameters])


def set_weights(parameters: Sequence[Tensor], flat: Tensor) -> None:
    """Put `flat`, which `weights_of` made, back."""
    with torch.no_grad():
        for parameter, part in zip(parameters, _parts(parameters, flat), strict=True):
            parameter.copy_(part)


def set_gradient(parameters: Sequence[Tensor], flat: Tensor) -> None:
    """Let `flat` be their gradients."""
    for parameter, part in zip(parameters, _parts(parameters, flat), strict=True):
        parameter.grad = part.to(device=parameter.device, dtype=parameter.dtype)


def _parts(parameters: Sequence[Tensor], flat: Tensor) -> Iterator[Tensor]:
    for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
        yield part.view(parameter.shape).clone()
