"""Set an event from a signal handler, where `event.set()` itself may wait for ever."""

from __future__ import annotations

import _thread
from threading import Event


def set_in_handler(event: Event) -> None:
    """Set `event` soon, from another thread.

    A handler runs between two instructions of the main thread, which may be inside `event.wait()` and hold the lock
    that `event.set()` takes; neither would ever go on. `_thread` takes no lock that is written in Python, as
    `threading.Thread.start` does.
    """
    _thread.start_new_thread(event.set, ())
