"""Fault 15: what grows.

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
MOST = {"memory_mb": 1.15, "files": 1.1, "threads": 1.1, "temporary": 1.0}
"""By how much the last third of the samples may exceed the first, beside a constant: 8 of each."""
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
    names = ("streams", "policy", "scoring")
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for _ in range(CYCLES):
        world.start("streams-2")
        time.sleep(draw.uniform(2.5, 3.5))
        world.stop("streams-2")
        for name in names:
            pid = world.pid(name)
            assert pid is not None
            samples[name].append(sample(pid))
    for name in names:
        third = CYCLES // 3
        first, last = samples[name][WARM : WARM + third], samples[name][-third:]
        for what, most in MOST.items():
            before, after = (statistics.median(getattr(s, what) for s in part) for part in (first, last))
            world.notes.append(f"{name} {what} {before:.0f} to {after:.0f}")
            if after > before * most + SLACK:
                raise RuntimeError(f"{name}: {what} grew from {before:.0f} to {after:.0f} in {2 * CYCLES} rebalances")


def sample(pid: int) -> Sample:
    """Return what a process holds now."""
    process = psutil.Process(pid)
    temporary = sum(1 for path in Path(tempfile.gettempdir()).glob("streamward-*") if "chaos" not in path.name)
    return Sample(process.memory_info().rss / 2**20, process.num_fds(), process.num_threads(), temporary)
