"""Exchange the shares of a step between rank 0 and the other ranks (trainer/step/shares.py).

    rank 0 ──► the batch's groups, Avro; the adapter's weights, float32 ──► rank 1, 2, … ──► share n of the batch
       ▲                                                                                        │
       └── in rank order ◄── gradient, float32; sums, float64 ◄─────────────────────────────────┘

The others keep no state between steps, so a restart changes no step. Only the adapter's own numbers are sent: a few
megabytes per step, through the host's memory and its loopback device (gloo), also on GPUs. The next rank that waits for
a lost one notices: at once if its connection broke, else after metrics.stuck_s.

Not covered: NCCL for this exchange.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from schemas.events import AdvantagedGroup
from schemas.serde import Poison, decode, encode
from streams.errors import LostProcessError, SettingsError
from trainer.ranks.launcher import Place
from trainer.step.recipe import in_recipe
from trainer.step.shares import Share
from trainer.step.totals import SUMS

READY_S = 3600.0
"""How long a rank may take to load the model, which may have to be downloaded."""
IDLE_S = 365 * 86400.0
"""How long a rank waits for work. None may come for weeks; if rank 0 is lost, its connection breaks."""
HOME_S = 5.0
"""How long rank 0 tries to tell another rank that the run is over."""
OVER = 0

log = logging.getLogger(__name__)


# --- the other processes ----------------------------------------------------------------------------------------------


class Ranks:
    """The other ranks, as rank 0 sees them: they compute all shares but the first."""

    def __init__(self, place: Place, stuck_s: float) -> None:
        """`stuck_s`: how many seconds longer than rank 0 another rank may take for its share."""
        self._place, self._peers = place, range(1, place.size)
        self._stuck_s = stuck_s
        self._numbers = 0

    def meet(self, recipe: dict[str, str]) -> None:
        """Return when every other rank has the model and uses the same recipe. Raises LostProcessError."""
        _join(self._place)
        message = _pack([json.dumps(recipe).encode()])
        for rank in self._peers:
            _send_bytes(message, rank, READY_S)
        for rank in self._peers:
            _receive(torch.zeros(1, dtype=torch.int64), rank, READY_S)
        log.info("rank 0 and %d others share every batch", len(self._peers))

    def begin(self, weights: Tensor, groups: Sequence[AdvantagedGroup]) -> None:
        """Send the batch `groups` and these weights [P] to each rank. Raises LostProcessError."""
        self._numbers = weights.numel()
        message = _pack([encode(group) for group in groups])
        for rank in self._peers:
            _send_bytes(message, rank, self._stuck_s)
            _send(weights, rank, self._stuck_s)

    def shares(self, own_s: float) -> Iterator[Share]:
        """Yield the ranks' shares, in order; share 0 took `own_s` seconds. Raises LostProcessError."""
        for rank in self._peers:
            sums = _receive(torch.zeros(SUMS, dtype=torch.float64), rank, self._stuck_s + own_s)
            gradient = _receive(torch.zeros(self._numbers), rank, self._stuck_s)
            yield Share(gradient, sums)

    def end(self) -> None:
        """Tell the reachable ranks that the run is over."""
        if not dist.is_initialized():
            return  # they never joined; their launcher ends them
        for rank in self._peers:
            with suppress(LostProcessError):
                _send(torch.tensor([OVER]), rank, HOME_S)
        dist.destroy_process_group()


@contextmanager
def other_ranks(place: Place | None, stuck_s: float) -> Iterator[Ranks | None]:
    """Yield the other ranks, or None if there are none; they end when the block ends."""
    if place is None:
        yield None
        return
    ranks = Ranks(place, stuck_s)
    try:
        yield ranks
    finally:
        ranks.end()


def meet(place: Place, recipe: dict[str, str]) -> None:
    """As a rank other than 0, return when rank 0 has the model and uses the same `recipe`.

    Raises LostProcessError if rank 0 is lost, SettingsError if its recipe differs.
    """
    _join(place)
    _agree(recipe, place)


def help_out(place: Place, numbers: int, compute: Callable[[int, Tensor, Sequence[AdvantagedGroup]], Share]) -> None:
    """Run as a rank other than 0: `compute` the share of each batch from rank 0, until rank 0 ends the run. `numbers`:
    how many are trained. Raises LostProcessError if rank 0 is lost.
    """
    while groups := _groups(place):
        weights = _receive(torch.zeros(numbers), 0, READY_S)
        share = compute(place.rank, weights, groups)
        _send(share.sums, 0, READY_S)
        _send(share.gradient, 0, READY_S)
    dist.destroy_process_group()


def _agree(recipe: dict[str, str], place: Place) -> None:
    (message,) = _unpack(_receive_bytes(0, READY_S))
    if differences := in_recipe(0, json.loads(message), recipe):
        first = differences[0]
        raise SettingsError(
            f"rank {place.rank} of {place.size}: {first.name} is {first.reproduced} here and {first.recorded} at rank "
            "0; all ranks need the same settings, libraries and kind of device"
        )
    _send(torch.zeros(1, dtype=torch.int64), 0, READY_S)


def _groups(place: Place) -> list[AdvantagedGroup]:
    """Return the groups of the next batch; none when the run is over."""
    decoded = [decode(payload, AdvantagedGroup) for payload in _unpack(_receive_bytes(0, IDLE_S))]
    good = [group for group in decoded if not isinstance(group, Poison)]
    if len(good) < len(decoded):
        raise LostProcessError(
            f"rank {place.rank} of {place.size}: rank 0 sent something that is not a batch; restart all ranks"
        )
    return good


# --- the wire ---------------------------------------------------------------------------------------------------------


def _join(place: Place) -> None:
    """Join the group. Call it once the trainer is built, or the libraries below it would share its step themselves."""
    try:
        dist.init_process_group(
            "gloo", init_method=place.meet, rank=place.rank, world_size=place.size, timeout=timedelta(seconds=READY_S)
        )
    except (RuntimeError, ValueError) as exc:
        raise LostProcessError(
            f"rank {place.rank} of {place.size} cannot join the others: {str(exc).splitlines()[0]}; restart all ranks"
        ) from exc


def _pack(payloads: Sequence[bytes]) -> Tensor:
    """Return bytes, each with its length before it, as a tensor of bytes."""
    joined = b"".join(struct.pack(">q", len(payload)) + payload for payload in payloads)
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8)


def _unpack(packed: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(packed):
        (length,) = struct.unpack_from(">q", packed, start)
        yield packed[start + 8 : start + 8 + length]
        start += 8 + length


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
        raise _lost_rank(to, exc) from exc


def _receive(tensor: Tensor, sender: int, within_s: float) -> Tensor:
    try:
        dist.irecv(tensor, sender).wait(timedelta(seconds=within_s))
    except RuntimeError as exc:
        raise _lost_rank(sender, exc) from exc
    return tensor


def _lost_rank(rank: int, exc: RuntimeError) -> LostProcessError:
    return LostProcessError(
        f"rank {rank} is lost or does not answer: {str(exc).splitlines()[0]}. Restart all ranks: the newest "
        "checkpoint is complete, and nothing is lost"
    )
