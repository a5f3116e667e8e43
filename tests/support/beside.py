"""A process of Streamward, run in a thread beside a test.

with running_beside(lambda stop: policy.run(settings, stop=stop)): ...  ──► stopped when the block ends
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

END_S = 60.0
"""For what was told to stop."""


@contextmanager
def running_beside(*runs: Callable[[threading.Event], None]) -> Iterator[list[threading.Thread]]:
    """Run each in a thread while the block runs. Leaving stops them, and raises what one of them raised."""
    stop, raised = threading.Event(), []

    def work(run: Callable[[threading.Event], None]) -> None:
        try:
            run(stop)
        except Exception as exc:
            raised.append(exc)

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        stop.set()
        for thread in threads:
            thread.join(END_S)
        if raised:
            raise raised[0]  # why the test saw nothing happen
    assert not any(thread.is_alive() for thread in threads)
