"""What one process of this machine has for itself: a place nobody else works in, and a temporary folder.

    folder ──► hold ──► ours, and its lock file says so            somebody has it ──► RefusedError, naming who
    kind ──► Scratch ──► streamward-KIND-…, locked while we live   nobody has it any more ──► the next one removes it

The lock is flock's, which the kernel takes back when the process ends, however it ends. So after a kill -9 nothing is
held, and what is held by nobody was left behind.

Not covered: file systems that do not honour flock. There two processes may hold one folder, and nothing is swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import weakref
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


class Scratch:
    """A temporary folder of this process. It goes with `close`, or with the process.

    One that was killed cannot do it: the next Scratch of its kind does. Use as a context manager, which gives the
    folder, or call `close`. Raises OSError if there is no room for it.
    """

    def __init__(self, kind: str) -> None:
        _sweep(kind)
        self.folder, lock = _locked(kind)
        self.close = weakref.finalize(self, _remove, self.folder, lock)
        """Remove the folder with all that is in it; again does nothing."""

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, *_: object) -> None:
        self.close()


def _locked(kind: str) -> tuple[Path, int]:
    """Return a new folder, and a handle that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"streamward-{kind}-"))
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # swept before it could be locked
            continue
        with contextlib.suppress(OSError):  # no flock here: then nobody sweeps either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, lock
        os.close(lock)


def _sweep(kind: str) -> None:
    """Remove the folders of this kind that are ours and that no process holds."""
    for path in Path(tempfile.gettempdir()).glob(f"streamward-{kind}-*"):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
