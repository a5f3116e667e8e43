"""End a process that makes no progress, so that its supervisor can start a fresh one.

    the work ──► beat ──► Watchdog, a thread ──► no beat for limit_s: why, each thread's stack, exit 75
    any code that notices it cannot continue ──► end_process(reason) ──► log, exit 75

A restarted process continues from its last commit, so ending it is always safe; leaving it idle while it looks healthy
is not. Seconds are counted in looks, not as wall-clock time, so a process that was suspended and resumed is not
mistaken for a stuck one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import traceback
from types import TracebackType
from typing import NoReturn, Self

from streams.errors import EXIT_RESTART

LOOK_EVERY_S = 1.0

log = logging.getLogger("streamward.watchdog")


class Watchdog:
    """Ends this process if `beat` is not called for `limit_s` seconds. As a context manager it watches the block."""

    def __init__(self, limit_s: float, reason: str) -> None:
        """`reason` is what to say then, e.g. "the loop has made no step for 60 s"."""
        self._limit_s, self._reason = limit_s, reason
        self._look_every_s = min(LOOK_EVERY_S, limit_s / 4)
        self._still_s = 0.0
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def beat(self) -> None:
        """Report progress, or a wait for something that is not this process's fault."""
        self._still_s = 0.0

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._look_every_s):
            self._still_s += self._look_every_s
            if self._still_s > self._limit_s:
                self._end()

    def _end(self) -> None:
        """End the process without a lock, which a stuck thread may hold: no logging."""
        message = f"{self._reason}. Ending this process with exit code {EXIT_RESTART}; threads are at:\n{_stacks()}"
        with contextlib.suppress(OSError):
            os.write(2, message.encode())
        os._exit(EXIT_RESTART)


def _stacks() -> str:
    """Return the stack of every other thread."""
    lines = []
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident():
            lines += [f"Thread {thread}:\n", *traceback.format_stack(frame)]
    return "".join(lines)


def end_process(reason: str) -> NoReturn:
    """Log the reason and end the process with EXIT_RESTART, at once: nothing still running could be trusted."""
    log.critical("%s. Ending this process with exit code %d; restart it", reason, EXIT_RESTART)
    for handler in [*log.handlers, *logging.getLogger().handlers]:
        handler.flush()
    os._exit(EXIT_RESTART)
