"""Whether this worker still owns what it writes: a lease on its membership in the consumer group.

    heartbeat, sync answered ──► confirmed ──► session timeout passes without one ──► in doubt ──► confirmed again
                                                                                        └──► rejected: lost, exit 75

Kafka gives the partitions of a member that has been silent for the session timeout to others, and Faust has no fencing:
a process that was stopped that long and goes on would write what it had in hand over its successor's rows. So before
anything is sent, and before an event is begun, the last answer of the group must be younger than the session timeout.
If it is not, the worker waits for the next one. That may take as long as the broker is away, and then nothing is lost:
the member is confirmed, or it was rejected, and then what it had in hand is not sent. The process ends if there is any.

The clock counts the time of a suspended machine, and an answer counts from when it was asked for.

Not covered: a process that is stopped in the moment between the check and the write to the socket, and bytes that wait
in a frozen network. Their rows are passed over by the next recovery (streams/worker/table.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka import errors
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.producer.sender import Sender
from aiokafka.protocol.commit import OffsetCommitRequest

from streams.worker.faust.pinned_sources import STOCK
from streams.worker.faust.watchdog import give_up

log = logging.getLogger("streamward.faust")

LOOK_EVERY_S = 0.02


def _since_boot_s() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Lease:
    """What the group last said about this member. Written by the consumer's thread, read by the worker's."""

    def __init__(self, session_s: float, clock: Callable[[], float] = _since_boot_s) -> None:
        self.session_s, self.clock = session_s, clock
        self.lost = False
        """The group rejected this member, and it has not joined again."""
        self.memberships = 0
        """How many memberships were lost: what was begun under an earlier one is not to be written."""
        self._confirmed_at: float | None = None

    def begin(self, session_s: float) -> None:
        """Forget all: a worker starts."""
        self.__init__(session_s, self.clock)  # type: ignore[misc]

    def confirm(self, asked_at: float) -> None:
        """The group knows this member, at least since it was asked."""
        self._confirmed_at = asked_at

    def join(self, asked_at: float) -> None:
        """A generation begins, with this member in it."""
        self.lost = False
        self.confirm(asked_at)

    def lose(self) -> None:
        """The group does not know this member any more."""
        if not self.lost:
            self.lost = True
            self.memberships += 1

    def in_doubt(self) -> bool:
        """Whether others may own the partitions by now. Not before the first membership: then there are none."""
        return self._confirmed_at is not None and self.clock() - self._confirmed_at > self.session_s

    async def settled(self) -> bool:
        """Wait while in doubt; return whether the membership holds."""
        if not self.lost and self.in_doubt():
            log.warning("no answer of the group for %g s: waiting for one before anything is written", self.session_s)
            while not self.lost and self.in_doubt():
                await asyncio.sleep(LOOK_EVERY_S)
        return not self.lost


lease = Lease(session_s=float("inf"))
"""Of this process: it has one consumer."""


# --- in place of aiokafka's functions --------------------------------------------------------------------------------

_KNOWN = (errors.NoError.errno, errors.RebalanceInProgressError.errno)


async def _send_req(self: Any, request: Any) -> Any:
    """In place of GroupCoordinator._send_req: see what the group says of this member."""
    asked_at = lease.clock()
    response = await STOCK[GroupCoordinator, "_send_req"](self, request)
    kind, error = type(request).__name__, getattr(response, "error_code", None)
    if kind.startswith("SyncGroupRequest") and error == errors.NoError.errno:
        lease.join(asked_at)
    elif kind.startswith("HeartbeatRequest") and error in _KNOWN:
        lease.confirm(asked_at)
    return response


def reset_generation(self: Any) -> None:
    """In place of GroupCoordinator.reset_generation: the group rejected this member, unless it left by itself."""
    if not self._closing.done() and self.generation != OffsetCommitRequest.DEFAULT_GENERATION_ID:
        lease.lose()
    STOCK[GroupCoordinator, "reset_generation"](self)


async def _do_commit_offsets(self: Any, assignment: Any, offsets: Any) -> None:
    """In place of GroupCoordinator._do_commit_offsets: a group without members takes commits of anybody."""
    if offsets and self.generation == OffsetCommitRequest.DEFAULT_GENERATION_ID:
        raise errors.UnknownMemberIdError(self.group_id)
    await STOCK[GroupCoordinator, "_do_commit_offsets"](self, assignment, offsets)


def _append_batch(self: Any, builder: Any, tp: Any) -> Any:
    """In place of MessageAccumulator._append_batch: a batch belongs to the membership in which it was begun."""
    batch = STOCK[MessageAccumulator, "_append_batch"](self, builder, tp)
    batch.membership = lease.memberships
    return batch


async def _send_produce_req(self: Any, node_id: int, batches: Mapping[Any, Any]) -> None:
    """In place of Sender._send_produce_req: nothing leaves that may lie over a successor's."""
    held = await lease.settled()
    late = [tp for tp, batch in batches.items() if batch.membership != lease.memberships]
    if late or not held:
        tp = (late or list(batches))[0]
        give_up(
            f"the group gave the partitions of this worker to others, and a record for {tp.topic}[{tp.partition}] was "
            "still to be sent; it is not"
        )
    await STOCK[Sender, "_send_produce_req"](self, node_id, batches)


REPLACED: dict[type, tuple[Any, ...]] = {
    GroupCoordinator: (_send_req, reset_generation, _do_commit_offsets),
    MessageAccumulator: (_append_batch,),
    Sender: (_send_produce_req,),
}
