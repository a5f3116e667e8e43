"""Logprobs by one pass of whole padded rows, for a model that cannot share prefixes (prefix_tree.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.step.prefix_tree import TokenRow


def logprobs(
    model: nn.Module,
    rows: Sequence[TokenRow],
    tokens: Sequence[Sequence[int]],  # of each row, at least those that it runs
    places: int,
    pad: int,
) -> Tensor:  # [places] float32, nats; 0 where nothing is needed
    """Return the needed logprobs of `rows`, each at its place."""
    device = next(model.parameters()).device
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in tokens], batch_first=True, padding_value=pad)
    ids = ids.to(device)
    lengths = torch.tensor([len(row) for row in tokens], device=device)
    mask = (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long()
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    flat = torch.zeros(places, device=device)
    for number, row in enumerate(rows):
        targets = torch.tensor([target[:3] for target in row.targets], device=device).reshape(-1, 3)
        positions, predicted = targets[:, 0].unique(return_inverse=True)
        logps = logits[number, positions].float().log_softmax(-1)[predicted, targets[:, 1]]
        flat = flat.index_add(0, targets[:, 2], logps)
    return flat
