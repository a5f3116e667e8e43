"""Whole groups joined per second: live Faust worker and batch driver, against a plain consume of the same bytes.

A backlog of groups of 17 events lies in the log, as long as a replay may find it. Live: the events that the worker
commits in a window, 17 of them a group; groups themselves come late in a backlog, since rewards lie behind all else.
Batch: `streams.tools.replay.driver` over the whole log, and every group
encoded, as a replay would write it; in one process, and in one a core, their start included. The peer reads the same
records with confluent-kafka and looks at none. By turns; between its windows the worker is stopped, and goes on where
it stood.

Not covered: several workers. Faust runs on one core.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck

from schemas.serde import encode
from streams.kafka import admin
from streams.kafka.client import client_config
from streams.kafka.offsets import positions
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Settings
from streams.tools.replay import driver
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import line, say
from tests.benchmarks.whole_groups import EVENTS, preload

GROUPS = 24_000
ROUNDS = 3
WINDOW_S = 10.0
TIMES_LIVE = 15.0
PEER = {"group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 20}
"""As ours: by default a consumer whose queue was full once idles for a second."""


def run() -> Iterator[dict[str, Any]]:
    """Yield two lines, in groups a second: the live join and the batch join, each with the plain consume as peer."""
    say("join: a live worker, the batch driver in one process and in several, and a plain consume, by turns")
    rates: dict[str, list[float]] = {"live": [], "batch": [], "cores": [], "plain": []}
    with node() as settings:
        preload(settings, GROUPS)
        for turn in range(ROUNDS):
            rates["live"].append(live_rate(settings))
            rates["batch"].append(_batch(encode(made) for made in driver.join(settings)))
            rates["cores"].append(_batch(made.payload for made in driver.join_encoded(settings)))
            rates["plain"].append(_plain(settings))
            say(f"  round {turn + 1}: " + ", ".join(f"{name} {rate[-1]:.0f}" for name, rate in rates.items()))
    live, batch, cores, plain = (statistics.median(rate) for rate in rates.values())
    shared: dict[str, Any] = {"unit": "groups/s", "events_per_group": EVENTS}
    consume = "confluent-kafka consume of the same bytes"
    for case, ours in (("live, Faust", live), ("batch, one process", batch), ("batch, a process a core", cores)):
        yield line("join", case, ours=ours, peer=plain, ratio=ours / plain, peer_is=consume, **shared)
    against: dict[str, Any] = {"target": TIMES_LIVE, "peer_is": "the live join", **shared}
    for case, ours in (("batch, one process, against live", batch), ("batch, a process a core, against live", cores)):
        yield line("join", case, ours=ours, peer=live, ratio=ours / live, **against)


def live_rate(settings: Settings) -> float:
    """Return the groups a second that a worker is done with, from one of its commits to a later one."""
    with process("tests.benchmarks.live_join", settings=settings) as worker:
        first, begun = _next_commit(settings, worker)
        passed = 0.0
        while passed < WINDOW_S:
            now, at = _next_commit(settings, worker)
            passed = at - begun
        return (now - first) / EVENTS / passed


def _next_commit(settings: Settings, worker: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Return how many events are committed once it is more than now, and when that was. Raises RuntimeError."""
    before, deadline = _committed(settings), time.monotonic() + 60
    while (now := _committed(settings)) == before:
        if worker.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the live worker went no further than {before} events")
        time.sleep(0.02)
    return now, time.perf_counter()


def _committed(settings: Settings) -> int:
    names = {topics(settings.topics)[label].name for label in KEYED_BY_TASK}
    return sum(at.committed for at in positions(settings) if at.group == "streams" and at.topic in names)


def _batch(payloads: Iterator[bytes]) -> float:
    begun = time.perf_counter()
    groups = sum(1 for payload in payloads if payload)
    passed = time.perf_counter() - begun
    if groups != GROUPS:
        raise RuntimeError(f"the batch driver made {groups} records of {GROUPS} groups")
    return groups / passed


def _plain(settings: Settings) -> float:
    bounds = admin.offsets(settings, KEYED_BY_TASK)
    begun = time.perf_counter()
    consumer = ck.Consumer({**client_config(settings.kafka), **PEER})
    consumer.assign([ck.TopicPartition(topic, partition, low) for (topic, partition), (low, _) in bounds.items()])
    left = sum(high - low for low, high in bounds.values())
    while left:
        # no more than there are: `consume` waits out its time for a batch that cannot fill
        left -= sum(message.error() is None for message in consumer.consume(min(left, 1000), 1.0))
    passed = time.perf_counter() - begun
    consumer.close()
    return GROUPS / passed
