"""Run one command to its end, and leave no process behind.

    stdin: the order, a line of JSON ──► the command, in a session of its own ──► stdout: how it ended, a line of JSON
           then open while the parent lives and wants the run ──► its end, kill -9 included, ends the command

On Linux every process that the command leaves behind, in whichever session, becomes a child of this process (prctl(2),
PR_SET_CHILD_SUBREAPER) and is killed before the line is printed. Elsewhere only its process group is.

It imports the standard library and streams/processes/child.py, and so starts in milliseconds.
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

from streams.processes.child import ChildProcess, describe_exit

CHILD_SUBREAPER, PARENT_DEATH_SIGNAL = 36, 1
"""Options of prctl(2)."""
CHUNK = 1 << 16
LOOK_S = 0.25
"""How often limits are checked; a folder is measured every fourth time."""
OUTPUT_BYTES = 1 << 16
"""Length of the end of stdout that is reported."""
QUOTED = 300
"""Characters of the last line on stderr that the reason quotes."""


class KeptOutput:
    """One stream of the command, kept in a file up to a limit; the rest is read and discarded."""

    def __init__(self, pipe: IO[bytes], path: Path, limit: int) -> None:
        self.pipe, self.limit, self.size = pipe, limit, 0
        self._file = path.open("ab", buffering=0)
        self._tail = b""

    def take(self) -> bool:
        """Read a chunk. Return False at the end of the stream."""
        chunk = os.read(self.pipe.fileno(), CHUNK)
        self._file.write(chunk[: max(0, self.limit - self.size)])
        if self.size <= self.limit < self.size + len(chunk):
            self._file.write(f"\n[more than {self.limit} bytes: the rest is left out]\n".encode())
        self.size += len(chunk)
        self._tail = (self._tail + chunk)[-OUTPUT_BYTES:]
        return bool(chunk)

    @property
    def end(self) -> str:
        """The end of it."""
        return self._tail.decode(errors="replace")

    @property
    def last_line(self) -> str:
        """The last line that is not empty."""
        lines = self.end.split("\n")
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
    os._exit(0)


def _run(order: dict[str, Any]) -> dict[str, Any]:
    folder = Path(order["folder"])
    try:
        with (folder / "task.json").open("rb") as task:
            child = ChildProcess(
                order["command"],
                stdin=task,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=order["env"],
                preexec_fn=_die_with_parent(),
            )
    except OSError as exc:
        return _ending("failed", f"cannot start {order['command'][0]}: {exc.strerror or exc}", None)
    pipes = {"stdout": child.stdout, "stderr": child.stderr}
    outputs = [
        KeptOutput(pipe, folder / name, order["output_bytes"]) for name, pipe in pipes.items() if pipe is not None
    ]
    limit = _watch(child, outputs, folder, order)
    if limit is not None:
        _end(child, outputs, order["grace_s"])
    _kill_all(child)
    _drain(outputs)
    if limit is not None:
        return _ending(*limit, child.returncode)
    if child.returncode == 0:
        return _ending("completed", "exit code 0", 0) | {"output": outputs[0].end or None}
    last_line = outputs[1].last_line
    reason = describe_exit(child.returncode) + (f": {last_line}" if last_line else "")
    return _ending("failed", reason, child.returncode)


def _die_with_parent() -> Callable[[], None]:
    """Return a function for the child to call before its program starts: kill -9 of this process then ends it, too."""
    library = ctypes.CDLL(None)

    def die_with_parent() -> None:
        with contextlib.suppress(AttributeError):
            library.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)

    return die_with_parent


def _watch(
    child: ChildProcess, outputs: list[KeptOutput], folder: Path, order: dict[str, Any]
) -> tuple[str, str] | None:
    """Wait until the command has ended; if it has to be ended instead, return how and why."""
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
    """Return the size of the files in a folder; counting stops above `enough`."""
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


def _end(child: ChildProcess, outputs: list[KeptOutput], grace_s: float) -> None:
    """Ask the command and its process group to end, and give it some time to."""
    child.signal_group(signal.SIGTERM)
    until = time.monotonic() + grace_s
    while child.poll() is None and time.monotonic() < until:
        _drain(outputs)
        time.sleep(0.02)


def _kill_all(child: ChildProcess) -> None:
    """Kill the rest: the process group, and every process that became a child of this one, until none is left."""
    child.signal_group(signal.SIGKILL)
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
    """Return the children of this process; only Linux lists them (proc(5))."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            pids += map(int, Path(f"/proc/self/task/{thread}/children").read_text().split())
    return pids


def _drain(outputs: list[KeptOutput]) -> None:
    """Keep the remaining output, without waiting for more."""
    with selectors.DefaultSelector() as ready:
        for output in outputs:
            ready.register(output.pipe, selectors.EVENT_READ, output)
        while len(ready.get_map()) and (keys := ready.select(0)):
            for key, _ in keys:
                if not key.data.take():
                    ready.unregister(key.data.pipe)


def _ending(ending: str, reason: str, code: int | None) -> dict[str, Any]:
    return {"ending": ending, "reason": reason, "exit_code": code}
