"""The losses of tuning, on the logprobs of whole answers.

    sft   - sum of logp over the tokens with loss / their number in the whole step
    dpo   - log sigmoid(beta * ((chosen - reference of chosen) - (rejected - reference of rejected)))

Both are what TRL 1.16 computes (SFTTrainer with loss_type "nll" and the loss on completions alone, DPOTrainer with
loss_type "sigmoid"), which a test compares.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sft_loss(
    logps: Tensor,  # [A] float32, nats: sum over the loss tokens of each answer
    loss_tokens: int,  # of the whole step, of which these answers may be a part
) -> Tensor:  # [], to be summed over the parts of a step
    """Return the mean negative logprob per token of the step."""
    return -logps.sum() / max(1, loss_tokens)


def dpo_margins(
    logps: Tensor,  # [P, 2] float32, nats: chosen and rejected answer of each pair, under the weights being trained
    reference: Tensor,  # [P, 2] float32, nats: the same under the weights that the version starts from
    beta: float,
) -> Tensor:  # [P]
    """Return how much more each chosen answer has gained than the rejected one, times beta.

    TRL logs it as rewards/margins; arXiv:2305.18290, the implicit reward.
    """
    gained = logps - reference
    return beta * (gained[:, 0] - gained[:, 1])


def dpo_loss(
    margins: Tensor,  # [P] float32, of `dpo_margins`
    pairs: int,  # of the whole step, of which these may be a part
) -> Tensor:  # [], to be summed over the parts of a step
    """Return the mean over the pairs of the step of - log sigmoid(margin): arXiv:2305.18290, equation 7."""
    return -torch.nn.functional.logsigmoid(margins).sum() / pairs
