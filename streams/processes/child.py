"""One child process: start it, ask it to end, kill it with all it started, and report how it ended.

    command ──► ChildProcess, in a session of its own ──► SIGTERM, time to end, SIGKILL to its group ──► exit code 1

A session of its own keeps the terminal's Ctrl-C from the child: the parent decides the order in which things end. It
also makes the child's process group hold everything that the child started, unless that left the group.

It uses only the standard library: the supervisor of agents' runs imports this, and starts in milliseconds.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

LOOK_EVERY_S = 0.02
TAIL_BYTES = 64 * 1024
"""Maximum part of a log that `last_lines` reads."""


class ChildProcess(subprocess.Popen[bytes]):
    """A process that leads its own session. Use as a context manager to close its pipes and wait for it."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """Start it; `options` are those of subprocess.Popen. Raises OSError."""
        super().__init__(command, start_new_session=True, **options)

    def wait_at_most(self, seconds: float) -> None:
        """Return when it has ended, or after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(seconds)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and what it started.

        After its end, only while the group has a running process: later another group may have its number.
        """
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a group of zombies
            os.killpg(self.pid, number)

    def kill_group(self) -> None:
        """Kill the process, unless it has ended, with what it started. Returns when it is gone. Any thread may."""
        if self.returncode is None:
            self.signal_group(signal.SIGKILL)
        self.wait()


def is_ready(pipe: int, what: Literal["read", "write"], within_s: float) -> bool:
    """Return whether a pipe can be read or written within `within_s` seconds; a pipe with a closed other end can. Uses
    poll: select accepts no descriptor above 1,023, as a server with many connections has.
    """
    poller = select.poll()
    poller.register(pipe, select.POLLIN if what == "read" else select.POLLOUT)
    return bool(poller.poll(1000 * max(0.0, within_s)))


def describe_exit(code: int) -> str:
    """Return an exit code in words; a negative one is the number of a signal.

    >>> describe_exit(3), describe_exit(-9)
    ('exit code 3', 'signal SIGKILL')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"signal {-code}"


def signal_and_wait(pid: int, number: signal.Signals, is_running: Callable[[], bool], limit_s: float) -> bool:
    """Send a signal to any process, child or not, and return whether it ended within `limit_s` seconds.

    `is_running` decides whether it is still the intended process.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    deadline = time.monotonic() + limit_s
    while is_running():
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def free_port() -> int:
    """Return a port of this machine that is free now, for a child that will serve."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a file that a process prints to; none if the file does not exist."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []
