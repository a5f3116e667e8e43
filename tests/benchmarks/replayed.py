"""One replay without training, in a process of its own, to be run as one.

    settings, name ──► replay.run ──► one JSON line: groups, seconds of the join, peak memory in MiB

The join is everything from the last copied record to the last group that is acknowledged. The peak is of the whole run,
copying and cutting included: resident memory of this process and of those that join beside it, added up every TICK_S.

Not covered: a peak between two looks; and pages that these processes share, which count once for each.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from streams.settings.load import load
from streams.tools.replay import run_replay as replay
from streams.tools.replay.run_replay import ReplayRequest
from streams.tools.replay.selection import Selection

TICK_S = 0.1


class Peak(threading.Thread):
    """Looks at memory until it is told that the work is over."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mib, self.over = _resident_mib(), threading.Event()

    def run(self) -> None:
        """Look."""
        while not self.over.wait(TICK_S):
            self.mib = max(self.mib, _resident_mib())


def _resident_mib() -> int:
    found = 0
    this = psutil.Process()
    for one in (this, *this.children(recursive=True)):
        try:
            found += one.memory_info().rss
        except psutil.Error:
            continue  # it has just ended
    return found // 2**20


def main(name: str) -> None:
    """Replay everything of policy `bench` into the experiment `name`."""
    marks: dict[str, float] = {}

    def told(stage: str, done: int, of: int | None) -> None:
        marks[stage] = time.perf_counter()

    conf, peak = load(), Peak()
    before = peak.mib
    peak.start()
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
        asked = ReplayRequest(name=name, selection=Selection(policy="bench"), folder=Path(folder), train=False)
        result = replay.run(conf, asked, stop=threading.Event(), report=told)
    peak.over.set()
    found = {
        "groups": result.counts["groups"],
        "join_s": marks["writing groups"] - marks["copying group-control"],
        "started_mib": before,
        "peak_mib": peak.mib,
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
