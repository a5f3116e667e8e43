"""End a Faust worker that is stuck, so that its supervisor can start a fresh one.

    every second: acknowledged after a hole? no commit despite lag? event loop frozen? ──► log why, exit 75

An unreachable broker is no reason: a running worker survives that by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

from aiokafka.errors import ConsumerStoppedError, IllegalStateError, KafkaError
from faust.types import TP
from faust.types.transports import ConsumerT
from mode.services import Service

from streams.errors import LogError
from streams.processes.watchdog import Watchdog, end_process
from streams.worker.faust.membership import membership
from streams.worker.stalls import Sight, StallDetector

log = logging.getLogger("streamward.faust")

LOOK_EVERY_S = 1.0


class StallWatch(Service):  # type: ignore[misc]  # mode is not typed
    """Looks at the worker of `app` once a second and gives up when it is stuck.

    A hole: for `hole_s`, an offset is acknowledged while an earlier one is not done. No progress: a partition has
    records, or a rebalance is under way, and for `stuck_s` nothing was committed or recovered, though the broker
    answers. Frozen: the event loop has not run for `frozen_s`. `look_behind` is called with the consumer after each
    look that found nothing.
    """

    def __init__(
        self,
        app: Any,
        look_behind: Callable[[Any], Awaitable[None]],
        *,
        hole_s: float,
        stuck_s: float,
        frozen_s: float,
    ) -> None:
        self.app = app
        self._look_behind = look_behind
        self._detector = StallDetector(hole_s=hole_s, stuck_s=stuck_s)
        self._frozen_s = frozen_s
        self._loop_watchdog: Watchdog | None = None
        super().__init__()

    async def on_start(self) -> None:
        """Watch the loop itself, also during a stop, which has its own deadline."""
        self._loop_watchdog = Watchdog(self._frozen_s, f"the event loop has not run for {self._frozen_s:g} s")
        self._heartbeat = asyncio.create_task(self._beat(self._loop_watchdog))

    async def on_stop(self) -> None:
        """Stop watching the loop."""
        if self._loop_watchdog is not None:
            self._loop_watchdog.close()
            self._heartbeat.cancel()

    @Service.task  # type: ignore[untyped-decorator]
    async def _look(self) -> None:
        while not self.should_stop:
            await self.sleep(LOOK_EVERY_S)
            if self.should_stop or self.app.should_stop or self.app._consumer is None:
                continue
            hole, stuck = self._detector.look(sight_of(self.app), LOOK_EVERY_S)
            if hole is not None:
                end_process(hole)
            if stuck is not None and await broker_answers(self.app):
                end_process("\n".join([f"{stuck}. Tasks that wait:", *await_chains()]))
            try:
                self.app.ids.look()
            except LogError as exc:
                await self.app.crash(exc)
            if not self.app.rebalancing:
                with contextlib.suppress(IllegalStateError, ConsumerStoppedError):  # revoked, or the worker stops
                    await self._look_behind(self.app.consumer)

    async def _beat(self, watchdog: Watchdog) -> None:
        while True:
            watchdog.beat()
            await asyncio.sleep(LOOK_EVERY_S)


def sight_of(app: Any) -> Sight:
    """Check the worker of `app`."""
    consumer: Any = app.consumer
    owned = _source_partitions(consumer)
    committed = {tp: offset for tp in owned if (offset := consumer._committed_offset.get(tp)) is not None}
    acked = {tp: min(offsets) for tp, offsets in list(consumer._acked.items()) if offsets and tp in committed}
    return Sight(
        committed=committed,
        lagging=frozenset(
            tp
            for tp, offset in committed.items()
            if (consumer.highwater(tp) or 0) > offset and tp.topic not in app.holding
        ),
        holes={tp: first for tp, first in acked.items() if first > committed[tp]},
        rebalancing=bool(app.rebalancing) and not membership.waits,
        recovered={tp: offset for tp, offset in app.tables.recovery.active_offsets.items() if offset is not None},
    )


def _source_partitions(consumer: ConsumerT) -> list[TP]:
    try:
        return [tp for tp in consumer.assignment() if tp.topic not in consumer.app.tables.changelog_topics]
    except Exception:  # the consumer's thread has not started yet
        return []


def await_chains() -> list[str]:
    """Return a line for each task in which an agent or the producer waits: outermost function first, then the line."""
    lines = []
    for task in asyncio.all_tasks():
        frames = list(_frames(task.get_coro()))
        if any(name in frame.f_code.co_filename for frame in frames for name in _NAMED_FILES):
            names = " > ".join(frame.f_code.co_name for frame in frames)
            innermost = frames[-1]
            lines.append(f"  {names} ({os.path.basename(innermost.f_code.co_filename)}:{innermost.f_lineno})")
    return sorted(lines)


_NAMED_FILES = (
    "worker/faust/faust_agent.py",
    "faust/transport/producer.py",
    "aiokafka/producer/",
    "aiokafka/client.py",
)
"""Files with functions that are worth naming when a worker is stuck."""


def _frames(waiting: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of everything that it awaits, outermost first."""
    while waiting is not None:
        if type(waiting).__name__ in (
            "coroutine_wrapper",
            "async_generator_asend",
        ):  # they do not say what they wait for
            waiting = next(
                (referent for referent in gc.get_referents(waiting) if hasattr(referent, "cr_frame")), None
            ) or next((referent for referent in gc.get_referents(waiting) if hasattr(referent, "ag_frame")), None)
        for kind in ("cr", "ag", "gi"):
            frame = getattr(waiting, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                waiting = getattr(waiting, f"{kind}_await", None) or getattr(waiting, f"{kind}_yieldfrom", None)
                break
        else:
            return


async def broker_answers(app: Any) -> bool:
    """Whether the broker answers a request for metadata within 5 seconds."""
    client = getattr(app.producer._producer, "client", None)
    if client is None:
        return False
    try:
        await asyncio.wait_for(client.fetch_all_metadata(), 5)
    except (KafkaError, TimeoutError, OSError):
        return False
    return True
