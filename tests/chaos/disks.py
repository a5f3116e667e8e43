"""Disks that fill up, and that turn read-only.

    small_disk(64)         ──► a tmpfs of 64 MiB  ──► fill, free          writes fail with ENOSPC
    small_disk(64, "ext4") ──► an ext4 in a file  ──► read_only, writable writes fail with EROFS

All are unmounted at the end. A tmpfs can only be remounted read-only while nobody has a file open for writing there,
which is enough for checkpoints and the archive. An ext4 is turned as the kernel itself turns a disk that fails, under
open files too (the mount option `abort`). It is synced just before; what is written between the two is lost, as on a
real disk, and may be a record that a Kafka node has acknowledged: Kafka syncs late and relies on its replicas. Whoever
wants to lose nothing freezes the writer meanwhile.

Not covered: disks that fail with EIO or lie about what they wrote; the loss of power. A file that is mapped into memory
on a full tmpfs brings its writer SIGBUS. Where nobody may mount, all of it is NotShown.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psutil

PREFIX = "streamward-disk"
BALLAST = "ballast"
PATIENCE_S = 5.0
"""For files that are open for writing when the disk shall turn read-only: checkpoints and segments close theirs."""
_BLOCKS = (1 << 20, 1 << 12)


class NotShown(Exception):
    """This fault cannot be injected on this machine; the message says why."""


@contextlib.contextmanager
def small_disk(size_mb: int, kind: Literal["tmpfs", "ext4"] = "tmpfs") -> Iterator[Path]:
    """A disk of `size_mb` MiB while the block runs, in a folder that only its owner sees into.

    An ext4 needs 16 MiB at least, some of it for itself. Raises NotShown where this user may not mount. What a process
    that was killed left mounted goes, too.
    """
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-"))
    try:
        if kind == "ext4":
            with _image(folder).open("wb") as image:
                image.truncate(size_mb * 1024 * 1024)
            _run("mkfs.ext4", "-q", "-F", "-m", "0", str(_image(folder)))
            _mount_image(folder)
            folder.chmod(0o700)
            (folder / "lost+found").rmdir()
        else:
            _run("mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=700", PREFIX, str(folder))
        yield folder
    finally:
        _unmount(folder)


def fill(disk: Path, leave_bytes: int = 0) -> int:
    """Write a ballast file until the disk is full; return how many bytes it took.

    With `leave_bytes` so much is left free, to a page. Raises ValueError for a folder that is no disk of `small_disk`:
    filling the machine's own would end more than was meant.
    """
    if not _is_ours(disk):
        raise ValueError(f"{disk} is no disk of small_disk; nothing else is filled")
    with (disk / BALLAST).open("ab", buffering=0) as ballast:
        for block in _BLOCKS:
            with contextlib.suppress(_Full):
                while shutil.disk_usage(disk).free - leave_bytes >= block:
                    _write(ballast.fileno(), bytes(block))
        return ballast.tell()


def free(disk: Path) -> None:
    """Remove the ballast."""
    (disk / BALLAST).unlink(missing_ok=True)


def read_only(disk: Path) -> None:
    """Turn the disk read-only. Raises NotShown, saying who, if somebody keeps a file of a tmpfs open for writing."""
    if _image(disk).exists():
        _run("sync", "-f", str(disk))
        return _run("mount", "-o", "remount,abort", str(disk))
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return _run("mount", "-o", "remount,ro", str(disk))
        except NotShown as exc:
            if time.monotonic() > deadline:
                who = ", ".join(f"{name} ({pid})" for pid, name in sorted(_users(disk, writing=True).items()))
                raise NotShown(f"{disk} stays writable: open for writing by {who or 'unknown'}; use an ext4") from exc
        time.sleep(0.02)


def writable(disk: Path) -> None:
    """Turn the disk writable again. An ext4 is checked and mounted anew; ValueError if somebody still uses it."""
    if not _image(disk).exists():
        return _run("mount", "-o", "remount,rw", str(disk))
    try:
        _run("umount", str(disk))
    except NotShown as exc:
        who = ", ".join(f"{name} ({pid})" for pid, name in sorted(_users(disk).items()))
        raise ValueError(f"{disk} is used by {who or 'unknown'}; end that before the disk is mended") from exc
    _run("fsck.ext4", "-y", str(_image(disk)), fine=1)
    _mount_image(disk)


class _Full(OSError):
    """No byte more."""


def _write(file: int, block: bytes) -> None:
    try:
        written = os.write(file, block)
    except OSError as exc:
        if exc.errno == errno.ENOSPC:
            raise _Full from exc
        raise
    if written < len(block):
        raise _Full


def _run(*command: str, fine: int = 0) -> None:
    """Raise NotShown with what the command said, if it says more than `fine`, or with its name, if there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError as exc:
        raise NotShown(f"a small disk needs `{command[0]}`, which is not on PATH") from exc
    if done.returncode > fine:
        said = (done.stderr or done.stdout).strip()
        raise NotShown(f"a small disk needs the right to mount (root, in its own name space); {command[0]}: {said}")


def _image(folder: Path) -> Path:
    """Return the file that an ext4 lies in."""
    return folder.with_name(f"{folder.name}.img")


def _mount_image(folder: Path) -> None:
    _run("mount", "-o", "loop,errors=remount-ro", str(_image(folder)), str(folder))


def _unmount(folder: Path) -> None:
    """Unmount, if it is busy as soon as nobody uses it any more; and remove what lay around it."""
    for lazily in ([], ["-l"]):
        if os.path.ismount(folder):
            subprocess.run(["umount", *lazily, str(folder)], capture_output=True, timeout=60)
    _image(folder).unlink(missing_ok=True)
    folder.rmdir()


def _mounted() -> Iterator[Path]:
    """Yield where disks of ours are mounted, of this process or another."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            folder = Path(line.split()[1].encode().decode("unicode_escape"))
            if folder.name.startswith(f"{PREFIX}-"):
                yield folder


def _is_ours(disk: Path) -> bool:
    return disk.resolve() in {folder.resolve() for folder in _mounted()}


def _sweep() -> None:
    """Unmount what processes left that are dead."""
    for folder in _mounted():
        pid = folder.name.removeprefix(f"{PREFIX}-").split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            with contextlib.suppress(OSError):
                _unmount(folder)


def _users(disk: Path, *, writing: bool = False) -> dict[int, str]:
    """Return who has a file of the disk open: pid to name."""
    found = {}
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error):
            for file in process.open_files():
                if Path(file.path).is_relative_to(disk) and not (writing and file.mode == "r"):
                    found[process.pid] = process.info["name"]
    return found
