"""Draw one token per row, independent of what else is in the batch.

    logits ──► / temperature ──► top_p ──► cumulative sums ──► the token under u        u = sha256(key, slot, step)

The random number of a draw is a function of key, slot and step, not of a generator's state, so a slot gets the same
tokens in any batch (up to rounding of the logits), and again after a restart. One number per draw suffices: it goes
through the inverse of the cumulative distribution. Logprobs are those of the distribution that was drawn from. There
are no penalties, no top_k and no min_p: the trainer would have to know them too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def draw(
    logits: Tensor,  # [rows, vocabulary], float32; overwritten
    temperature: Sequence[float],  # per row; 0 takes the likeliest token
    top_p: Sequence[float],  # per row; 1 keeps all
    numbers: Sequence[float],  # per row, in [0, 1); see `protocol.uniform`
) -> tuple[Tensor, Tensor]:  # tokens [rows] int64, logprobs [rows] float32, nats
    """Return the drawn tokens and their logprobs. A row whose logits are not finite gets a logprob that is not finite.

    Greedy rows report the logprob at temperature 1.
    """
    if any(t not in (0.0, 1.0) for t in temperature):
        logits /= logits.new_tensor([t or 1.0 for t in temperature])[:, None]
    logits -= logits.amax(dim=-1, keepdim=True)
    for row, share in enumerate(top_p):
        if share < 1.0 and temperature[row] > 0:
            _keep_top(logits[row], share)
    shares = logits.exp()
    sums = shares.cumsum(dim=-1)  # on a CPU summed in float64 and rounded once
    total = shares.sum(dim=-1)
    last = sums[:, -1]
    target = (last.double() * torch.tensor(numbers, dtype=torch.float64, device=logits.device)).float()
    target = torch.minimum(target, torch.nextafter(last, torch.zeros_like(last)))
    tokens = torch.searchsorted(sums, target[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    if 0.0 in temperature:
        greedy = torch.tensor([t == 0.0 for t in temperature], device=logits.device)
        tokens = torch.where(greedy, logits.argmax(dim=-1), tokens)
    return tokens, logits.gather(1, tokens[:, None])[:, 0] - total.log()


def _keep_top(logits: Tensor, share: float) -> None:
    """Mask, in place, all but the smallest set of likeliest tokens that holds `share` (arXiv:1904.09751)."""
    ordered, index = torch.softmax(logits, dim=-1).sort(descending=True, stable=True)
    before = ordered.double().cumsum(dim=-1) - ordered
    logits[index[before >= share]] = -torch.inf
