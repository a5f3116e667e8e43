"""How long a live worker takes to have its open groups back in memory after kill -9: the loop, with all its stages.

    10,000 groups, each without its last reward ──► a worker reads them, and commits ──► kill -9 ──► the next: its rows
                                                     the last rewards ──► every group, so it had them all

From the start of the process to what it says when its rows are back, by the worker's own log; and how long it read for
that, which is the rest without starting Python and joining the group. The killed member is gone from its group by then:
how long that takes is kafka.session_timeout_s.

Not covered: Faust, whose tables are restored by the same topics, and say nothing of it.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.events import Event
from streams.kafka import offsets
from streams.kafka.producer import Producer
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.load import to_env
from streams.settings.model import Settings
from tests.benchmarks.loop import LIMIT_S, REPO, await_groups, node
from tests.benchmarks.side_by_side import line, say
from tests.benchmarks.whole_groups import EVENTS, whole

OPEN = 10_000
"""Groups."""
AIM_S = 5.0
ROUNDS = 3
SESSION_S = 6.0
BACK = re.compile(r"reads on: (\d+) rows of \d+ changelog partitions in ([\d.]+) s")


def run() -> Iterator[dict[str, Any]]:
    """Yield a line in seconds. Raises RuntimeError if a worker ends, or a group is not there again."""
    with node() as given, tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
        tree = given.model_dump()
        tree["worker"]["driver"], tree["kafka"]["session_timeout_s"] = "loop", SESSION_S
        settings = Settings.model_validate(tree)
        say(f"restart: {OPEN} groups are opened")
        last = list(_opened(settings))
        worker = _Started(settings, Path(folder) / "first")
        worker.wait_for(lambda: _committed(settings) == OPEN * (EVENTS - 1))
        taken = []
        for number in range(ROUNDS):
            worker.kill()
            time.sleep(SESSION_S + 1)  # the broker takes so long to notice
            worker = _Started(settings, Path(folder) / str(number))
            taken.append(worker.back())
            say(f"  {taken[-1][0]} rows, {taken[-1][1]:.2f} s, {taken[-1][2]:.2f} of them reading")
        with Producer(settings) as producer:
            for event in last:
                producer.send(event)
        await_groups(settings, [worker.process], OPEN)
        worker.kill()
    rows, from_start, reading = (statistics.median(values) for values in zip(*taken, strict=True))
    yield line(
        "restart", f"{OPEN} open groups back after kill -9, loop", ours=from_start, peer=AIM_S, unit="s",
        ratio=AIM_S / from_start, target=1.0, peer_is="the target", rows=int(rows), reading_s=reading,
    )  # fmt: skip


def _opened(settings: Settings) -> Iterator[Event]:
    """Write the groups without their last rewards, and yield those."""
    with Producer(settings) as producer:
        for number in range(OPEN):
            group = whole(f"restart {number}")
            for event in (group.task, *group.responses, *group.rewards[:-1]):
                producer.send(event)
            yield group.rewards[-1]


def _committed(settings: Settings) -> int:
    names = {topics(settings.topics)[label].name for label in KEYED_BY_TASK}
    return sum(at.committed for at in offsets.positions(settings) if at.topic in names)


class _Started:
    """A worker with the join, and what it says."""

    def __init__(self, settings: Settings, words: Path) -> None:
        self._words, self._began = words, time.monotonic()
        with words.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "streams.cli", "streams"],
                cwd=REPO,
                env={**os.environ, **to_env(settings)},
                stdout=file,
                stderr=file,
            )

    def back(self) -> tuple[int, float, float]:
        """Return how many rows it has read again, once it has, after how many seconds, and how many it read for."""
        self.wait_for(lambda: BACK.search(self._words.read_text()) is not None)
        took_s = time.monotonic() - self._began
        found = BACK.search(self._words.read_text())
        assert found is not None, "it was there a moment ago"
        return int(found[1]), took_s, float(found[2])

    def wait_for(self, condition: Any) -> None:
        """Return once something is so. Raises RuntimeError if the worker has ended, or after LIMIT_S."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a worker does not come to it, and says: {self._words.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
