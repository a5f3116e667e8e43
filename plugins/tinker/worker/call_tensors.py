"""Tensors of calls and results: the bytes of a safetensors file, in the record or in a file of the store.

data ──► tensors_of ──► {"0.tokens": …, "0.weights": …} ──► examples_of ──► LossExample
outputs ──► output_bytes ──► the same bytes for the same tensors
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from plugins.tinker.worker.called_model import LossExample
from schemas import json_text
from schemas.events import TrainingCall
from streams.errors import CallError

Arrays = dict[str, NDArray[Any]]


def tensors_of(data: bytes) -> Arrays:
    """Return the tensors in the data of a call. Raises CallError."""
    if not data:
        return {}
    try:
        tensors: Arrays = load(data)
    except (SafetensorError, ValueError, KeyError) as exc:
        raise CallError("invalid", f"the data are no tensors: {exc}", "data") from exc
    return tensors


def output_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return arrays as a safetensors file; none is no bytes."""
    if not arrays:
        return b""
    whole: bytes = save({name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)})
    return whole


def examples_of(call: TrainingCall, tensors: Arrays) -> list[LossExample]:
    """Return the examples of a pass. Raises CallError."""
    spans = _provenance(call)
    examples = []
    for number in range(call.examples):
        prefix = f"{number}."
        own = {name.removeprefix(prefix): torch.from_numpy(array) for name, array in tensors.items()
               if name.startswith(prefix)}  # fmt: skip
        if "tokens" not in own or "target_tokens" not in own:
            raise CallError("invalid", "it has no tokens, or no target_tokens", f"data[{number}]")
        tokens = own.pop("tokens").to(torch.int64)
        sampled = None if spans is None else _sampled_mask(spans[number], len(own["target_tokens"]))
        examples.append(LossExample(tokens, own, sampled))
    return examples


def _provenance(call: TrainingCall) -> Sequence[Any] | None:
    """Return which tokens of each example came from where; None if the call does not say it."""
    try:
        spans = json_text.parse(call.request)["provenance"]
    except (ValueError, KeyError, TypeError):
        return None
    return spans if isinstance(spans, list) and len(spans) == call.examples else None


def _sampled_mask(spans: Any, rows: int) -> torch.Tensor | None:
    """Return which targets of an example were sampled."""
    runs = spans.get("loss_fn_inputs") if isinstance(spans, dict) else None
    if not isinstance(runs, list):
        return None
    flags = [kind == "sampled" for kind, *_, length in runs for _ in range(int(length))]
    return torch.tensor(flags) if len(flags) == rows else None
