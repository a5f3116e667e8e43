"""Linear layers for small batches (2 to 15 rows) at little more than the cost of one row.

    weight ──► laid out once for oneDNN ──────────► y = x W^T, up to MOST_ROWS rows

A step of decoding has a row for each answer in progress. Torch multiplies by MKL, which reads the whole weight again
for each of 4 to 15 rows; 8 of them take 2.4 times the CPU time of one, and 1.4 times here (SmolLM2-135M). Pieces of
prompts in the same step make more rows: from 64 to 1,024, MKL takes as long on an Intel Xeon, and 15 to 30 % longer on
an AMD EPYC. It costs a copy of the weights. Only float32 on a CPU gains, and only layers that oneDNN supports are
changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

MOST_ROWS = 1024
"""More rows than a step of decoding has; above it, torch's own product is used."""


class PackedLinears:
    """A model's linear layers, multiplied by oneDNN until `remove`."""

    def __init__(self, model: nn.Module) -> None:
        layers = (module for module in model.modules() if isinstance(module, nn.Linear))
        self._changed = [layer for layer in layers if _gains(layer)] if torch.backends.mkldnn.is_available() else []
        with torch.no_grad():
            for layer in self._changed:
                layer.forward = _packed_forward(layer)

    @property
    def changes(self) -> bool:
        """Whether any layer gains."""
        return bool(self._changed)

    def remove(self) -> None:
        """Restore the layers."""
        for layer in self._changed:
            del layer.forward


def _gains(layer: nn.Linear) -> bool:
    weight = layer.weight
    return bool(weight.device.type == "cpu" and weight.dtype == torch.float32)


def _packed_forward(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    ops: Any = torch.ops.mkldnn
    weight, bias = layer.weight.detach(), layer.bias
    packed = ops._reorder_linear_weight(weight)

    def forward(inputs: Tensor) -> Tensor:
        if inputs.numel() // inputs.shape[-1] > MOST_ROWS:
            return linear(inputs, layer.weight, bias)
        output: Tensor = ops._linear_pointwise(inputs, packed, bias, "none", [], "")
        return output

    return forward
