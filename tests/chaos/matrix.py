"""The faults by name, and one run of one of them.

    @fault(5, "the node is killed", "SIGKILL, and started again after 3 s") def broker_kill(world, load, draw): ...
        ──► run(fault, seed, groups): start, load, hurt, heal, drain, stop, judge ──► one line

A fault returns when it has healed. It is judged after everything has drained, so it must leave all processes alive.

Not covered: two faults at once. `make soak` draws one after the other.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.load import RATE, Ledger, Load
from tests.chaos.verdict import Verdict, judge_with
from tests.chaos.world import World

GROUPS = 3000
RECOVERED_LAG = 10
"""Records; below, a run has recovered."""
RECOVERY_S = 60.0
"""What the recovery of any fault may take."""
STILL_S = 60.0
"""A log in which nothing moved for so long has drained as far as it will."""

Inject = Callable[[World, Load, random.Random], None]
Line = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """One row of the matrix."""

    name: str
    number: int
    what: str
    how: str
    inject: Inject
    starts: tuple[str, ...] = ("streams", "policy", "scoring")
    settings: Mapping[str, Any] = field(default_factory=dict)
    tasks: Callable[[int], Mapping[str, Any]] = lambda number: {}
    """What is special about task n."""
    rate: float = RATE
    """Tasks a second."""
    most: int = GROUPS
    """Most tasks that must be sent; more are while the fault lasts."""
    place: Callable[..., World] = World
    """Where it happens; a fault with another broker brings another World."""
    codes: frozenset[int] = frozenset()
    """Exit codes that a process may have in it without having been killed."""
    cut: bool = False
    """Whether the log is cut: what it no longer holds cannot be recomputed."""
    no_repeats: bool = False
    """Whether not even a harmless copy may be written."""
    only_named: bool = False
    """Whether it is too long for the matrix and for chance."""
    run: Callable[[Fault, int, int, Path], Line] | None = None
    """A run of another shape: the trainer's are judged by their bytes."""


FAULTS: dict[str, Fault] = {}


def fault(number: int, what: str, how: str, **more: Any) -> Callable[[Inject], Inject]:
    """Register the function as the fault of its name."""

    def register(inject: Inject) -> Inject:
        name = inject.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, number, what, how, inject, **more)
        return inject

    return register


@dataclass(frozen=True)
class Workers:
    """The stream workers of a run."""

    driver: str = "faust"
    """faust, loop, or mixed: one of each."""
    stock: bool = False
    """Faust without our fixes."""


FIXED = Workers()
STANDBY = "streams-2"
"""The worker that is beside `streams` where drivers are mixed."""


def run(
    row: Fault, *, seed: int, groups: int, folder: Path, workers: Workers = FIXED, limit_s: float = RECOVERY_S
) -> Line:
    """Run one fault, and return its line; recovering in more than `limit_s` is a failure.

    Raises NotShown if this machine cannot have it.
    """
    if row.run is not None:
        return row.run(row, seed, groups, folder)
    begun = time.monotonic()
    draw = random.Random(f"{row.name} {seed}")
    with (
        Ledger(_made(folder) / "ledger.jsonl") as ledger,
        row.place(folder, row.settings, stock=workers.stock, driver=workers.driver) as world,
    ):
        mixed = workers.driver == "mixed" and "streams" in row.starts
        for name in dict.fromkeys((*row.starts, *([STANDBY] if mixed else []))):
            world.start(name)
        with Load(
            world.settings, ledger, seed=seed, groups=min(groups, row.most), rate=row.rate, special=row.tasks
        ) as load:
            load.until(0.05)
            row.inject(world, load, draw)
            load.finish()
            recovery_s = drained(world, ledger, since=time.monotonic())
        codes = world.stop()
        ledger.settle()
        verdict = judge_with(world.repo, world.direct, ledger, cut=row.cut, bad=world.bad)
        found = world.findings()
        line = _line(row, seed, world, load, ledger, verdict)
        complaints = [*verdict.complaints, *found, *exits(row, world, codes)]
        if recovery_s is None:
            complaints.append(f"not drained: lag {world.lag()}")
        elif recovery_s > limit_s:
            complaints.append(f"recovered in {recovery_s:.0f} s, expected {limit_s:g}")
        if row.no_repeats and verdict.repeated:
            complaints.append(f"{verdict.repeated} records were written twice")
        return line | {
            "recovery_s": None if recovery_s is None else round(recovery_s, 1),
            "passed": not complaints,
            "complaints": complaints,
            "seconds": round(time.monotonic() - begun, 1),
        }


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _line(row: Fault, seed: int, world: World, load: Load, ledger: Ledger, verdict: Verdict) -> Line:
    count = ledger.count()
    return {
        "fault": row.name,
        "number": row.number,
        "seed": seed,
        "faust": "stock" if world.stock else "fixed",
        "driver": world.driver,
        "produced": sum(count.values()),
        "acknowledged": count["acknowledged"],
        "unknown": count["unknown"],
        "failed": count["failed"],
        "groups": verdict.groups,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "phantom": verdict.phantom,
        "repeated": verdict.repeated,
        "out_of_order": verdict.out_of_order,
        "events_per_s": round(sum(map(world.count, ("tasks", "responses", "rewards"))) / load.seconds),
        "ends": dict(Counter(f"{ended.name} {ended.code}" for ended in world.exits)),
        "notes": [*world.notes, *{f"{end.name} {end.code}: {end.words}" for end in world.exits if end.words}],
    }


def exits(row: Fault, world: World, codes: Mapping[str, int]) -> list[str]:
    """Return a complaint about each process that ended when nobody asked it to, or not with 0 when asked."""
    unasked = {(end.name, end.code): end.words for end in world.exits if not end.asked and end.code not in row.codes}
    complaints = [f"{name} ended by itself with {code}: {words}" for (name, code), words in unasked.items()]
    return complaints + [f"{name} was told to end and ended with {code}" for name, code in codes.items() if code]


def drained(world: World, ledger: Ledger, *, since: float) -> float | None:
    """Wait until everything is read and answered, or nothing moves any more.

    Return the seconds until the lag was small; None if it never was.
    """
    recovery_s = None
    moved, before = time.monotonic(), None
    while time.monotonic() - moved < STILL_S:
        lag = world.lag()
        groups = None if lag is None else world.count("groups")
        if lag is not None and lag < RECOVERED_LAG and recovery_s is None:
            recovery_s = time.monotonic() - since
        if lag == 0 and groups is not None and groups >= ledger.count()["acknowledged"]:
            return recovery_s
        if (lag, groups) != before:
            moved, before = time.monotonic(), (lag, groups)
        time.sleep(0.25)
    return recovery_s


@contextmanager
def healed(heal: Callable[[], None]) -> Iterator[None]:
    """Heal when the block ends, also if it fails."""
    try:
        yield
    finally:
        heal()
