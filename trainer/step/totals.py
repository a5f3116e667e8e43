"""The numbers of an optimizer step: totals of its batch, and sums over its micro-batches.

groups of the batch ──► BatchTotals ──► what each micro-batch adds to the loss
micro-batches, logprobs, losses ──► StepSums ──► + those of the batch's other shares ──► metrics
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from schemas.events import AdvantagedGroup
from trainer.step.collate import Micro
from trainer.step.loss import Mean

STEP_VERSION = "3"
"""Version of a step's arithmetic: incremented when the same batch, weights and libraries give other bytes.

Version 1 ran every response through the model on its own. Version 2 runs a common prefix once. Version 3 takes the
loss from trainer/step/loss.py and no longer from TRL: the same formulas, with sums in another order.
"""
_ADDED = ("loss", "clipped", "reference_kl", "loss_tokens", "run_tokens", "row_tokens")
_TIMES = ("forward_s", "backward_s")
_RATIOS = 5
SUMS = len(_ADDED) + len(_TIMES) + 1 + _RATIOS
"""Length of `StepSums.pack`."""


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Denominators of a step's means: those of the whole batch, whichever part is computed here."""

    groups: int
    responses: int
    loss_tokens: float
    """At least 1."""
    max_tokens: int
    """Maximum tokens of a response."""
    reward: float
    """Mean over responses."""

    @classmethod
    def of(cls, groups: Sequence[AdvantagedGroup]) -> Self:
        """Return the totals of these groups; there is at least one."""
        responses = [response for group in groups for response in group.responses]
        return cls(
            groups=len(groups),
            responses=len(responses),
            loss_tokens=max(1.0, float(sum(response.loss_tokens for response in responses))),
            max_tokens=max(group.sampling.max_tokens for group in groups),
            reward=sum(response.reward for response in responses) / len(responses),
        )

    def mean(self, losses: Tensor, mask: Tensor, over: Mean) -> Tensor:
        """Return the contribution, [], of a micro-batch's tokens, [B, T], to a mean over the whole batch."""
        total = losses * mask
        if over == "responses":
            return (total.sum(-1) / mask.sum(-1).clamp(min=1.0)).sum() / self.responses
        if over == "tokens":
            return total.sum() / self.loss_tokens
        return total.sum() / (self.responses * self.max_tokens)


@dataclass(slots=True)
class StepSums:
    """Sums over the micro-batches of one step, or of one share of it."""

    loss: float = 0.0
    clipped: float = 0.0
    reference_kl: float = 0.0
    loss_tokens: float = 0.0
    run_tokens: float = 0.0
    """Tokens that went through the model."""
    row_tokens: float = 0.0
    """Tokens of the rows, counting shared ones repeatedly."""
    forward_s: float = 0.0
    backward_s: float = 0.0
    largest: float = 0.0
    """Largest difference of two logprobs, nats."""
    ratios: Tensor = field(default_factory=lambda: torch.zeros(_RATIOS, dtype=torch.float64))
    """Sums over tokens of ratio, k3, |difference|, entropy, ratio²."""

    def observe(self, micro: Micro, logps: Tensor, entropies: Tensor | None, run: int) -> None:
        """Record the pass of a micro-batch: `logps` [B, T] without gradient; `run` tokens went through the model."""
        mask = micro.loss_mask
        difference = (logps - micro.sampled_logps) * mask
        ratio = difference.exp()
        rows = (
            ratio,
            ratio - 1 - difference,
            difference.abs(),
            torch.zeros_like(mask) if entropies is None else entropies,
            ratio.square(),
        )
        self.ratios += torch.stack([(row.double() * mask).sum() for row in rows]).cpu()
        self.loss_tokens += micro.loss_tokens
        self.largest = max(self.largest, difference.abs().max().item())
        self.run_tokens += run
        self.row_tokens += sum(len(row.tokens) for row in micro.rows)

    def pack(self) -> Tensor:
        """Return everything, [SUMS] float64, for `add`."""
        plain = [float(getattr(self, name)) for name in (*_ADDED, *_TIMES)]
        return torch.tensor([*plain, self.largest, *self.ratios.tolist()], dtype=torch.float64)

    def add(self, vector: Tensor, *, meanwhile: bool) -> None:
        """Add the sums of another share of the batch; if computed `meanwhile`, it took no time of its own."""
        values = dict(zip((*_ADDED, *_TIMES, "largest"), vector.tolist(), strict=False))
        for name, value in values.items():
            value_here = getattr(self, name)
            largest = name == "largest" or (name in _TIMES and meanwhile)
            setattr(self, name, max(value_here, value) if largest else value_here + value)
        self.ratios += vector[len(values) :]

    def metrics(self, batch: BatchTotals) -> dict[str, float]:
        """Return the step in numbers. `kl` is the k3 estimate of KL(sampler || trainer), nats per token.

        `effective` is the share of the tokens that would count as much with equal weights: Kish's effective sample
        size over n, (Σw)² / (n Σw²), of the ratios w; 1 where no token was run.
        """
        ratio, k3, difference, entropy, squared = (self.ratios / max(1.0, self.loss_tokens)).tolist()
        return {
            "loss": self.loss,
            "reward": batch.reward,
            "ratio": ratio,
            "effective": ratio**2 / squared if squared else 1.0,
            "kl": k3,
            "kl_reference": self.reference_kl,
            "mismatch": difference,
            "mismatch_max": self.largest,
            "clipped": self.clipped,
            "entropy": entropy,
            "groups": float(batch.groups),
            "responses": float(batch.responses),
            "tokens": batch.loss_tokens,
            "tokens_given": float(self.row_tokens),
            "tokens_run": float(self.run_tokens),
            "forward_s": self.forward_s,
            "backward_s": self.backward_s,
        }
