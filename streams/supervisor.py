"""Keep child processes alive, and end them cleanly.

    {name: command} ──► one process each, output to a file ──► died? said so, and started again ──► SIGTERM, then wait

Each child leads a session of its own, so that Ctrl-C reaches the parent alone and the parent decides the order in which
things end. A child that ends is started again after a pause that doubles, from 0.5 s to 30 s, and is forgotten once it
has run for a minute.

Not covered: a parent that is killed with -9 leaves its children running; `Processes` writes their pids to a file, and
the next start ends them first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
SETTLED_S = 60.0
"""A child that ran this long has recovered; its next pause is the first one again."""


@dataclass
class Child:
    """One process, and what happened to it."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes]
    started_at: float
    restarts: int = 0
    pause_s: float = FIRST_PAUSE_S
    due_at: float | None = None
    """When to start it again; None while it runs."""


@dataclass
class Processes:
    """Children under one roof. Use as a context manager: leaving it ends them all."""

    folder: Path
    env: Mapping[str, str]
    grace_s: float = 30.0
    children: dict[str, Child] = field(default_factory=dict)

    def __enter__(self) -> Processes:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._end_leftovers()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a child; what it prints goes to `<folder>/<name>.log`."""
        self.children[name] = Child(name, command, self._spawn(name, command), time.monotonic())
        self._write_pids()

    def check(self) -> list[str]:
        """Start again what has ended, when its pause is over; return a line for each thing that happened."""
        happened = []
        now = time.monotonic()
        for child in self.children.values():
            code = child.process.poll()
            if code is None:
                if now - child.started_at > SETTLED_S:
                    child.pause_s = FIRST_PAUSE_S
                continue
            if child.due_at is None:
                child.due_at = now + child.pause_s
                happened.append(
                    f"{child.name} ended with {_code(code)}; starting it again in {child.pause_s:g} s "
                    f"(what it said: {self.log_file(child.name)})"
                )
                child.pause_s = min(child.pause_s * 2, LONGEST_PAUSE_S)
            elif now >= child.due_at:
                child.process = self._spawn(child.name, child.command)
                child.started_at, child.due_at = now, None
                child.restarts += 1
                self._write_pids()
                happened.append(f"{child.name} runs again (pid {child.process.pid}, restart {child.restarts})")
        return happened

    def stop(self, names: Sequence[str] | None = None) -> None:
        """Ask children to end, all at once, wait up to the grace, then kill what is left."""
        ending = [child for name, child in self.children.items() if names is None or name in names]
        for child in ending:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.grace_s
        for child in ending:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            del self.children[child.name]
        self._write_pids()

    def memory_bytes(self) -> dict[str, int]:
        """Return the unique memory of each running child and its own children, in bytes."""
        return {child.name: memory_bytes(child.process.pid) for child in self.children.values()}

    def log_file(self, name: str) -> Path:
        """Return the file that holds what a child printed."""
        return self.folder / f"{name}.log"

    def _spawn(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log_file(name).open("ab") as log:
            return subprocess.Popen(
                command, env=dict(self.env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def _pid_file(self) -> Path:
        return self.folder / "pids.json"

    def _write_pids(self) -> None:
        pids = {name: [child.process.pid, _birth(child.process.pid)] for name, child in self.children.items()}
        self._pid_file.write_text(json.dumps(pids))

    def _end_leftovers(self) -> None:
        """End the children of a parent that was killed: same pid, same time of birth."""
        if not self._pid_file.exists():
            return
        for pid, birth in json.loads(self._pid_file.read_text()).values():
            if birth is not None and _birth(pid) == birth:
                os.kill(pid, signal.SIGTERM)
                try:
                    psutil.Process(pid).wait(self.grace_s)
                except psutil.TimeoutExpired:
                    os.kill(pid, signal.SIGKILL)
                except psutil.NoSuchProcess:
                    pass


def memory_bytes(pid: int) -> int:
    """Return the proportional memory of a process and its descendants, in bytes: shared pages count by share."""
    total = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in family:
        try:
            info = process.memory_full_info()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        total += getattr(info, "pss", info.rss)
    return total


def _birth(pid: int) -> float | None:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def _code(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
