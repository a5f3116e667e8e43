"""What one process of this machine has for itself: a place nobody else works in.

    folder ──► hold ──► ours, and its lock file says so            somebody has it ──► RefusedError, naming who

The lock is flock's, which the kernel takes back when the process ends, however it ends. So after a kill -9 nothing is
held.

Not covered: file systems that do not honour flock. There two processes may hold one folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from streams.errors import RefusedError

LOCK = "lock"


@contextlib.contextmanager
def hold(folder: Path, *, refusal: str, way_out: str) -> Iterator[None]:
    """Be the one process of this machine in `folder`, which is made if it is not there.

    Raises RefusedError if another one is: `refusal` says what goes on there, as in "policy p is already trained".
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            who = lock.read().strip() or "another process"
            raise RefusedError(f"{folder}: {refusal} by {who}; {way_out}") from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield
