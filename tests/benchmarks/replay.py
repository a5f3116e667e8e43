"""Whole groups a replay joins per second, against the live Faust worker; and its memory as the log grows tenfold.

Rate: one backlog in the log; the live worker's rate is that of `join`, on topics of its own. A replay reads what it
copied, joins it under its own settings, notes the lag, and has every group acknowledged. By turns.

Memory: two logs, one ten times the other, in which what left is evicted by its control record as the live worker's
timer would have it. Each is replayed from selecting to cutting; what counts is the most that its processes had
together, their libraries included.

Not covered: scoring and training, which take as long as they take; and the page cache.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from schemas.events import GroupControl, Task, derive_id
from streams.kafka.producer import Producer
from streams.settings.load import to_env
from streams.settings.model import Settings
from tests.benchmarks import join
from tests.benchmarks.loop import REPO, node
from tests.benchmarks.side_by_side import line, say
from tests.benchmarks.whole_groups import EVENTS, preload, wave

GROUPS = 24_000
ROUNDS = 3
SMALL, TIMES = 3_000, 10
"""Groups; the smaller log is large enough for its partitions to be joined side by side, too."""
WAVE = 250
"""Groups that are open, and then remembered, at the same time."""
GROWTH = 1.5
"""Most that the peak may grow when the log grows tenfold."""


def run() -> Iterator[dict[str, Any]]:
    """Yield a line in groups a second, and one in MiB."""
    say("replay: its join and a live worker by turns, then its memory for a log and one ten times as long")
    with node() as settings:
        yield _rate(settings)
    with node() as settings:
        yield _memory(settings)


def _rate(settings: Settings) -> dict[str, Any]:
    preload(settings, GROUPS)
    live, ours = [], []
    for turn in range(ROUNDS):
        live.append(join.live_rate(join.renamed(settings, f"live-{turn}.")).wall)
        done = _replayed(settings, f"round-{turn}")
        ours.append(done["groups"] / done["join_s"])
        say(f"  round {turn + 1}: live {live[-1]:.0f}, replay {ours[-1]:.0f}")
    rate, peer = statistics.median(ours), statistics.median(live)
    return line(
        "replay",
        "join and write",
        ours=rate,
        peer=peer,
        unit="groups/s",
        ratio=rate / peer,
        peer_is="the live join",
        events_per_group=EVENTS,
    )


def _memory(settings: Settings) -> dict[str, Any]:
    grown = {}
    for groups in (SMALL, SMALL * TIMES):
        own = join.renamed(settings, f"bench-{groups}.")
        _evicting(own, groups)
        done = _replayed(own, "memory")
        if done["groups"] != groups:
            raise RuntimeError(f"the replay made {done['groups']} of {groups} groups")
        grown[groups] = done["peak_mib"]
        say(f"  {groups} groups: {done['started_mib']} MiB before, {done['peak_mib']} MiB at its peak")
    small, large = grown.values()
    return line(
        "replay",
        f"memory, {SMALL * TIMES} groups",
        ours=large,
        peer=small,
        unit="MiB",
        ratio=small / large,
        target=1 / GROWTH,
        peer_is=f"a replay of {SMALL} groups",
    )


def _evicting(settings: Settings, groups: int) -> None:
    """Write whole groups, wave after wave, and forget each wave two waves later, as the live worker's timer would."""
    say(f"  writing {groups} groups, {groups * (EVENTS + 1)} events")
    with Producer(settings) as producer:
        gone: list[list[str]] = []
        for first in range(0, groups, WAVE):
            events = list(wave(range(first, min(first + WAVE, groups))))
            for event in events:
                producer.send(event)
            gone.append([event.task_id for event in events if isinstance(event, Task)])
            for task_id in gone.pop(0) if len(gone) > 2 else ():
                producer.send(_evict(task_id))


def _evict(task_id: str) -> GroupControl:
    return GroupControl(
        control_id=derive_id(task_id, "evict"),
        task_id=task_id,
        created_at=int(time.time() * 1000),
        kind="evict",
        reason="remembered long enough",
    )


def _replayed(settings: Settings, name: str) -> dict[str, Any]:
    """Replay in a process of its own; return what it says."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("STREAMWARD_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.replayed", name],
        cwd=REPO,
        env={**env, **to_env(settings)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
