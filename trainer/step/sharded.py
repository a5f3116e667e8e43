"""The base model in parts: each rank holds 1/N of every weight matrix, and borrows the rest layer by layer.

    fully_shard (FSDP2) ──► a layer's pass: gather its matrices from all ranks ──► compute ──► give them back
    counts of passes of each rank ──► Rhythm: the most of any rank ──► the others run idle passes to match

Only the placement of the frozen base changes: a gathered matrix has its original bytes, the adapter is whole on every
rank, and its gradients meet only in rank 0's ordered sum (trainer/step/shares.py). So a version has the bytes it would
have with the whole base on every rank, and one process that fits it can check it.

Gathering is a collective: every rank must ask for the same layers in the same order. Shares differ in length, so a rank
with fewer passes runs one token, multiplied by 0, as often as needed.

FSDP2: Zhao et al., arXiv:2304.11277, and torch.distributed.fsdp.fully_shard. Between CPUs matrices travel by gloo, and
between GPUs by NCCL.

Not covered: models that take no prefix tree (trainer/step/prefix_tree.py), and loading: each rank reads the whole base
into the memory of its host first, mapped from files, before it keeps its part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from peft import PeftModel
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from streams.errors import LostProcessError, SettingsError

log = logging.getLogger(__name__)

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def shard(model: PeftModel, device: str, within_s: float) -> Rhythm:
    """Keep this rank's part of the base of `model` on `device`, and the whole adapter. Every rank calls it.

    A rank that does not take part within `within_s` seconds is lost. Raises SettingsError if the model names no layers.
    """
    kind = torch.device(device).type
    group = dist.new_group(backend=_BACKENDS[kind], timeout=timedelta(seconds=within_s))
    base = model.get_base_model()
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad}
    for parameter in trained:
        parameter.data = parameter.data.to(device)
    layers = _layers(base)
    mesh = DeviceMesh.from_group(group, kind)
    for layer in layers:
        fully_shard(layer, mesh=mesh, ignored_params=trained)
    embeddings, head = base.get_input_embeddings(), base.get_output_embeddings()
    tied = embeddings.weight is head.weight
    for unit in [[embeddings, head]] if tied else [embeddings, head]:
        fully_shard(unit, mesh=mesh, ignored_params=trained)
    whole_bytes = sum(parameter.nbytes for parameter in base.parameters())
    fully_shard(base.base_model, mesh=mesh, ignored_params=trained)
    stored_bytes = sum(_local_part(parameter).untyped_storage().nbytes() for parameter in base.parameters())
    log.info("this rank holds %d of the %d bytes of base and adapter", stored_bytes, whole_bytes)
    return Rhythm()


def _local_part(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _layers(base: PreTrainedModel) -> list[torch.nn.Module]:
    names = set(base._no_split_modules or ())
    layers = [module for module in base.modules() if type(module).__name__ in names]
    if not layers:
        raise SettingsError(
            f"trainer.shard_base: {type(base).__name__} does not say which of its modules are layers "
            "(_no_split_modules), so it cannot be held in parts; set trainer.shard_base=false"
        )
    return layers


class WholeHead(NamedTuple):
    """The frozen linear map from states to logits."""

    weight: Tensor  # [V, D]
    bias: Tensor | None  # [V], 0 but for ids without a token, which it leaves no share


@contextmanager
def whole_head(model: PreTrainedModel) -> Iterator[WholeHead]:
    """Yield the head; it is whole in this block, if the base is held in parts."""
    head = model.get_output_embeddings()
    if not isinstance(head, FSDPModule):
        yield WholeHead(head.weight, head.bias)
        return
    head.unshard()
    try:
        yield WholeHead(head.weight, head.bias)
    finally:
        head.reshard()


class Rhythm:
    """The number of passes of each micro-batch, which all ranks share."""

    def agree(self, counts: Sequence[int]) -> list[int]:
        """Return the maximum passes of any rank per micro-batch; this rank takes `counts`.

        Raises LostProcessError.
        """
        with losing():
            (length,) = _largest([len(counts)])
            return _largest([*counts, *[0] * (length - len(counts))])


def _largest(values: Sequence[int]) -> list[int]:
    """Return the largest of every rank's `values`, number by number."""
    largest = torch.tensor(values, dtype=torch.int64)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return [int(value) for value in largest.tolist()]


@contextmanager
def losing() -> Iterator[None]:
    """Translate torch's errors about a lost rank in this block to LostProcessError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as exc:
        first = str(exc).splitlines()[0]
        if not isinstance(exc, dist.DistError) and not any(word in first for word in ("gloo", "NCCL", "onnection")):
            raise
        raise LostProcessError(
            f"another rank is lost or does not answer: {first}. Restart all ranks: the newest checkpoint is complete, "
            "and nothing is lost"
        ) from exc
