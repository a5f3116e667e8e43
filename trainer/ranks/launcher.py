"""Run the trainer as several processes: their ranks, and how they end.

    streamward train, trainer.processes = N ──► rank 0   the trainer: Kafka, checkpoints, metrics   ──► its exit code
                                            ├─► rank 1   its share of every batch (trainer/step/shares.py)
                                            └─► …        if one dies, all end: exit code 75

This file starts them with the variables that torchrun and `accelerate launch` set (RANK, LOCAL_RANK, WORLD_SIZE), which
can also start them, on several machines: docs/scale.md. The difference is how they end. Here SIGTERM or Ctrl-C reaches
only rank 0, which finishes its step, however long that takes, and ends the others; the exit code is rank 0's.

With model.device=cuda rank n sees only the n-th device.

Not covered: starting ranks on other machines, which torchrun does.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from streams.errors import EXIT_RESTART, SettingsError
from streams.files import Scratch
from streams.processes.child import ChildProcess, describe_exit
from streams.processes.signals import end_with_parent
from streams.settings.model import Settings

MEET = "RANKS_MEET"
"""Variable of a rank that this file started: where it joins the others, torch.distributed's init_method."""
HOME_S = 10.0
"""How long the others may take to end once rank 0 has."""
LOOK_EVERY_S = 0.1

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """The rank of this process."""

    rank: int
    size: int
    meet: str


def place_from_env(settings: Settings, env: MutableMapping[str, str] = os.environ) -> Place | None:
    """Return which rank this process is, or None if no launcher started it. Call it before torch is loaded.

    The variables are removed from `env`, so that no library splits the step by itself: it is the same for any number of
    processes. With model.device=cuda only this rank's device stays visible.

    Raises SettingsError if the launcher and the settings do not agree.
    """
    size = int(env.get("WORLD_SIZE", "1"))
    if settings.trainer.processes > 1 and settings.model.device.startswith("cuda:"):
        raise SettingsError(
            f"model.device={settings.model.device} names one device, and trainer.processes is "
            f"{settings.trainer.processes}; set model.device=cuda, and each process takes its own"
        )
    if size == 1:
        return None
    if size != settings.trainer.processes:
        raise SettingsError(
            f"WORLD_SIZE is {size}, so a launcher started {size} processes, but trainer.processes is "
            f"{settings.trainer.processes}; set the same number, since it is part of the recipe"
        )
    rank = int(env["RANK"])
    local = int(env.get("LOCAL_RANK", rank))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"):
        env.pop(name, None)
    if settings.model.device == "cuda":
        seen = [name for name in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        if seen and local >= len(seen):
            raise SettingsError(
                f"CUDA_VISIBLE_DEVICES has {len(seen)} devices, and trainer.processes is {size}; each needs its own"
            )
        env["CUDA_VISIBLE_DEVICES"] = seen[local] if seen else str(local)
    meet = env.pop(MEET, None)
    if meet is not None:
        end_with_parent()
    return Place(rank, size, meet or "env://")


def run_ranks(command: Sequence[str], processes: int) -> int:
    """Run `command` as that many ranks, and return one exit code when all have ended. It is rank 0's. If another rank
    fails, or rank 0 is killed, all are ended at once: 75, to be restarted, or 2 if a rank refuses its settings.
    """
    with Scratch("ranks") as folder, _start_ranks(command, processes, folder) as ranks:
        with _forward_signals(ranks[0]) as signals:
            while ranks[0].poll() is None and not any(rank.poll() for rank in ranks):
                time.sleep(LOOK_EVERY_S)
        if ranks[0].poll() is not None:
            _wait(ranks, HOME_S)
        codes = [rank.poll() for rank in ranks]
    for number, code in enumerate(codes):
        if code is not None and (code < 0 or (number and code)):
            log.error("rank %d of %d ended with %s; all end with it", number, processes, describe_exit(code))
    return code_of_all(codes, is_stopped=bool(signals))


def code_of_all(codes: Sequence[int | None], is_stopped: bool) -> int:
    """Return one exit code for all ranks. A negative one is a signal's number; None: it had to be killed."""
    first, *other_codes = codes
    if first == -signal.SIGTERM and is_stopped:  # it was asked to stop before it had begun
        return 0
    if first is not None and first >= 0 and first != EXIT_RESTART:
        return first
    return SettingsError.exit_code if SettingsError.exit_code in other_codes else EXIT_RESTART


class RankRun:
    """State shared by a launcher on another machine and its ranks (plugins/distributed/ray_ranks.py)."""

    def __init__(self, size: int) -> None:
        self._codes: list[int | None] = [None] * size
        self._is_stopping = False
        self._code: int | None = None
        self._heard_at = time.monotonic()

    def stop(self) -> None:
        """Let rank 0 finish its step and end the others."""
        self._is_stopping = True

    def is_stopping(self) -> bool:
        """Return whether the ranks were asked to end; rank 0 checks this while it runs."""
        self._heard_at = time.monotonic()
        return self._is_stopping

    def silent_s(self) -> float:
        """Return the seconds since rank 0 last checked."""
        return time.monotonic() - self._heard_at

    def code(self) -> int | None:
        """Return the exit code of all, once that is decided."""
        return self._code

    def record_start(self, rank: int) -> None:
        """Record that a rank runs, perhaps again."""
        self._codes[rank] = None

    def record_end(self, rank: int, code: int) -> int | None:
        """Record the exit code of a rank, and return that of all; None: all are to be restarted."""
        self._codes[rank] = code
        code_for_all = code_of_all(self._codes, is_stopped=self._is_stopping)
        if self._code is None and code_for_all != EXIT_RESTART:
            self._code = code_for_all
        return self._code


@contextmanager
def _start_ranks(command: Sequence[str], processes: int, folder: Path) -> Iterator[list[ChildProcess]]:
    """Yield the ranks; none is left when the block ends."""
    shared = {
        **os.environ,
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        MEET: f"file://{folder / 'meet'}",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo"),
    }
    children: list[ChildProcess] = []
    try:
        for rank in range(processes):
            env = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            children.append(ChildProcess(command, env=env, stdin=subprocess.PIPE))
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()


@contextmanager
def _forward_signals(first: ChildProcess) -> Iterator[list[int]]:
    """Forward SIGTERM and Ctrl-C to rank 0 as SIGTERM; a second Ctrl-C ends this process, and with it all ranks.

    Yields the signals that came.
    """
    signals: list[int] = []

    def forward(number: int, _: object) -> None:
        signals.append(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        first.terminate()

    before = {sign: signal.signal(sign, forward) for sign in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def _wait(children: Sequence[ChildProcess], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(child.poll() is None for child in children):
        time.sleep(LOOK_EVERY_S)
