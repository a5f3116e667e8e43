"""The page over a long archive: what it shows of the whole log, of its groups, of one task, and of a policy.

    python -m tests.benchmarks page                       STREAMWARD_BENCH_RESPONSES=1000000 for a long archive

    a finished run, archived ──► streamward page --source archive, a process of its own ──► HTTP ──► seconds
                            first: a process that nobody has asked before       warm: one that has read the archive

Each task is asked for once only, so that nothing of it can have been kept. The overview is read once a look at the log,
so its first request is what it costs. A million responses are of 10,000 versions
in five scenarios; of each curve 2,000 points are sent at most. Fewer responses are of fewer versions.

Not covered: a cold disk (the files are in the page cache), records that are not archived yet, and the browser; and a
group whose advantages are all 0, for which the rewards of its whole scenario are read besides.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from plugins.page.settings import Page
from streams.processes.child import free_port
from streams.settings.model import Archive, Settings
from streams.tools.archive import sync
from tests.benchmarks.long_log import LongLog
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import line, say
from tests.benchmarks.whole_groups import SLOTS
from tests.support.processes import until

RESPONSES = int(os.environ.get("STREAMWARD_BENCH_RESPONSES", "40000"))
FULL = 1_000_000
"""Responses from which on the targets are meant."""
LIMIT_S = 1.0
"""For each answer, at a million responses on two cores."""
STEP_GROUPS = 11
"""Train groups of a version: as few as have one of each scenario among them, so that there are many versions."""
PROCESSES, ROUNDS = 3, 7
PATHS = {
    "the overview": "/",
    "the list of groups": "/groups",
    "the groups that taught nothing": "/groups?fate=nothing",
    "the groups with a text in question or answer": "/groups?text=17+%2B+17",
    "the groups of long answers": "/groups?tokens_from=10",
    "the newest records": "/live",
    "the list of runs": "/runs",
    "the runs that no verdict is about": "/runs?verdict=none&scenario=scenario-3",
    "a task's answers": "/tasks/{}",
    "an answer's tokens": "/tokens/0/7",
    "learning curves as JSON": "/curves?policy=demo",
    "the page of their policy": "/policies/demo",
    "the curves of their policy": "/policies/demo?curves=now",
}


def run() -> Iterator[dict[str, Any]]:
    """Yield two lines for each path: its first request, and once warm; in seconds."""
    with tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder, node() as settings:
        here = settings.model_copy(update={"archive": Archive(store=folder), "page": Page(port=free_port())})
        say(f"page: {RESPONSES} responses are written and archived")
        LongLog(here, batch_groups=STEP_GROUPS, versions=RESPONSES).write(RESPONSES // SLOTS)
        sync.sync(here)
        yield from measured(here)


def measured(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the lines for an archive that is there."""
    tasks = itertools.cycle(range(1, RESPONSES // SLOTS, max(1, RESPONSES // SLOTS // 97)))
    seconds: dict[tuple[str, str], list[float]] = {}
    points = 0
    for number, (name, path) in itertools.product(range(PROCESSES), PATHS.items()):
        with _served(settings) as browser:
            for turn in range(1 + ROUNDS):
                took_s, answer = _got(browser, path.format(f"task-{next(tasks)}"))
                seconds.setdefault((name, "once warm" if turn else "the first request"), []).append(took_s)
                say(f"  {name}, process {number + 1}, request {turn + 1}: {took_s:.3g} s, {len(answer)} bytes")
        if path.startswith("/curves"):
            charts = json.loads(answer).values()
            points = sum(value is not None for one in charts for curve in one["curves"] for value in curve["mean"])
    for (name, which), each in seconds.items():
        ours = statistics.median(each)
        yield line(
            "page", f"{name}, {which} ({RESPONSES} responses)", ours=ours, peer=LIMIT_S, unit="s",
            ratio=LIMIT_S / ours, target=1.0 if RESPONSES >= FULL else None,
            peer_is=f"the limit for {FULL} responses, 2 cores", slowest_s=round(max(each), 4), points=points,
        )  # fmt: skip


@contextmanager
def _served(settings: Settings) -> Iterator[http.client.HTTPConnection]:
    """Yield a connection to a page that nobody has asked for anything of the log."""
    with process("streams.cli", "page", "--source", "archive", settings=settings):
        browser = http.client.HTTPConnection("127.0.0.1", settings.of_plugin(Page).port, timeout=300)
        try:
            until(lambda: _answers(browser), "the page to answer")
            yield browser
        finally:
            browser.close()


def _got(browser: http.client.HTTPConnection, path: str) -> tuple[float, bytes]:
    """Return after how many seconds the whole of an answer was there, and the answer."""
    mark = time.perf_counter()
    browser.request("GET", path)
    response = browser.getresponse()
    answer = response.read()
    took_s = time.perf_counter() - mark
    if response.status != 200:
        raise ValueError(f"{path}: {response.status}: {answer.decode()[-500:]}")
    return took_s, answer


def _answers(browser: http.client.HTTPConnection) -> bool:
    try:
        return bool(_got(browser, "/static/page.css")[1])
    except OSError:
        browser.close()
        return False
