"""How a process learns that it should end: by a signal, at any moment, or because its parent ended."""

from __future__ import annotations

import _thread
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any

from streams.errors import EXIT_RESTART
from streams.processes.child import ChildProcess

LOOK_EVERY_S = 1.0
WITH_PARENT = "ENDS_WITH_PARENT"
"""Variable of a child whose stdin is a pipe that its parent holds, and that ends with it."""


def end_with_parent() -> None:
    """End this process when the one that started it has ended, for any reason: it holds the other end of stdin's
    pipe."""

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock this thread would still hold at exit
            pass
        os._exit(EXIT_RESTART)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def start_ending_with_parent(command: Sequence[str], env: Mapping[str, str], **options: Any) -> ChildProcess:
    """Start a command of streamward that ends when this process has ended, for any reason; `options`: of Popen.

    Raises OSError.
    """
    return ChildProcess(command, env={**env, WITH_PARENT: "1"}, stdin=subprocess.PIPE, **options)


class SignalledEvent(Event):
    """An event that a signal handler sets and the main thread waits for."""

    def set_in_handler(self) -> None:
        """Set the event soon, from another thread.

        A handler runs between two instructions of the main thread, which may be inside `wait()` and hold the lock that
        `set()` takes; neither would ever continue. `_thread` takes no lock that is written in Python, as
        `threading.Thread.start` does.
        """
        _thread.start_new_thread(self.set, ())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait like any event, but react to a signal within LOOK_EVERY_S seconds.

        Python runs handlers between instructions. A signal that comes after the last one, or that another thread takes,
        does not interrupt the system call in which this thread then waits: its handler runs after that call.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = LOOK_EVERY_S if until is None else min(LOOK_EVERY_S, until - time.monotonic())
            if left <= 0:
                break
            super().wait(left)
        return self.is_set()
