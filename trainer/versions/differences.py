"""Measure how much two adapters differ, tensor by tensor.

    two folders with adapter_model.safetensors ─┬─► relative_changes ──► ParameterChange, largest first
                                                └─► has_same_effect ──► nothing was changed

This says nothing about answers: the same change is large for one tensor and small for another, and the two factors of a
LoRA update matter only as their product. It is separate from the rest of the trainer, since TRL takes seconds to
import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file

from streams.errors import EventError

FILE = "adapter_model.safetensors"


class ParameterChange(NamedTuple):
    """One tensor in two adapters."""

    tensor: str
    shape: tuple[int, ...]
    norm: float
    """Frobenius norm in the first; 0 if it is missing there."""
    relative: float | None
    """Norm of the difference over that norm; None if only one has it, if shapes differ, or if the norm is 0."""


def relative_changes(folder: Path, other_folder: Path) -> list[ParameterChange]:
    """Return |B - A| / |A| for each tensor A of the first folder and its namesake B in the other, largest first.

    Tensors that cannot be compared come before all others. Raises EventError (bad_adapter) for a file without tensors.
    """
    first, second = _tensors(folder / FILE), _tensors(other_folder / FILE)
    changes = []
    for name in sorted(first.keys() | second.keys()):
        a, b = first.get(name), second.get(name)
        shape = tuple((b if a is None else a).shape)
        norm = 0.0 if a is None else float(a.double().norm())
        if a is None or b is None or a.shape != b.shape or not norm:
            changes.append(ParameterChange(name, shape, norm, None))
        else:
            changes.append(ParameterChange(name, shape, norm, float((b.double() - a.double()).norm()) / norm))
    return sorted(changes, key=lambda change: (change.relative is not None, -(change.relative or 0.0)))


def has_same_effect(folder: Path, other_folder: Path | None) -> bool:
    """Return whether two adapters have the same effect by their weights; None, no adapter, equals a lora_B of zeros.

    Raises EventError as `relative_changes`.
    """
    first, second = _effect(folder), {} if other_folder is None else _effect(other_folder)
    return first.keys() == second.keys() and all(
        weights.shape == second[name].shape and bool((weights.double() == second[name].double()).all())
        for name, weights in first.items()
    )


def _effect(folder: Path) -> Any:
    """Return the tensors of an adapter, none if all its lora_B are 0."""
    tensors = _tensors(folder / FILE)
    return tensors if any(weights.any() for name, weights in tensors.items() if ".lora_B." in name) else {}


def _tensors(path: Path) -> Any:
    """Return the tensors of an adapter by name."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as exc:
        raise EventError(f"{path}: not weights: {exc}; publish the adapter again", reason="bad_adapter") from exc
