"""One replay of an archive without training, on an engine or none, in a process of its own, to be run as one.

settings, none|spark|ray, folder ──► replay.run ──► one JSON line: seconds, and those since the work began
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from streams.settings.load import load
from streams.tools.archive import history
from streams.tools.replay import run_replay as replay
from streams.tools.replay.run_replay import ReplayRequest
from streams.tools.replay.selection import Selection
from tests.plugins.distributed.replays import NAME

BEGINS = ("copying tasks", "copying and joining")
"""What a replay reports first."""


def main(on: Any, folder: str) -> None:
    """Replay everything of policy `bench`."""
    begun: list[float] = []

    def told(stage: str, done: int, of: int | None) -> None:
        if stage in BEGINS and not begun:
            begun.append(time.perf_counter())

    settings, mark = load(), time.perf_counter()
    asked = ReplayRequest(name=NAME, selection=Selection(policy="bench"), folder=Path(folder) / NAME, train=False)
    source = history.of(settings, "archive")
    stop = threading.Event()
    replay.run(settings, asked, source, stop=stop, report=told, on=None if on == "none" else on)
    end = time.perf_counter()
    print(json.dumps({"seconds": round(end - mark, 2), "work_s": round(end - begun[0], 2)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
