"""Fault 15: what grows, in 50 rebalances and in an hour.

Not covered: growth that shows only after days.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.chaos.load import Load
from tests.chaos.matrix import fault
from tests.chaos.world import World

CYCLES = 25
"""A second worker comes and goes so often: two rebalances each time."""
MINUTES = 60
REBALANCE_EVERY = 5
"""Minutes of the hour."""
MOST = {"memory_mb": 1.15, "files": 1.1, "threads": 1.1, "temporary": 1.0, "changelog_mb": 1.5}
"""By how much the last third of the samples may exceed the first, beside a constant: 8 of each. A changelog grows until
it is compacted, and shrinks."""
SLACK = 8
WARM = 5
"""Samples that are passed over: allocators and caches are filling."""


class Sample(NamedTuple):
    """What one process holds."""

    memory_mb: float
    files: int
    threads: int
    temporary: int


@fault(
    15,
    "50 rebalances, and what grows meanwhile",
    "memory, open files, threads and temporary files of each process, the first third of the run against the last. "
    "Less load than elsewhere: what is read ahead in a rebalance comes and goes, and would hide what stays",
    rate=20.0,
)
def growth(world: World, load: Load, draw: random.Random) -> None:
    samples = Samples(world)
    for _ in range(CYCLES):
        world.start("streams-2")
        time.sleep(draw.uniform(2.5, 3.5))
        world.stop("streams-2")
        samples.take()
    samples.judge(f"{2 * CYCLES} rebalances")


@fault(
    15,
    "an hour, and what grows in it",
    "the same every minute, and the bytes of the changelogs on the disk; a second worker comes and goes every five "
    "minutes, and what is closed is forgotten after five. Takes an hour, so it runs only when it is named",
    rate=5.0,
    settings={"advantages": {"deadline_s": 0.0, "evict_after_s": 300.0}},
    only_named=True,
)
def an_hour(world: World, load: Load, draw: random.Random) -> None:
    samples, begun = Samples(world), time.monotonic()
    for minute in range(1, MINUTES + 1):
        if minute % REBALANCE_EVERY == 0:
            world.start("streams-2")
            time.sleep(draw.uniform(10, 20))
            world.stop("streams-2")
        time.sleep(max(0.0, begun + 60 * minute - time.monotonic()))
        samples.take()
    samples.judge(f"{MINUTES} minutes")


class Samples:
    """What the processes of a world hold, time after time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._taken: dict[str, list[dict[str, float]]] = {}

    def take(self) -> None:
        """Look at each process, and at the node's disk."""
        for name in ("streams", "policy", "scoring"):
            pid = self._world.pid(name)
            assert pid is not None
            self._taken.setdefault(name, []).append(sample(pid)._asdict())
        logs = self._world.node.data_dir.rglob("*-changelog-*/*.log")
        size_mb = sum(path.stat().st_size for path in logs if path.exists()) / 2**20
        self._taken.setdefault("node", []).append({"changelog_mb": size_mb})

    def judge(self, span: str) -> None:
        """Compare the first third with the last. Raises RuntimeError if something grew; the notes have all figures."""
        grown = []
        for name, taken in self._taken.items():
            third = (len(taken) - WARM) // 3
            for what in taken[0]:
                before, after = (
                    statistics.median(one[what] for one in part) for part in (taken[WARM:][:third], taken[-third:])
                )
                told = f"{name} {what} {before:.0f} to {after:.0f}"
                self._world.notes.append(told)
                if after > before * MOST[what] + SLACK:
                    grown.append(told)
        if grown:
            raise RuntimeError(f"grown in {span}: {', '.join(grown)}")


def sample(pid: int) -> Sample:
    """Return what a process holds now."""
    process = psutil.Process(pid)
    temporary = sum(1 for path in Path(tempfile.gettempdir()).glob("streamward-*") if "chaos" not in path.name)
    return Sample(process.memory_info().rss / 2**20, process.num_fds(), process.num_threads(), temporary)
