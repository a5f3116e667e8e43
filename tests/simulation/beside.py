"""The same happenings to a few real workers on a real node, and to simulated ones.

    Happenings: start, kill, stop, freeze ──► RealWorkers: processes, Kafka ──┐
                                          └─► Simulated: virtual time ────────┴──► what each said that it reads ──► Told

A simulation proves nothing about what it has wrong. Which members share which generation, who gets what, and how long
nobody reads a partition is compared here: the first two by tests/log/test_simulated_group.py, the times by
`python -m tests.simulation --beside-kafka`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

from streams.settings.load import to_env
from streams.settings.model import Settings
from tests.simulation.process import SimulatedProcess
from tests.simulation.world import Simulation

REPO = Path(__file__).parents[2]
READY = "ready"
MEMBER = REPO / "tests" / "support" / "log" / "loop_member.py"


class Told(NamedTuple):
    """What a worker said at a change."""

    when: float
    worker: int
    name: str
    """In the group."""
    generation: int
    reads: frozenset[int]


class Workers(Protocol):
    """Some workers, real or simulated, by their numbers in the order in which they were started."""

    told: list[Told]

    def start(self) -> int:
        """Start one more."""

    def prepare(self) -> int:
        """Start one more that is about to join, and waits for `join`."""

    def join(self, worker: int) -> None:
        """Have it join."""

    def end(self, worker: int, how: signal.Signals) -> None:
        """Send it SIGKILL, SIGTERM, SIGSTOP or SIGCONT."""

    def now(self) -> float:
        """Return the time."""

    def until(self, so: Callable[[], bool], what: str) -> None:
        """Let time pass until something is so."""

    def pause(self, seconds: float) -> None:
        """Let time pass."""


class RealWorkers(ExitStack):
    """Processes on a real node."""

    LIMIT_S = 90.0

    def __init__(self, settings: Settings, folder: Path) -> None:
        super().__init__()
        self._settings, self._folder = settings, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.callback(self._end_all)

    def start(self) -> int:
        """Start one more."""
        number = self._started()
        self.join(number)
        return number

    def prepare(self) -> int:
        """Start one more that waits, once it has begun."""
        number = self._started()
        self.until(lambda: self._path(number).read_text().startswith(READY), "a worker begins")
        return number

    def join(self, worker: int) -> None:
        """Have it join."""
        self._gate(worker).touch()

    def _started(self) -> int:
        number = len(self._processes)
        own = {key: value for key, value in os.environ.items() if not key.startswith("STREAMWARD_")}
        with self._path(number).open("wb") as out, self._path(number).with_suffix(".err").open("wb") as err:
            env = {**own, "PYTHONPATH": str(REPO), **to_env(self._settings)}
            command = [sys.executable, MEMBER, self._gate(number)]
            self._processes.append(subprocess.Popen(command, env=env, stdout=out, stderr=err))
        return number

    def _gate(self, number: int) -> Path:
        return self._folder / f"join{number}"

    def _path(self, number: int) -> Path:
        return self._folder / f"worker{number}.out"

    @property
    def told(self) -> list[Told]:
        """What all have said, in the order of its time."""
        found = []
        for number in range(len(self._processes)):
            for line in self._path(number).read_text().splitlines(keepends=True):
                if line.endswith("\n") and line.strip() != READY:
                    when, name, generation, reads = json.loads(line)
                    found.append(Told(when, number, name, generation, frozenset(reads)))
        return sorted(found)

    def end(self, worker: int, how: signal.Signals) -> None:
        """Send it a signal."""
        self._processes[worker].send_signal(how)

    def now(self) -> float:
        """As the processes say it."""
        return time.monotonic()

    def until(self, so: Callable[[], bool], what: str) -> None:
        """Wait for it. Raises AssertionError after LIMIT_S, with what the workers said."""
        deadline = time.monotonic() + self.LIMIT_S
        while not so():
            words = "\n".join(path.read_text()[-2000:] for path in self._folder.glob("worker*.err"))
            assert time.monotonic() < deadline, f"{what}: not within {self.LIMIT_S:g} s; {self.told[-8:]}\n{words}"
            time.sleep(0.1)

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def _end_all(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


class SimulatedWorkers:
    """The same of a simulation."""

    LIMIT_S = 90.0

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._processes: list[SimulatedProcess | None] = []

    def start(self) -> int:
        """Start one more."""
        self.join(self.prepare())
        return len(self._processes) - 1

    def prepare(self) -> int:
        """Count one more."""
        self._processes.append(None)
        return len(self._processes) - 1

    def join(self, worker: int) -> None:
        """Start it."""
        (self._processes[worker],) = self._world.start()

    @property
    def told(self) -> list[Told]:
        """What all have said."""
        return [Told(*each) for each in self._world.told]

    def end(self, worker: int, how: signal.Signals) -> None:
        """As a signal would."""
        process = self._processes[worker]
        assert process is not None, f"worker {worker} has not begun"
        match how:
            case signal.SIGKILL:
                process.kill()
            case signal.SIGTERM:
                process.stop()
            case signal.SIGSTOP:
                process.freeze()
            case _:
                process.thaw()

    def now(self) -> float:
        """Virtual time."""
        return self._world.clock.now

    def until(self, so: Callable[[], bool], what: str) -> None:
        """Let it pass. Raises AssertionError after LIMIT_S."""
        try:
            self._world.run_until(so, limit_s=self.LIMIT_S, every_s=0.1)
        except AssertionError as exc:
            raise AssertionError(f"{what}: {exc}; {self.told[-8:]}") from exc

    def pause(self, seconds: float) -> None:
        """Let it pass."""
        self._world.run(seconds)


class Seen(NamedTuple):
    """What came of one happening."""

    what: str
    members: list[tuple[int, ...]]
    """Of each generation in which all partitions were read, who read some."""
    still_s: list[float]
    """Of each partition number, how long nobody read it."""


def play(workers: Workers, partitions: int, session_s: float) -> list[Seen]:
    """Have it happen, one thing after the other, and return what was seen."""
    every, seen = frozenset(range(partitions)), list[Seen]()

    def read_by(*wanted: int) -> Callable[[], bool]:
        def so() -> bool:
            last = {told.worker: told for told in workers.told}
            reading = [last[number].reads for number in wanted if number in last]
            generations = {last[number].generation for number in wanted if number in last}
            return len(reading) == len(wanted) and len(generations) == 1 and frozenset().union(*reading) == every

        return so

    def happen(what: str, cause: Callable[[], object], gone: int | None, *wanted: int) -> None:
        began, before = workers.now(), len(workers.told)
        cause()
        workers.until(read_by(*wanted), what)
        workers.pause(session_s / 2)  # whether another generation follows
        told = workers.told
        seen.append(Seen(what, generations(told[before:]), stills(told, began, gone, partitions)))

    for _ in range(4):
        workers.start()
    workers.until(read_by(0, 1, 2, 3), "four start")
    workers.pause(session_s / 2)
    happen("one more comes", workers.start, None, 0, 1, 2, 3, 4)
    happen("one gets SIGTERM", lambda: workers.end(1, signal.SIGTERM), 1, 0, 2, 3, 4)
    happen("one is killed", lambda: workers.end(0, signal.SIGKILL), 0, 2, 3, 4)
    workers.prepare()
    happen("one is killed, and another joins at once", lambda: _kill_and_join(workers, 2, 5), 2, 3, 4, 5)
    happen("one is frozen", lambda: workers.end(3, signal.SIGSTOP), 3, 4, 5)
    happen("it continues", lambda: workers.end(3, signal.SIGCONT), None, 3, 4, 5)
    return seen


def _kill_and_join(workers: Workers, victim: int, successor: int) -> None:
    workers.end(victim, signal.SIGKILL)
    workers.join(successor)


def generations(told: Sequence[Told]) -> list[tuple[int, ...]]:
    """Return who read something in each generation, in order."""
    members: dict[int, set[int]] = {}
    for each in told:
        if each.reads:
            members.setdefault(each.generation, set()).add(each.worker)
    return [tuple(sorted(members[generation])) for generation in sorted(members)]


def shares(told: Sequence[Told]) -> dict[int, dict[str, set[int]]]:
    """Return what each member, by its name, read in each generation."""
    found: dict[int, dict[str, set[int]]] = {}
    for each in told:
        if each.reads:
            found.setdefault(each.generation, {}).setdefault(each.name, set()).update(each.reads)
    return found


def stills(told: Sequence[Told], since: float, gone: int | None, partitions: int) -> list[float]:
    """Return how long nobody read each partition from `since` on, when worker `gone` ended or stood still."""
    found = []
    for number in range(partitions):
        reader: int | None = None
        stopped: float | None = None
        total, last = 0.0, dict[int, bool]()
        for each in told:
            was, now = last.get(each.worker, False), number in each.reads
            last[each.worker] = now
            if each.when < since:
                reader = each.worker if now else (None if reader == each.worker else reader)
                continue
            if reader is not None and reader == gone and stopped is None:
                stopped, reader = since, None
            if now and not was and each.worker != reader:
                total += each.when - stopped if stopped is not None else 0.0
                reader, stopped = each.worker, None
            elif was and not now and each.worker == reader:
                reader, stopped = None, each.when
        found.append(total)
    return found
