"""A loop worker that says which partition numbers it reads, run as a process of its own.

settings, a file ──► "ready" ──► the file is there ──► LoopWorker with its stages ──► at each change a line:
                                                      when, name in the group, generation, partition numbers
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from streams.cli.runtime import until_stopped
from streams.kafka.topics import topics
from streams.settings.load import load
from streams.stages import batches
from streams.stages.advantages import loop as advantages
from streams.worker.batched.worker import LoopWorker


def main() -> int:
    """Run until SIGTERM, once it may join."""
    before: tuple[object, ...] = ()
    gate = Path(sys.argv[1])
    print("ready", flush=True)
    while not gate.exists():
        time.sleep(0.01)
    with until_stopped() as stop:
        worker = LoopWorker(load(), stop)
        advantages.register(worker)
        batches.register(worker)
        with worker:
            while not stop.is_set():
                worker.step()
                now = said(worker)
                if now != before:
                    before = now
                    print(json.dumps([time.monotonic(), *now]), flush=True)
    return 0


def said(worker: LoopWorker) -> tuple[str, int, list[int]]:
    """Return its name in the group, the generation, and the partition numbers that it reads."""
    name = worker._consumer._consumer.memberid()
    return name or "", worker.generation, sorted(worker.owned(topics(worker.settings.topics)["tasks"]))


if __name__ == "__main__":
    sys.exit(main())
