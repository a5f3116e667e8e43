"""An event that a signal handler sets, and a wait for it that hears the signal whenever it comes."""

from __future__ import annotations

import _thread
import time
from threading import Event

LOOK_EVERY_S = 1.0


class SignalledEvent(Event):
    """An event that is set by a handler of signals, and waited for in the main thread."""

    def set_in_handler(self) -> None:
        """Set the event soon, from another thread.

        A handler runs between two instructions of the main thread, which may be inside `wait()` and hold the lock that
        `set()` takes; neither would ever continue. `_thread` takes no lock that is written in Python, as
        `threading.Thread.start` does.
        """
        _thread.start_new_thread(self.set, ())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as any event, but hear a signal within LOOK_EVERY_S seconds.

        Python runs handlers between instructions. A signal that comes behind the last one, or that another thread
        takes, does not interrupt the system call in which this thread then waits: its handler runs after that call.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = LOOK_EVERY_S if until is None else min(LOOK_EVERY_S, until - time.monotonic())
            if left <= 0:
                break
            super().wait(left)
        return self.is_set()
