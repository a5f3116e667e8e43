"""Whole groups joined per second: live Faust worker and batch driver, against a plain consume of the same bytes.

A backlog of groups of 17 events lies in the log. Live: what the worker writes to `groups` in a window that begins with
its first group. Batch: `streams.drive.join` over the whole log, and every group encoded, as a replay would write it.
The peer reads the same records with confluent-kafka and looks at none. By turns; between its windows the worker is
stopped, and goes on where it stood.

Not covered: several workers. Live and batch run on one core each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck

from schemas.events import AdvantagedGroup
from schemas.serde import encode
from streams import cluster, drive
from streams.log import client_config
from streams.settings import Settings
from streams.topics import KEYED_BY_TASK
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import line, say
from tests.benchmarks.whole_groups import EVENTS, preload

GROUPS = 2500
ROUNDS = 3
WINDOW_S = 6.0
TIMES_LIVE = 15.0


def run() -> Iterator[dict[str, Any]]:
    """Yield two lines, in groups a second: the live join and the batch join, each with the plain consume as peer."""
    say("join: a live worker, the batch driver and a plain consume, by turns")
    rates: dict[str, list[float]] = {"live": [], "batch": [], "plain": []}
    with node() as settings:
        preload(settings, GROUPS)
        for turn in range(ROUNDS):
            rates["live"].append(_live(settings))
            rates["batch"].append(_batch(settings))
            rates["plain"].append(_plain(settings))
            say(f"  round {turn + 1}: " + ", ".join(f"{name} {rate[-1]:.0f}" for name, rate in rates.items()))
    live, batch, plain = (statistics.median(rates[name]) for name in ("live", "batch", "plain"))
    shared: dict[str, Any] = {"unit": "groups/s", "events_per_group": EVENTS}
    consume = "confluent-kafka consume of the same bytes"
    yield line("join", "live, Faust", ours=live, peer=plain, ratio=live / plain, peer_is=consume, **shared)
    yield line("join", "batch driver", ours=batch, peer=plain, ratio=batch / plain, peer_is=consume, **shared)
    against = {"target": TIMES_LIVE, "peer_is": "the live join", **shared}
    yield line("join", "batch driver against live", ours=batch, peer=live, ratio=batch / live, **against)


def _live(settings: Settings) -> float:
    """Return the groups a second that a worker writes, from its first group of this window on."""
    before = _written(settings)
    with process("tests.benchmarks.live_join", settings=settings) as worker:
        deadline = time.monotonic() + 60
        while (first := _written(settings)) == before:
            if worker.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the live worker wrote no group; {before} were there")
            time.sleep(0.02)
        begun = time.perf_counter()
        while (passed := time.perf_counter() - begun) < WINDOW_S and (now := _written(settings)) < GROUPS:
            time.sleep(0.2)
        return (now - first) / passed


def _written(settings: Settings) -> int:
    return sum(high for _, high in cluster.offsets(settings, ["groups"]).values())


def _batch(settings: Settings) -> float:
    begun = time.perf_counter()
    groups = sum(1 for made in drive.join(settings) if isinstance(made, AdvantagedGroup) and encode(made))
    passed = time.perf_counter() - begun
    if groups != GROUPS:
        raise RuntimeError(f"the batch driver made {groups} groups of {GROUPS}")
    return groups / passed


def _plain(settings: Settings) -> float:
    bounds = cluster.offsets(settings, KEYED_BY_TASK)
    begun = time.perf_counter()
    consumer = ck.Consumer({**client_config(settings.kafka), "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([ck.TopicPartition(topic, partition, low) for (topic, partition), (low, _) in bounds.items()])
    left = sum(high - low for low, high in bounds.values())
    while left:
        left -= sum(1 for message in consumer.consume(1000, 1.0) if message.value() is not None)
    passed = time.perf_counter() - begun
    consumer.close()
    return GROUPS / passed
