"""One run of a command: started, killed with all its children at given times, started again, and watched.

command ──► process tree ──► peak memory, once a second
                 └── SIGKILL of all of it, when the training clock has reached a kill ──► the same command again
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from streams.demo.restarts import memory_bytes
from streams.processes.child import last_lines
from tests.benchmarks.side_by_side import say

TICK_S, MEMORY_EVERY_S = 0.05, 1.0
GONE_S = 30.0
EVENTS, HELD_OUT = "events.jsonl", "held_out.jsonl"
"""Of a peer, in the folder of its run."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What all arms have in common."""

    seconds: float
    """Of the command, a peer's evaluations left out."""
    until: float
    """Held-out score at which a peer stops; the demo takes all its steps."""
    model: str
    """As in model.base."""
    steps: int = 0
    """0: as many as the command has."""


@dataclass
class MeasuredRun:
    """What one run of an arm came to; one JSON line of the results."""

    arm: str
    task: str
    seed: int
    kills: list[float] = field(default_factory=list)
    """Seconds after the start at which everything was killed."""
    points: list[tuple[float, int, int, float]] = field(default_factory=list)
    """After each evaluation: seconds since the start, steps, tokens sampled, held-out score."""
    seconds: float = 0.0
    """Of the whole command, without the evaluations of a peer."""
    evaluation_s: float = 0.0
    """Of a peer's evaluations; they are in no other figure."""
    tokens: int = 0
    peak_bytes: int = 0
    code_lines: int = 0
    lost: dict[str, float] = field(default_factory=dict)
    """What the kills cost: trajectory_s, served_twice, never_trained, tokens_again."""
    error: str = ""
    """Why the run ended early."""
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int, bool]:
        """Newer results replace older ones with the same key."""
        return self.arm, self.task, self.seed, bool(self.kills)

    def first(self, score: float) -> tuple[float, int, int, float] | None:
        """Return the first point with at least this score."""
        return next((point for point in self.points if point[3] >= score), None)


@dataclass
class Attempts:
    """When each start of the command began and ended, in seconds since the epoch, and how the last one ended."""

    spans: list[tuple[float, float]]
    peak_bytes: int
    code: int | None
    """None: the time limit ended it."""


def attempts(
    commands: Callable[[int], Sequence[str]],
    folder: Path,
    *,
    env: Mapping[str, str],
    kills: Sequence[float],
    limit_s: float,
    paused_s: Callable[[], float],
) -> Attempts:
    """Run `commands(attempt)` in `folder` until it ends, killing it whenever the clock reaches one of `kills`.

    The clock leaves out `paused_s`, the seconds of the peer's evaluations so far.
    """
    begun, due, spans, peak = time.time(), list(kills), [], 0
    while True:
        started = time.time()
        with (folder / "output.log").open("ab") as log:
            child = subprocess.Popen(commands(len(spans)), cwd=folder, env=dict(env), stdout=log, stderr=log)
        looked = 0.0
        while child.poll() is None:
            clock = time.time() - begun - paused_s()
            if (due and clock >= due[0]) or clock > limit_s:
                break
            if time.time() - looked >= MEMORY_EVERY_S:
                peak, looked = max(peak, memory_bytes(child.pid)), time.time()
            time.sleep(TICK_S)
        ended = time.time()
        spans.append((started, ended))
        if child.poll() is not None:
            return Attempts(spans, peak, child.returncode)
        kill_tree(child)
        if not due:
            return Attempts(spans, peak, None)
        say(f"  killed after {ended - begun - paused_s():.0f} s")
        due.pop(0)


def kill_tree(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and all below it, at once, and wait until they are gone."""
    family = [*psutil.Process(child.pid).children(recursive=True), psutil.Process(child.pid)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)
    child.wait(GONE_S)
    psutil.wait_procs(family, GONE_S)


def failure(ended: Attempts, folder: Path) -> str:
    """Return why a run ended early; empty if it did not."""
    if ended.code is None:
        return "the time limit ended it"
    return "" if ended.code == 0 else " ".join(last_lines(folder / "output.log", 1)).strip()[:300]


def write(run: MeasuredRun, results: Path) -> None:
    """Append a run to the results."""
    results.mkdir(parents=True, exist_ok=True)
    with (results / "runs.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def read(results: Path) -> list[MeasuredRun]:
    """Return the newest run of each key, in the order of the keys."""
    file = results / "runs.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    runs = [MeasuredRun(**json.loads(line)) for line in lines]
    return [run for _, run in sorted({run.key: run for run in runs}.items())]
