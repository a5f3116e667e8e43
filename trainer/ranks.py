"""A step shared by processes: rank 0 has the line, the others compute.

    rank 0 ──► the batch's groups, Avro; the adapter's weights, float32 ──► rank 1, 2, … ──► share n of the batch
       ▲                                                                                        │
       └── in rank order ◄── gradient, float32; sums, float64 ◄─────────────────────────────────┘

The others keep nothing: what they compute is a function of what they are sent, so a step is the same whoever was
started again before it. What is sent are the adapter's own numbers, a few megabytes, once a step; they go through the
host's memory and its loopback device (gloo), also where the model is on GPUs.

Who is gone is noticed by the next who waits for it, at once if its connection broke, else after metrics.stuck_s.

Not covered: NCCL, and models in parts. Each rank has the whole base model on its own device.
"""

from __future__ import annotations

import json
import logging
import signal
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from schemas.events import AdvantagedGroup
from schemas.serde import Poison, decode, encode
from streams.engines.base_model import load_base
from streams.errors import LostProcessError, SettingsError
from streams.settings.model import Settings
from trainer.grpo import SUMS
from trainer.launch import Place
from trainer.learner import Learner
from trainer.model import pin
from trainer.recipe import in_recipe
from trainer.shares import Share

READY_S = 3600.0
"""How long a rank may take to load the model: there may be one to fetch."""
IDLE_S = 365 * 86400.0
"""How long a rank waits for work. There may be none for weeks; if rank 0 goes, its connection breaks."""
HOME_S = 5.0
"""How long rank 0 tries to tell another that it is over."""
OVER = 0

log = logging.getLogger(__name__)


class Ranks:
    """The others, as rank 0 sees them (trainer.shares.Others)."""

    def __init__(self, place: Place, stuck_s: float) -> None:
        """`stuck_s`, seconds: how much longer than rank 0 another rank may take for its share."""
        self._place, self._others = place, range(1, place.size)
        self._stuck_s = stuck_s
        self._numbers = 0

    def meet(self, recipe: dict[str, str]) -> None:
        """Return when every other rank has the model, and computes by the same recipe. Raises LostProcessError."""
        _join(self._place)
        said = _packed([json.dumps(recipe).encode()])
        for rank in self._others:
            _send_bytes(said, rank, READY_S)
        for rank in self._others:
            _receive(torch.zeros(1, dtype=torch.int64), rank, READY_S)
        log.info("rank 0 and %d others share every batch", len(self._others))

    def begin(self, weights: Tensor, groups: Sequence[AdvantagedGroup]) -> None:
        """Send each its work. Raises LostProcessError."""
        self._numbers = weights.numel()
        said = _packed([encode(group) for group in groups])
        for rank in self._others:
            _send_bytes(said, rank, self._stuck_s)
            _send(weights, rank, self._stuck_s)

    def shares(self, own_s: float) -> Iterator[Share]:
        """Yield what they computed, in order of ranks. Raises LostProcessError."""
        for rank in self._others:
            sums = _receive(torch.zeros(SUMS, dtype=torch.float64), rank, self._stuck_s + own_s)
            gradient = _receive(torch.zeros(self._numbers), rank, self._stuck_s)
            yield Share(gradient, sums)

    def end(self) -> None:
        """Send them home, as far as they can be reached."""
        if not dist.is_initialized():
            return  # nobody was met; whoever started them ends them
        for rank in self._others:
            with suppress(LostProcessError):
                _send(torch.tensor([OVER]), rank, HOME_S)
        dist.destroy_process_group()


@contextmanager
def others(place: Place | None, stuck_s: float) -> Iterator[Ranks | None]:
    """Yield the other ranks, and send them home when the block ends; None where there are none."""
    if place is None:
        yield None
        return
    found = Ranks(place, stuck_s)
    try:
        yield found
    finally:
        found.end()


def help_out(settings: Settings, place: Place) -> None:
    """Be a rank other than 0: compute what rank 0 sends, until it says that it is over.

    SIGTERM and Ctrl-C are left to rank 0. Raises LostProcessError if rank 0 is gone, SettingsError if this rank cannot
    compute as rank 0 does.
    """
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, signal.SIG_IGN)
    pin(settings)
    learner = Learner(settings, load_base(settings.model))
    _join(place)
    _agree(learner.recipe, place)
    while groups := _groups(place):
        weights = _receive(torch.zeros(learner.numbers), 0, READY_S)
        share = learner.share(place.rank, weights, groups)
        _send(share.sums, 0, READY_S)
        _send(share.gradient, 0, READY_S)
    dist.destroy_process_group()


def _agree(recipe: dict[str, str], place: Place) -> None:
    (said,) = _unpacked(_receive_bytes(0, READY_S))
    if apart := in_recipe(0, json.loads(said), recipe):
        first = apart[0]
        raise SettingsError(
            f"rank {place.rank} of {place.size}: {first.name} is {first.reproduced} here and {first.recorded} at rank "
            "0; all ranks need the same settings, libraries and kind of device"
        )
    _send(torch.zeros(1, dtype=torch.int64), 0, READY_S)


def _groups(place: Place) -> list[AdvantagedGroup]:
    """Return the groups of the next batch; none when it is over."""
    found = [decode(payload, AdvantagedGroup) for payload in _unpacked(_receive_bytes(0, IDLE_S))]
    good = [group for group in found if not isinstance(group, Poison)]
    if len(good) < len(found):
        raise LostProcessError(f"rank {place.rank} of {place.size}: what rank 0 sent is no batch; start both again")
    return good


# --- the wire ---------------------------------------------------------------------------------------------------------


def _join(place: Place) -> None:
    """Join the group. After the trainer is made: the libraries below it would think that they share its step."""
    try:
        dist.init_process_group(
            "gloo", init_method=place.meet, rank=place.rank, world_size=place.size, timeout=timedelta(seconds=READY_S)
        )
    except (RuntimeError, ValueError) as exc:
        raise LostProcessError(
            f"rank {place.rank} of {place.size} cannot join the others: {str(exc).splitlines()[0]}; start all again"
        ) from exc


def _packed(payloads: Sequence[bytes]) -> Tensor:
    """Return bytes, each with its length before it, as a tensor of bytes."""
    joined = b"".join(struct.pack(">q", len(payload)) + payload for payload in payloads)
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8)


def _unpacked(packed: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(packed):
        (length,) = struct.unpack_from(">q", packed, at)
        yield packed[at + 8 : at + 8 + length]
        at += 8 + length


def _send_bytes(packed: Tensor, to: int, within_s: float) -> None:
    _send(torch.tensor([packed.numel()]), to, within_s)
    _send(packed, to, within_s)


def _receive_bytes(sender: int, within_s: float) -> bytes:
    length = int(_receive(torch.zeros(1, dtype=torch.int64), sender, within_s).item())
    if length == OVER:
        return b""
    return bytes(_receive(torch.zeros(length, dtype=torch.uint8), sender, READY_S).numpy())


def _send(tensor: Tensor, to: int, within_s: float) -> None:
    try:
        dist.isend(tensor, to).wait(timedelta(seconds=within_s))
    except RuntimeError as exc:
        raise _lost(to, exc) from exc


def _receive(tensor: Tensor, sender: int, within_s: float) -> Tensor:
    try:
        dist.irecv(tensor, sender).wait(timedelta(seconds=within_s))
    except RuntimeError as exc:
        raise _lost(sender, exc) from exc
    return tensor


def _lost(rank: int, exc: RuntimeError) -> LostProcessError:
    return LostProcessError(
        f"rank {rank} is gone, or says nothing: {str(exc).splitlines()[0]}. Start all ranks again: the newest "
        "checkpoint is whole, and nothing is lost"
    )
