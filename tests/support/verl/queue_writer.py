"""A program that fills a queue and clears some, until tests/plugins/verl/test_queue_kills.py kills it.

settings, queue, seed ──► open, say what was restored ──► put, clear … ──► a line for each
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from plugins.verl.queue_log import QueueLog
from plugins.verl.queue_opener import QueueOpener
from plugins.verl.sample_queue import FieldValue, SamplePut, SampleQueue
from streams.settings.load import load

BATCH = 8


def say(**line: Any) -> None:
    """Print a line that a kill does not tear."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def content_of(name: str) -> bytes:
    """Return the bytes of a sample's field, which its name decides: some need several records."""
    draw = random.Random(name)
    return draw.randbytes(draw.choice((10, 4096, 20_000)))


def main(queue_name: str, seed: int) -> None:
    """Write until killed."""
    settings, draw = load(), random.Random(seed)
    with QueueLog(settings) as log:
        opener = QueueOpener(settings, log, queue_name)
        restored = opener.open("a test")
        epoch = restored.event.epoch
        with SampleQueue(settings, queue_name, epoch) as queue:
            names = list(restored.samples)
            values = queue.get([("data", sample.fields["data"].places) for sample in restored.samples.values()])
            whole = [field.data == content_of(name) for name, field in zip(names, values, strict=True)]
            say(restored=names, whole=all(whole), counts=restored.event.counts, samples=restored.event.samples)
            for index in range(0, 1_000_000, BATCH):
                fresh = [f"{queue_name}/{epoch}.{number}" for number in range(index, index + BATCH)]
                say(putting=fresh)
                queue.put(
                    [SamplePut(name, "train", {"data": FieldValue("tensor", content_of(name))}) for name in fresh]
                )
                say(put=fresh)
                names += fresh
                gone = draw.sample(names, min(len(names), draw.randrange(BATCH)))
                say(clearing=gone)
                queue.clear([SamplePut(name, "train", {}) for name in gone])
                say(cleared=gone)
                names = [name for name in names if name not in gone]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
