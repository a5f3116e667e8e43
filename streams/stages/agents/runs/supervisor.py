"""Run one command to its end, and leave nothing of it behind. The standard library alone: it starts in milliseconds.

    stdin: the order, a line of JSON ──► the command, in a session of its own ──► stdout: how it ended, a line of JSON
           then open while whoever asked lives and wants it ──► its end, kill -9 included, ends the command

On Linux whatever the command leaves behind, in a session of its own or not, becomes a child of this process
(prctl(2), PR_SET_CHILD_SUBREAPER) and is killed before the line is printed. Elsewhere only its process group is.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

CHILD_SUBREAPER, PARENT_DEATH_SIGNAL = 36, 1
"""Options of prctl(2)."""
CHUNK = 1 << 16
LOOK_S = 0.25
"""How often limits are looked at; a folder is measured every fourth time."""
QUOTED = 300
"""Characters of the last line on stderr that the reason quotes."""


class KeptOutput:
    """One stream of the command, kept in a file up to a limit; the rest is read and thrown away."""

    def __init__(self, pipe: IO[bytes], path: Path, most: int) -> None:
        self.pipe, self.most, self.seen = pipe, most, 0
        self._file = path.open("ab", buffering=0)
        self._tail = b""

    def take(self) -> bool:
        """Read what is there. Return whether there may be more."""
        part = os.read(self.pipe.fileno(), CHUNK)
        kept = part[: max(0, self.most - self.seen)]
        self._file.write(kept)
        if self.seen <= self.most < self.seen + len(part):
            self._file.write(f"\n[more than {self.most} bytes: the rest is left out]\n".encode())
        self.seen += len(part)
        self._tail = (self._tail + part)[-4 * QUOTED :]
        return bool(part)

    @property
    def last_line(self) -> str:
        """The last line that is not empty."""
        lines = self._tail.decode(errors="replace").split("\n")
        return next((line.strip()[:QUOTED] for line in reversed(lines) if line.strip()), "")


def main() -> None:
    """Read the order, run it, print how it ended."""
    order = json.loads(sys.stdin.buffer.readline())
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)  # it ends when stdin does, after its command
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.stdout.write(json.dumps(_run(order)))
    sys.stdout.flush()
    os._exit(0)  # threads and pipes of nobody are left


def _run(order: dict[str, Any]) -> dict[str, Any]:
    folder = Path(order["folder"])
    try:
        with (folder / "task.json").open("rb") as given:
            child = subprocess.Popen(
                order["command"],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=order["env"],
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
    except OSError as exc:
        return _ending("failed", f"cannot start {order['command'][0]}: {exc.strerror or exc}", None)
    pipes = {"stdout": child.stdout, "stderr": child.stderr}
    outputs = [
        KeptOutput(pipe, folder / name, order["output_bytes"]) for name, pipe in pipes.items() if pipe is not None
    ]
    cut = _watch(child, outputs, folder, order)
    if cut is not None:
        _end(child, outputs, order["grace_s"])
    _kill_all(child)
    _drain(outputs)
    if cut is not None:
        return _ending(*cut, child.returncode)
    if child.returncode == 0:
        return _ending("completed", "exit code 0", 0)
    said = outputs[1].last_line
    return _ending("failed", _named(child.returncode) + (f": {said}" if said else ""), child.returncode)


def _die_with_parent() -> Callable[[], None]:
    """Return what runs in the child before its program: kill -9 of this process is its end, too."""
    library = ctypes.CDLL(None)

    def ask() -> None:
        with contextlib.suppress(AttributeError):
            library.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)

    return ask


def _watch(
    child: subprocess.Popen[bytes], outputs: list[KeptOutput], folder: Path, order: dict[str, Any]
) -> tuple[str, str] | None:
    """Wait until the command has ended; return its ending and the reason if it has to be ended instead."""
    until = time.monotonic() + order["time_limit_s"]
    looks = 0
    with selectors.DefaultSelector() as ready:
        ready.register(sys.stdin.buffer, selectors.EVENT_READ)
        for output in outputs:
            ready.register(output.pipe, selectors.EVENT_READ, output)
        looked_at = 0.0
        while child.poll() is None:
            for key, _ in ready.select(LOOK_S if len(ready.get_map()) > 1 else LOOK_S / 10):
                if key.data is None:
                    return "cancelled", "it was asked to stop"
                if not key.data.take():
                    ready.unregister(key.data.pipe)
            now = time.monotonic()
            if now >= until:
                return "timeout", f"it ran for {order['time_limit_s']:g} s, which is its time limit"
            if now - looked_at < LOOK_S:
                continue
            looked_at, looks = now, looks + 1
            if looks % 4 == 0 and (size := _bytes_in(folder, order["folder_bytes"])) > order["folder_bytes"]:
                return "failed", f"its folder holds more than {order['folder_bytes']} bytes ({size} were counted)"
    return None


def _bytes_in(folder: Path, enough: int) -> int:
    """Return how many bytes the files of a folder take, counted until there are more than `enough`."""
    total, folders = 0, [os.fspath(folder)]
    while folders and total <= enough:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def _end(child: subprocess.Popen[bytes], outputs: list[KeptOutput], grace_s: float) -> None:
    """Ask the command and its process group to end, and give it some time to."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while child.poll() is None and time.monotonic() < until:
        _drain(outputs)
        time.sleep(0.02)


def _kill_all(child: subprocess.Popen[bytes]) -> None:
    """Kill what is left: the process group, and whatever became a child of this process, until there is none."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.005)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Return the children of this process: Linux alone says so (proc(5))."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            pids += map(int, Path(f"/proc/self/task/{thread}/children").read_text().split())
    return pids


def _drain(outputs: list[KeptOutput]) -> None:
    """Keep what was printed and not read yet, without waiting for more."""
    with selectors.DefaultSelector() as ready:
        for output in outputs:
            ready.register(output.pipe, selectors.EVENT_READ, output)
        while len(ready.get_map()) and (keys := ready.select(0)):
            for key, _ in keys:
                if not key.data.take():
                    ready.unregister(key.data.pipe)


def _named(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _ending(ending: str, reason: str, code: int | None) -> dict[str, Any]:
    return {"ending": ending, "reason": reason, "exit_code": code}


if __name__ == "__main__":
    main()
