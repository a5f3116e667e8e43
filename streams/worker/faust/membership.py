"""Track this worker's membership in the consumer group, to know whether it still owns what it writes.

    heartbeat, sync answered ──► confirmed ──► session timeout passes without one ──► in doubt ──► confirmed again
                                                                                        └──► rejected: lost, exit 75

When a member is silent for the session timeout, Kafka gives its partitions to others, and Faust has no fencing: a
process that was stopped that long and continues would write its in-flight work over its successor's rows. So before
every send, and before an event is begun, the group's last answer must be younger than the session timeout. Otherwise
the worker waits for the next answer. That may take as long as the broker is unreachable, and nothing is lost: either
the member is confirmed, or it was rejected, and then its in-flight work is not sent; if there is any, the process ends.

The clock includes the time a machine was suspended, and an answer counts from the time of its request.

A process that is stopped between the check and the write to the socket, or whose bytes wait in a frozen network, is not
caught here: the next recovery skips its rows (faust_table.py).
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

from streams.processes.watchdog import end_process
from streams.worker.faust.pinned_sources import STOCK

log = logging.getLogger("streamward.faust")

LOOK_EVERY_S = 0.02
ASK_AGAIN_S = 0.5
"""How long a worker that cannot read yet waits before it asks again: a group of the other driver, an unknown topic."""


def _since_boot_s() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Membership:
    """The group's last answer about this member. Written by the consumer's thread, read by the worker's."""

    def __init__(self, session_s: float = float("inf"), clock: Callable[[], float] = _since_boot_s) -> None:
        self.clock = clock
        self.session_s = session_s
        self.lost = False
        """The group rejected this member, and it has not joined again."""
        self.epoch = 0
        """Number of lost memberships: results of an earlier epoch must not be written."""
        self.waits = False
        """The group consists of workers of the other driver, and this one waits until they have left."""
        self._confirmed_at: float | None = None

    def reset(self, session_s: float) -> None:
        """Forget everything: a worker starts."""
        self.session_s, self.lost, self.epoch, self._confirmed_at = session_s, False, 0, None
        self.waits = False

    def confirm(self, asked_at: float) -> None:
        """The group knew this member, at least at the time of the request."""
        self._confirmed_at = asked_at

    def join(self, asked_at: float) -> None:
        """A generation begins, with this member in it."""
        self.lost = self.waits = False
        self.confirm(asked_at)

    def lose(self) -> None:
        """The group does not know this member any more."""
        if not self.lost:
            self.lost = True
            self.epoch += 1

    def in_doubt(self) -> bool:
        """Whether others may own the partitions by now. Never before the first membership: there are none then."""
        return self._confirmed_at is not None and self.clock() - self._confirmed_at > self.session_s

    async def holds(self) -> bool:
        """Wait while in doubt; return whether the membership holds."""
        if not self.lost and self.in_doubt():
            log.warning("the group has not answered for %g s; nothing is written until it does", self.session_s)
            while not self.lost and self.in_doubt():
                await asyncio.sleep(LOOK_EVERY_S)
        return not self.lost


membership = Membership()
"""The membership of this process, which has one consumer."""


# --- in place of aiokafka's functions --------------------------------------------------------------------------------

_OTHER_DRIVER = (errors.InconsistentGroupProtocolError.errno, errors.UnknownError.errno)
_MEMBER_ERRORS = (errors.NoError.errno, errors.RebalanceInProgressError.errno)


async def _send_req(self: Any, request: Any) -> Any:
    """In place of GroupCoordinator._send_req: note what the group says of this member.

    aiokafka ends for good where all other members have another protocol: workers of the other driver. Told that the
    coordinator is loading instead, it asks again. Where the broker assigns the partitions of the others (KIP-848), it
    cannot read what Faust says of itself, and has an unknown error (seen with Kafka 4.3.1).
    """
    asked_at = membership.clock()
    response = await STOCK[GroupCoordinator, "_send_req"](self, request)
    kind, error = type(request).__name__, getattr(response, "error_code", None)
    if kind.startswith("JoinGroupRequest") and error in _OTHER_DRIVER:
        if not membership.waits:
            log.warning("the workers of this log are of another driver; this one takes over when they have left")
        membership.waits = True
        response.error_code = errors.GroupLoadInProgressError.errno
        await asyncio.sleep(ASK_AGAIN_S)
    if kind.startswith("SyncGroupRequest") and error == errors.NoError.errno:
        membership.join(asked_at)
    elif kind.startswith("HeartbeatRequest") and error in _MEMBER_ERRORS:
        membership.confirm(asked_at)
    return response


def reset_generation(self: Any) -> None:
    """In place of GroupCoordinator.reset_generation: the group rejected this member, unless it left by itself."""
    if not self._closing.done() and self.generation != OffsetCommitRequest.DEFAULT_GENERATION_ID:
        membership.lose()
    STOCK[GroupCoordinator, "reset_generation"](self)


async def _do_commit_offsets(self: Any, assignment: Any, offsets: Any) -> None:
    """In place of GroupCoordinator._do_commit_offsets: a group without members takes commits from any client."""
    if offsets and self.generation == OffsetCommitRequest.DEFAULT_GENERATION_ID:
        raise errors.UnknownMemberIdError(self.group_id)
    await STOCK[GroupCoordinator, "_do_commit_offsets"](self, assignment, offsets)


def _append_batch(self: Any, builder: Any, tp: Any) -> Any:
    """In place of MessageAccumulator._append_batch: a batch belongs to the epoch in which it was begun."""
    batch = STOCK[MessageAccumulator, "_append_batch"](self, builder, tp)
    batch.membership_epoch = membership.epoch
    return batch


async def _send_produce_req(self: Any, node_id: int, batches: Mapping[Any, Any]) -> None:
    """In place of Sender._send_produce_req: nothing is sent that could cover a successor's rows."""
    is_member = await membership.holds()
    late = [tp for tp, batch in batches.items() if batch.membership_epoch != membership.epoch]
    if late or not is_member:
        tp = (late or list(batches))[0]
        end_process(
            f"the group gave the partitions of this worker to others, and a record for {tp.topic}[{tp.partition}] was "
            "still to be sent; it is not"
        )
    await STOCK[Sender, "_send_produce_req"](self, node_id, batches)


REPLACED: dict[type, tuple[Any, ...]] = {
    GroupCoordinator: (_send_req, reset_generation, _do_commit_offsets),
    MessageAccumulator: (_append_batch,),
    Sender: (_send_produce_req,),
}
