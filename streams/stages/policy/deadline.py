"""End a process whose work hangs, so that its supervisor can start a fresh one.

    with at_most(600, "a round of 16 tasks"): engine.sample(...) ──► later: says where every thread stands, exit code 75

What was in hand was not committed, so the next process begins with it. Nothing in this one can be trusted to stop: a
thread that hangs in native code hears of no exception.

Not covered: work that goes on and gets nowhere. That looks like work.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
from collections.abc import Iterator

from streams.errors import EXIT_RESTART


@contextlib.contextmanager
def at_most(seconds: float, what: str) -> Iterator[None]:
    """End this process with EXIT_RESTART if the block takes longer; 0 seconds: never."""
    if not seconds:
        yield
        return
    timer = threading.Timer(seconds, _give_up, (seconds, what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float, what: str) -> None:
    why = f"{what} has taken over {seconds:g} s. Ending this process with exit code {EXIT_RESTART}; threads stand at:\n"
    with contextlib.suppress(OSError):
        os.write(2, why.encode())
        faulthandler.dump_traceback(2)
    os._exit(EXIT_RESTART)
