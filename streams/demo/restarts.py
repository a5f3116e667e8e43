"""Restart child processes that end, and end them all in order.

    {name: command} ──► one process each, output to a file ──► ended? reported, and restarted ──► SIGTERM, then wait

A child that ends is restarted after a pause that doubles from 0.5 s. If it refuses its settings, or ends GIVE_UP_AFTER
times without running for a minute in between, restarting is useless: its last output becomes the error. An optional
child is given up instead, with a message.

Children are streamward commands. They end with their parent, even if its terminal is closed or it is killed with -9.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from streams.errors import SettingsError, StreamwardError
from streams.processes.child import ChildProcess, describe_exit, last_lines
from streams.processes.signals import start_ending_with_parent

FIRST_PAUSE_S = 0.5
SETTLED_S = 60.0
"""A child that ran this long has recovered: earlier failures no longer count."""
GIVE_UP_AFTER = 5
QUOTED_LINES = 10
"""Lines of a child's output that its error quotes."""


@dataclass
class RestartedChild:
    """One child, its command and its failures."""

    name: str
    command: Sequence[str]
    process: ChildProcess
    started_at: float
    needed: bool = True
    """Whether the run is over if it does not stay up."""
    restarts: int = 0
    failures: int = 0
    """How often it ended since it last ran for SETTLED_S."""
    due_at: float | None = None
    """When to restart it; None while it runs."""


@dataclass
class RestartedProcesses:
    """Child processes, restarted as needed. Use as a context manager: leaving it ends them all."""

    folder: Path
    env: Mapping[str, str]
    grace_s: float = 30.0
    children: dict[str, RestartedChild] = field(default_factory=dict)

    def __enter__(self) -> RestartedProcesses:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str], *, needed: bool = True) -> None:
        """Start a child; what it prints goes to `<folder>/<name>.log`."""
        self.children[name] = RestartedChild(name, command, self._spawn(name, command), time.monotonic(), needed)

    def check(self) -> list[str]:
        """Restart children that ended, when their pause is over; return a line for each event.

        Raises StreamwardError with the last output of a needed child that does not stay up.
        """
        now = time.monotonic()
        lines = [self._check(child, now) for child in list(self.children.values())]
        return [line for line in lines if line is not None]

    def _check(self, child: RestartedChild, now: float) -> str | None:
        """Return what happened to a child, if anything. Raises as `check`."""
        code = child.process.poll()
        if code is None:
            if now - child.started_at > SETTLED_S:
                child.failures = 0
            return None
        if child.due_at is None:
            return self._plan_restart(child, code, now)
        if now < child.due_at:
            return None
        child.process = self._spawn(child.name, child.command)
        child.started_at, child.due_at = now, None
        child.restarts += 1
        return f"{child.name} is running again (pid {child.process.pid}, restart {child.restarts})"

    def _plan_restart(self, child: RestartedChild, code: int, now: float) -> str:
        _close_stdin(child.process)
        pause_s = FIRST_PAUSE_S * 2**child.failures
        child.failures += 1
        output = f"(its output: {self.log_file(child.name)})"
        if child.failures < GIVE_UP_AFTER and code != SettingsError.exit_code:
            child.due_at = now + pause_s
            return f"{child.name} ended with {describe_exit(code)}; restarting it in {pause_s:g} s {output}"
        if child.needed:
            raise StreamwardError(self._failure(child, code))
        del self.children[child.name]
        return f"{child.name} does not stay up and is left out {output}"

    def stop(self, names: Sequence[str] | None = None) -> None:
        """Ask children to end, all at once, wait up to `grace_s` seconds, then kill the rest."""
        ending = [child for name, child in self.children.items() if names is None or name in names]
        for child in ending:
            child.process.terminate()
        deadline = time.monotonic() + self.grace_s
        for child in ending:
            child.process.wait_at_most(max(0.1, deadline - time.monotonic()))
            child.process.kill_group()
            _close_stdin(child.process)
            del self.children[child.name]

    def memory_bytes(self) -> dict[str, int]:
        """Return the unique memory of each running child and its own children, in bytes."""
        return {child.name: memory_bytes(child.process.pid) for child in self.children.values()}

    def log_file(self, name: str) -> Path:
        """Return the file with the output of a child."""
        return self.folder / f"{name}.log"

    def _failure(self, child: RestartedChild, code: int) -> str:
        path = self.log_file(child.name)
        return "\n".join(
            [
                f"{child.name} does not stay up: it ended {child.failures} times in a row, the last time with "
                f"{describe_exit(code)}; the end of its output, from {path}:",
                *(f"    {line}" for line in last_lines(path, QUOTED_LINES)),
                "fix that, and run the same command again to resume",
            ]
        )

    def _spawn(self, name: str, command: Sequence[str]) -> ChildProcess:
        with self.log_file(name).open("ab") as log:
            return start_ending_with_parent(command, self.env, stdout=log, stderr=log)


def _close_stdin(process: ChildProcess) -> None:
    if process.stdin is not None:
        process.stdin.close()


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
