"""Keep the linear layers of a base in 4 bits, so that an adapter is trained in a fraction of the memory (QLoRA).

    weights ──► blocks of 64, each with its scale ──► 4 bits a weight (NF4) ──► each pass makes a layer whole again

Dettmers and others, 2023 (arXiv 2305.14314), by bitsandbytes (0.50.2 was tried). Embeddings, norms and the head stay as
they are. The sampler and the trainer make a layer whole in the same way: on a CPU with bfloat16 instructions
bitsandbytes would otherwise sample with another kernel, which rounds, and through which no gradient comes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from streams.errors import SettingsError
from streams.settings.model import Model

if TYPE_CHECKING:
    import torch

LIBRARY = "bitsandbytes"


def loading(settings: Model) -> dict[str, Any]:
    """Return arguments of `from_pretrained` for `settings.quantization`. Raises SettingsError without bitsandbytes."""
    if settings.quantization == "none":
        return {}
    if importlib.util.find_spec(LIBRARY) is None:
        raise SettingsError(
            f"model.quantization={settings.quantization} needs {LIBRARY}; install streamward[quantized], or set none"
        )
    import torch
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=settings.quantization,
        bnb_4bit_compute_dtype=getattr(torch, settings.dtype),
    )
    return {"quantization_config": config, "device_map": {"": settings.device}}


def make_whole_alike(model: torch.nn.Module) -> None:
    """Let every pass multiply by the same weights, with and without a gradient."""
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def scales(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the scales of the blocks of each layer in 4 bits, by the name of its weight."""
    for name, parameter in sorted(model.named_parameters()):
        if (state := getattr(parameter, "quant_state", None)) is not None:
            yield f"{name}.absmax", state.absmax


def refuse(settings: Model, place: str) -> None:
    """Raise SettingsError where the weights of the base are needed as they are."""
    if settings.quantization != "none":
        raise SettingsError(
            f"model.quantization={settings.quantization}: {place} needs the weights of the base as they are; set none"
        )
