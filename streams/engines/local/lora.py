"""Apply a LoRA adapter next to the weights of the base model.

    adapter_config.json + adapter_model.safetensors ──► checked ──► y = W x + (alpha / r) B A x, per linear module

Nothing is merged: a new version costs a few megabytes and a swap of hooks, the base weights stay shared between
processes, and the arithmetic equals the trainer's (LoRA, arXiv:2106.09685 section 4.1). An adapter is checked
completely before it replaces the old one. Other features of peft's adapters (DoRA, trained biases, embeddings, rank
patterns) are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from schemas import json_text
from streams.errors import EventError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Prefix of peft for the name of a module."""
NOT_APPLIED = (
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "trainable_token_indices",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "target_parameters",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
)
"""Settings of an adapter that change its arithmetic, and must be unset."""


class LoraPair(NamedTuple):
    """The two factors of one module, in the form for multiplication."""

    a: Tensor  # [in, r]
    b: Tensor  # [r, out], scaled


Span = tuple[slice, Mapping[str, LoraPair]]
"""Neighbouring rows or tokens of a pass, and the factors added to the modules for them, by name."""


def read_lora(folder: Path, model: nn.Module) -> dict[str, LoraPair]:
    """Return the factors for each module of `model` that the adapter in `folder` changes, on the model's device.

    Raises EventError (reason bad_adapter) if anything in it is missing, unknown, of another shape, or not finite.
    """
    scaling, rank = _scaling(folder)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as exc:
        raise _bad(folder, f"{WEIGHTS} cannot be read: {exc}", "publish the adapter again") from exc
    modules, dtype = dict(model.named_modules()), next(model.parameters()).dtype
    factors_of: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, factor = key.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        module = modules.get(name)
        if factor not in ("lora_A", "lora_B") or not isinstance(module, nn.Linear):
            raise _bad(folder, f"{key} fits no linear module of the base model", "train it on this base model")
        shape = (rank, module.in_features) if factor == "lora_A" else (module.out_features, rank)
        if tuple(tensor.shape) != shape:
            raise _bad(
                folder, f"{key} has shape {tuple(tensor.shape)}, expected {shape}", "train it on this base model"
            )
        if not tensor.isfinite().all():
            raise _bad(folder, f"{key} holds values that are not finite", "train again from an earlier version")
        factors_of.setdefault(name, {})[factor] = tensor.to(module.weight.device, dtype)
    if not factors_of:
        raise _bad(folder, f"{WEIGHTS} holds no tensors", "publish the adapter again")
    pairs = {}
    for name, factors in factors_of.items():
        if len(factors) != 2:
            raise _bad(folder, f"{name} has only one of lora_A and lora_B", "publish the adapter again")
        a, b = factors["lora_A"], factors["lora_B"]
        pairs[name] = LoraPair(a.T.contiguous(), (b * scaling).T.contiguous())
    return pairs


def _scaling(folder: Path) -> tuple[float, int]:
    try:
        config: dict[str, Any] = json_text.parse((folder / CONFIG).read_bytes())
        kind, rank, alpha = config["peft_type"], config["r"], config["lora_alpha"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise _bad(folder, f"{CONFIG} cannot be read: {exc!r}", "publish the adapter again") from exc
    if kind != "LORA" or type(rank) is not int or rank < 1 or not isinstance(alpha, int | float):
        raise _bad(
            folder, f"expected peft_type LORA with r and lora_alpha, got {kind}, {rank}, {alpha}", "train a LoRA"
        )
    used = [name for name in NOT_APPLIED if config.get(name)]
    if used or config.get("bias", "none") != "none":
        name = used[0] if used else "bias"
        raise _bad(folder, f"{name} is {config[name]!r}, which this engine does not apply", "train a plain LoRA")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank), rank


def overflows(folder: Path) -> EventError:
    """Return the error for an adapter under which the model gives logits that are not finite."""
    return _bad(folder, "the model's logits with it are not finite", "train again from an earlier version")


def _bad(folder: Path, error: str, remedy: str) -> EventError:
    return EventError(f"adapter {folder}: {error}; {remedy}", reason="bad_adapter")


class BatchedLora:
    """Several adapters in a batch [rows, tokens, d]: each changes its own rows, until removed."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hooks: dict[str, Any] = {}
        self._spans: Sequence[Span] = ()

    def use(self, spans: Sequence[Span]) -> None:
        """Apply these from now on: rows of the batch, and the factors added to the modules for them."""
        self._spans = spans
        changed = {name for _, pairs in spans for name in pairs}
        for name in self._hooks.keys() - changed:
            self._hooks.pop(name).remove()
        for name in changed - self._hooks.keys():
            self._hooks[name] = self._model.get_submodule(name).register_forward_hook(self._hook(name))

    def remove(self) -> None:
        """Restore the model."""
        self.use(())

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            for span, pairs in self._spans_of(module):
                if name in pairs:
                    _add(pairs[name], self._rows(inputs[0]), self._rows(output), span)
            return output

        return hook

    def _spans_of(self, module: nn.Module) -> Sequence[Span]:
        return self._spans

    def _rows(self, batch: Tensor) -> Tensor:
        return batch


class PackedLora(BatchedLora):
    """Several adapters in a packed pass [1, tokens, d]: each changes the tokens of its own rows."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._head = model.get_output_embeddings()
        self._head_spans: Sequence[Span] = ()

    def use_packed(self, tokens: Sequence[Span], logits: Sequence[Span]) -> None:
        """Apply these from now on to tokens of the pass, and to those of them with logits."""
        self._head_spans = logits
        self.use(tokens)

    def _spans_of(self, module: nn.Module) -> Sequence[Span]:
        return self._head_spans if module is self._head else self._spans

    def _rows(self, batch: Tensor) -> Tensor:
        return batch[0]


def _add(pair: LoraPair, inputs: Tensor, output: Tensor, span: slice) -> None:
    """Add, in place, the adapter's output for `span` of the inputs to the same part of the output."""
    low = inputs[span].reshape(-1, pair.a.shape[0]) @ pair.a
    output[span].view(-1, pair.b.shape[1]).addmm_(low, pair.b)
