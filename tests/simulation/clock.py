"""Virtual time: what happens when, in one thread and in one order.

    at(time, call) ──► run_until: the earliest call, its time is now ──► calls that it adds ──► …

The modules that the workers run read it in place of Python's `time`. A process that works has a time of its own, ahead
of everybody's by what its step has taken so far.

Not covered: time that passes between two instructions. A step happens at its beginning, and takes its time afterwards.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest import mock

EPOCH_S = 1_800_000_000
"""What the wall clock shows at virtual time 0."""
READERS = ("streams.kafka.", "streams.worker.batched.")
"""Modules that read virtual time."""


class VirtualClock:
    """The time, and what is to come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ahead: Callable[[], float] | None = None
        """The time of the process that is at work."""
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Have `call` called at a time; those of one time in the order in which they were added."""
        heapq.heappush(self._calls, (max(when, self.now), next(self._numbers), call))

    def run_until(self, end: float) -> None:
        """Let time pass until `end`."""
        while self._calls and self._calls[0][0] <= end:
            self.now, _, call = heapq.heappop(self._calls)
            call()
        self.now = end

    # --- what modules see as `time` -----------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """As `time.monotonic`."""
        return self.now if self.ahead is None else self.ahead()

    perf_counter = monotonic

    def time(self) -> float:
        """As `time.time`."""
        return EPOCH_S + self.monotonic()

    def time_ns(self) -> int:
        """As `time.time_ns`."""
        return int(self.time() * 1e9)

    def now_ms(self) -> int:
        """Return the wall clock in ms."""
        return self.time_ns() // 1_000_000


@contextmanager
def read_by_workers(clock: VirtualClock, sleep: Callable[[float], None]) -> Iterator[None]:
    """Have the modules of READERS read this clock; `sleep` lets the time of a process pass."""
    stand_in: Any = mock.NonCallableMock(spec=["monotonic", "perf_counter", "time", "time_ns", "sleep"])
    for name in ("monotonic", "perf_counter", "time", "time_ns"):
        setattr(stand_in, name, getattr(clock, name))
    stand_in.sleep = sleep
    changed = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(READERS) and getattr(module, "time", None) is time
    ]
    for module in changed:
        vars(module)["time"] = stand_in
    try:
        yield
    finally:
        for module in changed:
            vars(module)["time"] = time
