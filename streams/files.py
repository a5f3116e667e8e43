"""Folders that one process of this machine has for itself, and the digests of a file and of the source files.

    folder ──► half_written ──► a folder next to it, for what is moved there once it is whole
    folder ──► hold ──► locked; the lock file names the process    held by another ──► RefusedError, naming it
    kind ──► Scratch ──► streamward-KIND-…, locked while in use    unlocked ──► left behind: the next Scratch removes it

The lock is flock's, which the kernel releases when the process ends, even by kill -9. On file systems that do not
honour flock, two processes may hold one folder, and nothing is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from streams.errors import RefusedError, SettingsError

LOCK = "lock"
LOOK_S = 0.05
"""How often a process that waits for a folder looks whether it is free."""


def home_folder() -> Path:
    """Return the user's home folder. Raises SettingsError for a user without one: no HOME and no passwd entry."""
    try:
        return Path.home()
    except RuntimeError as exc:
        raise SettingsError(
            f"user {os.getuid()} has no home folder (no HOME, no passwd entry); set HOME to a folder it can write to"
        ) from exc


def cache_folder(name: str) -> Path:
    """Return streamward/NAME in XDG_CACHE_HOME, else in ~/.cache. Raises as `home_folder`."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (root if root.is_absolute() else home_folder() / ".cache") / "streamward" / name


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Return once a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def hold(folder: Path, *, refusal: str, way_out: str) -> Iterator[None]:
    """Be the only process of this machine in `folder`, which is created if it does not exist.

    Raises RefusedError if another holds it: `refusal` says what it does there, as in "policy p is already trained".
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


@contextlib.contextmanager
def try_hold(folder: Path) -> Iterator[bool]:
    """Yield whether this process has `folder`, which is created if it does not exist, for itself in the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def hold_when_free(folder: Path) -> Iterator[None]:
    """Be the only process of this machine in `folder` as soon as no other is."""
    while True:
        with try_hold(folder) as is_ours:
            if is_ours:
                yield
                return
        time.sleep(LOOK_S)


@contextlib.contextmanager
def half_written(folder: Path) -> Iterator[Path]:
    """Give a folder next to `folder` to write in, which is removed at the end; move the result into its place before.

    `folder` may be there if it is empty. Raises RefusedError if it holds anything, SettingsError if none can be made.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RefusedError(f"{folder}: is not empty; name a new folder, or empty this one")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as exc:
        raise SettingsError(f"{folder}: cannot be written: {exc}; name another folder") from exc
    try:
        yield half
    finally:
        shutil.rmtree(half, ignore_errors=True)


class Scratch:
    """A temporary folder of this process, removed by `close` or at its end.

    After a kill, the next Scratch of its kind removes it. Use as a context manager, which gives the folder, or call
    `close`. Raises OSError if there is no room for it.
    """

    def __init__(self, kind: str) -> None:
        _sweep(kind)
        self.folder, lock = _locked(kind)
        self.close = weakref.finalize(self, _remove, self.folder, lock)
        """Remove the folder with everything in it; a second call does nothing."""

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
        with contextlib.suppress(OSError):  # without flock nothing is swept either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, lock
        os.close(lock)


def _sweep(kind: str) -> None:
    """Remove this user's folders of this kind that no process holds."""
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


def program_version() -> str:
    """Return the release that is installed, or `source` where only the source is on the path."""
    try:
        return version("streamward")
    except PackageNotFoundError:
        return "source"


def code_version() -> str:
    """Return the version of Streamward, and a digest of its source files."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for package in ("plugins", "schemas", "streams", "trainer"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return f"{program_version()} {digest.hexdigest()[:12]}"
