"""Keep child processes alive, and end them cleanly.

    {name: command} ──► one process each, output to a file ──► died? reported, and restarted ──► SIGTERM, then wait

Each child leads its own session, so that Ctrl-C reaches only the parent, which decides the order in which things end. A
child that ends is restarted after a pause that doubles from 0.5 s. If it refuses its settings, or ends GIVE_UP_AFTER
times without running for a minute in between, it would only do so again: its last output becomes the error. One that
the run can do without is left out then, and that is reported.

A parent killed with -9 leaves its children running; their pids are in a file, and the next start ends them first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from streams.errors import SettingsError, StreamwardError

FIRST_PAUSE_S = 0.5
SETTLED_S = 60.0
"""A child that ran this long has recovered: what happened before is forgotten."""
GIVE_UP_AFTER = 5
QUOTED_LINES = 10
"""Lines of a child's output that its error quotes."""


@dataclass
class Child:
    """One process, and what happened to it."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes]
    started_at: float
    needed: bool = True
    """Whether the run is over if it does not stay up."""
    restarts: int = 0
    failures: int = 0
    """How often it ended since it last ran for SETTLED_S."""
    due_at: float | None = None
    """When to restart it; None while it runs."""


@dataclass
class Processes:
    """Child processes, restarted as needed. Use as a context manager: leaving it ends them all."""

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

    def start(self, name: str, command: Sequence[str], *, needed: bool = True) -> None:
        """Start a child; what it prints goes to `<folder>/<name>.log`."""
        self.children[name] = Child(name, command, self._spawn(name, command), time.monotonic(), needed)
        self._write_pids()

    def check(self) -> list[str]:
        """Restart children that ended, when their pause is over; return a line for each thing that happened.

        Raises StreamwardError with the last output of a child that does not stay up, and is needed.
        """
        happened = []
        now = time.monotonic()
        for child in list(self.children.values()):
            code = child.process.poll()
            if code is None:
                if now - child.started_at > SETTLED_S:
                    child.failures = 0
                continue
            if child.due_at is None:
                pause_s = FIRST_PAUSE_S * 2**child.failures
                child.failures += 1
                if child.failures == GIVE_UP_AFTER or code == SettingsError.exit_code:
                    if child.needed:
                        raise StreamwardError(self._gave_up(child, code))
                    del self.children[child.name]
                    self._write_pids()
                    happened.append(
                        f"{child.name} does not stay up and is left out (its output: {self.log_file(child.name)})"
                    )
                    continue
                child.due_at = now + pause_s
                happened.append(
                    f"{child.name} ended with {_code(code)}; restarting it in {pause_s:g} s "
                    f"(its output: {self.log_file(child.name)})"
                )
            elif now >= child.due_at:
                child.process = self._spawn(child.name, child.command)
                child.started_at, child.due_at = now, None
                child.restarts += 1
                self._write_pids()
                happened.append(f"{child.name} is running again (pid {child.process.pid}, restart {child.restarts})")
        return happened

    def stop(self, names: Sequence[str] | None = None) -> None:
        """Ask children to end, all at once, wait up to `grace_s` seconds, then kill what is left."""
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

    def _gave_up(self, child: Child, code: int) -> str:
        path = self.log_file(child.name)
        lines = path.read_text(errors="replace").splitlines()[-QUOTED_LINES:]
        return "\n".join(
            [
                f"{child.name} does not stay up: it ended {child.failures} times in a row, the last time with "
                f"{_code(code)}; the end of its output, from {path}:",
                *(f"    {line}" for line in lines),
                "fix that, and run the same command again to resume",
            ]
        )

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
        draft = self._pid_file.with_suffix(".draft")
        draft.write_text(json.dumps(pids))
        draft.replace(self._pid_file)  # atomic: a kill may come at any moment

    def _end_leftovers(self) -> None:
        """End the children of a parent that was killed: same pid, same time of birth."""
        if not self._pid_file.exists():
            return
        for pid, birth in json.loads(self._pid_file.read_text()).values():
            if birth is not None and _birth(pid) == birth:
                with suppress(ProcessLookupError, psutil.NoSuchProcess):  # it may end by itself meanwhile
                    os.kill(pid, signal.SIGTERM)
                    try:
                        psutil.Process(pid).wait(self.grace_s)
                    except psutil.TimeoutExpired:
                        os.kill(pid, signal.SIGKILL)


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
