"""Whether stream workers of the loop, 1, 2 and 4 on one broker, need the same CPU time for a record; the batch stage's.

The burst of `join` at the fewest tokens, by turns. On a machine with fewer cores than workers and broker need, wall
time says where the cores end; CPU time for a record says whether a worker with a core of its own would do as much
beside others as alone. `broker_us` in a line is the broker's CPU time for a record; in earnest it has its own machine.

The batch stage is measured alone: groups of one policy, which are in one partition, and so one worker's.

Not covered: workers on several machines, and brokers.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Settings
from streams.tools.replay import driver
from tests.benchmarks.join import TOKENS, TWICE, Rate, _temporary_topics, cpu_of, live_rate
from tests.benchmarks.loop import LIMIT_S, node, process
from tests.benchmarks.side_by_side import line, say
from tests.benchmarks.whole_groups import EVENTS, preload

WORKERS = (1, 2, 4)
ROUNDS = 3
IDLE_LIMIT = 5.0
AS_ALONE = 0.9
"""The least part of what a worker does alone for a second of CPU time that it should do beside others."""
SETTLED_S, IDLE_S = 5.0, 20.0
"""For a worker to have begun; how long one with nothing to do is looked at."""
GROUPS = 4000
"""That the batch stage cuts."""


def run() -> Iterator[dict[str, Any]]:
    """Yield lines in CPU microseconds a record and groups a second."""
    tokens = min(TOKENS)
    measured: dict[int, list[Rate]] = defaultdict(list)
    with node() as settings:
        for turn in range(ROUNDS):
            for workers in WORKERS:
                with _temporary_topics(settings, f"workers-{workers}-{turn}.") as own:
                    measured[workers].append(live_rate(own, tokens, driver="loop", workers=workers))
                    say(f"  round {turn + 1}, {workers} workers: {measured[workers][-1]}")
        idle = _idle(settings)
        batches_s = _batches_s(settings)
    rates = {workers: Rate(*map(statistics.median, zip(*each, strict=True))) for workers, each in measured.items()}
    alone = _record_us(rates[1])
    for workers, rate in rates.items():
        ours = _record_us(rate)
        yield line(
            "workers", f"join, {workers} workers, CPU", ours=ours, peer=alone, unit="µs/record", ratio=alone / ours,
            peer_is="one worker", target=AS_ALONE, broker_us=round(1e6 * rate.broker_s / EVENTS, 1),
        )  # fmt: skip
    for workers in WORKERS[1:]:
        half = rates[workers // 2].wall
        yield line(
            "workers", f"join, {workers} workers, wall", ours=rates[workers].wall, peer=half, unit="groups/s",
            ratio=rates[workers].wall / half, peer_is="half as many", target=TWICE,
        )  # fmt: skip
    yield line(
        "workers", "a worker with nothing to do, CPU", ours=100 * idle, peer=IDLE_LIMIT, unit="% of a core",
        ratio=IDLE_LIMIT / (100 * idle), target=1.0, peer_is="the limit",
    )  # fmt: skip
    group_us = 1e6 / rates[1].cpu
    yield line(
        "workers", "batches, CPU", ours=1e6 * batches_s, peer=group_us, unit="µs/group",
        ratio=group_us / (1e6 * batches_s), peer_is="the join of that group",
    )  # fmt: skip


def _idle(settings: Settings) -> float:
    """Return the CPU seconds a second of a worker with nothing to do."""
    tree = settings.model_dump()
    tree["worker"]["driver"] = "loop"
    settings = Settings.model_validate(tree)
    with _temporary_topics(settings, "idle.") as own, process("tests.benchmarks.live_join", settings=own) as worker:
        time.sleep(SETTLED_S)
        begun, begun_at = cpu_of(worker), time.monotonic()
        time.sleep(IDLE_S)
        return (cpu_of(worker) - begun) / (time.monotonic() - begun_at)


def _record_us(rate: Rate) -> float:
    return 1e6 / rate.cpu / EVENTS


def _batches_s(settings: Settings) -> float:
    """Return the CPU seconds of the batch stage for a group, median of some rounds. Raises RuntimeError if it stops."""
    tree = settings.model_dump()
    tree["worker"]["driver"], tree["batches"]["max_policy_lag"] = "loop", 1_000_000
    tree["kafka"]["session_timeout_s"] = 60.0
    settings = Settings.model_validate(tree)
    taken = []
    for turn in range(ROUNDS):
        with _temporary_topics(settings, f"batches-{turn}.") as own:
            preload(own, GROUPS, min(TOKENS))
            with process("tests.benchmarks.live_join", "batches", settings=own) as worker:
                with Producer(own) as producer:
                    made = driver.join(own)
                    producer.send(next(made))
                    rest = list(made)
                _await(own, "groups", 1, worker)
                time.sleep(SETTLED_S)  # by then it reads
                worker.send_signal(signal.SIGSTOP)
                with Producer(own) as producer:
                    for group in rest:
                        producer.send(group)
                begun = cpu_of(worker)
                worker.send_signal(signal.SIGCONT)
                _await(own, "batches", GROUPS // settings.batches.groups, worker)
                taken.append((cpu_of(worker) - begun) / len(rest))
                say(f"  round {turn + 1}, batches: {1e6 * taken[-1]:.0f} µs a group")
    return statistics.median(taken)


def _await(settings: Settings, label: str, count: int, worker: Any) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (made := sum(end for _, end in admin.offsets(settings, [label]).values())) < count:
        if worker.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{made} of {count} records came to {label}")
        time.sleep(0.02)
