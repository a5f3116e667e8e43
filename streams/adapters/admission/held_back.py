"""Log why train tasks are held back, and since when.

versions, admission ──► room ──► may one more start?      ──► waits_for ──► what must happen first
waiting tasks ──► HeldBack.look ──► every minute one line: how many, for how long, for what
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable

from streams.adapters.admission.admission import Admission
from streams.adapters.admission.sampling_batch import WaitingTask
from streams.adapters.router import VersionRouter, route

SAY_EVERY_S = 60.0

log = logging.getLogger("streamward.policy")


def room(router: VersionRouter, admission: Admission, version: int) -> int:
    """Return how many train tasks `version` may start now; 0 or less: none.

    A version too old for any batch gains nothing by waiting: its group will be recorded as stale. Only the primary
    waits, for the next version; unless a canary is under way, which would wait for the primary in turn.
    """
    serving, batches = router.serving, router.adapters.versions[version].trained_batches
    waits = version == serving.primary and serving.candidate is None
    return sys.maxsize if admission.hopeless(batches) and not waits else admission.room(batches)


def waits_for(router: VersionRouter, admission: Admission, version: int) -> str | None:
    """Return what must happen before `version` may start another train task; None if it may start one now.

    `admission` knows its own agent's tasks in flight, but not those of other agents.
    """
    newest, trained = router.adapters.newest, router.adapters.trained_batches
    if room(router, admission, version) > 0:
        return None
    if (batches := admission.sequence - trained) > 0:
        cut = f"batch {trained} is" if batches == 1 else f"batches {trained} to {trained + batches - 1} are"
        return f"the trainer: {cut} cut and not trained (`streamward train`)"
    if version < newest:
        return (
            f"version {newest} to serve: it is trained, and version {version} answers (`streamward adapters rollout`)"
        )
    if admission.in_flight:
        return f"{admission.in_flight} groups: their tasks are answered, and wait for rewards (`streamward scoring`)"
    return f"the next batch: {admission.pending} groups are there to cut it of (`streamward streams`)"


class HeldBack:
    """Logs why the train tasks of one agent wait, while none is started."""

    def __init__(
        self,
        router: VersionRouter,
        admission: Admission,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router, self._admission, self._clock = router, admission, clock
        self._since: float | None = None
        self._next = 0.0

    def note_answered(self, tasks: Iterable[WaitingTask]) -> None:
        """Record that these tasks were answered: train tasks among them made progress."""
        if not all(waiting.urgent for waiting in tasks):
            self._since = None

    def look(self, waiting: Iterable[WaitingTask], *, set_aside: int = 0) -> None:
        """Record that these tasks wait, and `set_aside` other train tasks, and log it when due."""
        now = self._clock()
        if self._since is not None and now < self._next:
            return
        train = [task for task in waiting if not task.urgent]
        if not train:
            self._since = None
            return
        self._next = now + SAY_EVERY_S
        if self._since is None:
            self._since = now
            return
        reason = self._waits_for(min(train, key=lambda task: task.arrival))
        if reason is not None:
            minutes = (now - self._since) / 60
            log.info("%d train tasks wait, for %.0f min now, for %s", len(train) + set_aside, minutes, reason)

    def _waits_for(self, oldest: WaitingTask) -> str | None:
        version = route(self._router.serving, oldest.task)
        if version is None:
            return f"version {oldest.task.adapter_version}, which is not in the log"
        return waits_for(self._router, self._admission, version)
