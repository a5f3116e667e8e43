"""Linear layers with an adapter, of which each row's result is independent of the number of other rows.

    inputs [rows, K] ──► at least 2 rows ──► oneDNN: x W^T + (alpha / r) x A^T B^T ──► the same bits as alone

A library of linear algebra chooses its kernel by the number of rows, and kernels add in different orders. MKL has
others for 1 to 11 rows than for more; oneDNN, with a weight laid out once, has one for 2 rows and more. No library
guarantees that, so an engine that relies on it compares rows alone and with others when it starts (prompt_sampler.py).

Only float32 on a CPU is multiplied by oneDNN; other layers and devices keep torch's own product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from streams.engines.local.lora import LoraPair

LEAST_ROWS = 2
"""A single row is multiplied by another kernel."""
Product = Callable[[Tensor], Tensor]
"""[rows, K] -> [rows, M]."""


class RowAdapter(dict[str, tuple[Product, Product]]):
    """The products of an adapter, by the name of the module that each changes."""

    def __init__(self, pairs: Mapping[str, LoraPair]) -> None:
        super().__init__((name, (product(pair.a.T), product(pair.b.T))) for name, pair in pairs.items())
        self.shape = tuple(sorted((name, pair.a.shape, pair.b.shape) for name, pair in pairs.items()))


class RowLinears:
    """A model's linear layers, multiplied in this way until `remove`, with the adapter of `use`."""

    def __init__(self, model: nn.Module) -> None:
        self._adapter: Mapping[str, tuple[Product, Product]] = {}
        self._layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
        with torch.no_grad():
            for name, layer in self._layers.items():
                layer.forward = self._forward(name, product(layer.weight, layer.bias))

    def use(self, adapter: RowAdapter) -> None:
        """Apply this adapter from now on."""
        self._adapter = adapter

    def remove(self) -> None:
        """Restore the layers."""
        for layer in self._layers.values():
            del layer.forward

    def _forward(self, name: str, base: Product) -> Product:
        def forward(inputs: Tensor) -> Tensor:
            rows = inputs.reshape(-1, inputs.shape[-1])
            count = len(rows)
            if count < LEAST_ROWS:
                rows = torch.cat((rows, rows.new_zeros(LEAST_ROWS - count, rows.shape[1])))
            output = base(rows)
            if (factors := self._adapter.get(name)) is not None:
                output = output + factors[1](factors[0](rows))
            return output[:count].view(*inputs.shape[:-1], -1)

        return forward


def product(weight: Tensor, bias: Tensor | None = None) -> Product:
    """Return the function x -> x W^T + bias for a weight [M, K], which is laid out once."""
    weight = weight.detach().contiguous()
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return lambda rows: linear(rows, weight, bias)
    ops: Any = torch.ops.mkldnn
    packed = ops._reorder_linear_weight(weight)

    def multiply(rows: Tensor) -> Tensor:
        output: Tensor = ops._linear_pointwise(rows, packed, bias, "none", [], "")
        return output

    return multiply
