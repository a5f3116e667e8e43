"""Linear layers for few rows at a time, in little more time than for one.

    weight ──► laid out once as oneDNN reads it ──► y = x W^T, up to MOST_ROWS rows

A step of decoding has a row for each answer in progress. Torch multiplies by MKL, which reads the whole weight anew
for each of 4 to 15 rows; 8 of them take 2.4 times the processor time of one, and 1.4 times here (SmolLM2-135M). Pieces
of prompts beside them make more rows: from 64 to 1,024, MKL takes as long on an Intel Xeon, and 15 to 30 % longer on an
AMD EPYC. It costs a copy of the weights. Only float32 on a CPU gains, and only what oneDNN supports is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

MOST_ROWS = 1024
"""More than a step of decoding has; beyond, torch's own product is left."""


class FewRows:
    """A model's linear layers, so multiplied until `remove`."""

    def __init__(self, model: nn.Module) -> None:
        every = (module for module in model.modules() if isinstance(module, nn.Linear))
        self._changed = [module for module in every if _gains(module)] if torch.backends.mkldnn.is_available() else []
        with torch.no_grad():
            for module in self._changed:
                module.forward = _forward(module)

    @property
    def changes(self) -> bool:
        """Whether any layer gains."""
        return bool(self._changed)

    def remove(self) -> None:
        """Restore the layers."""
        for module in self._changed:
            del module.forward


def _gains(module: nn.Linear) -> bool:
    weight = module.weight
    return bool(weight.device.type == "cpu" and weight.dtype == torch.float32)


def _forward(module: nn.Linear) -> Callable[[Tensor], Tensor]:
    ops: Any = torch.ops.mkldnn
    weight, bias = module.weight.detach(), module.bias
    packed = ops._reorder_linear_weight(weight)

    def forward(inputs: Tensor) -> Tensor:
        if inputs.numel() // inputs.shape[-1] > MOST_ROWS:
            return linear(inputs, module.weight, bias)
        found: Tensor = ops._linear_pointwise(inputs, packed, bias, "none", [], "")
        return found

    return forward
