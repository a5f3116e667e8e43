"""Which test files begin first, so that all workers end at about the same time.

    seconds.json ──► the longest file first, the many short ones last ──► pytest-xdist: whoever is free takes the next

    python -m tests.schedule LOG    write seconds.json from what `make test ARGS=--durations=0` printed

A file is never split: its tests share fixtures. In the order of their names a file of four minutes may be the last to
begin, and one worker is busy when the others have nothing left to do.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("seconds.json")
SHORT_S = 5.0
"""A file that takes less is not listed: it fits in anywhere."""
LINE = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown)\s+([^\s:]+\.py)::")


def seconds() -> dict[str, float]:
    """Return how long each of the longer files took when that was last measured."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def measured(log: str) -> dict[str, float]:
    """Return the seconds of each file that is not short, the longest first, from the output of `--durations=0`."""
    total: Counter[str] = Counter()
    for match in filter(None, map(LINE.match, log.splitlines())):
        total[match[2]] += float(match[1])
    return {file: round(spent) for file, spent in total.most_common() if spent >= SHORT_S}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first. Tests of one file keep their order."""
    took = seconds()
    items.sort(key=lambda item: -took.get(item.nodeid.partition("::")[0], 0.0))


if __name__ == "__main__":
    found = measured(Path(sys.argv[1]).read_text(encoding="utf-8"))
    FILE.write_text(json.dumps(found, indent=4) + "\n", encoding="utf-8")
