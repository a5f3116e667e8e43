"""What the log costs in time: from a response's produce to its group on `groups`, under a steady load.

50 responses a second, each followed at once by its reward, into `streamward streams`, by one driver and by the other;
measured for the response that makes its group whole, from the moment it is handed to the producer to the moment a
consumer has its group. The peer is a bare round trip through the same broker at the same time: each response's bytes,
produced to a topic of their own and consumed by the same consumer.

Not covered: sampling and scoring, which take what they take; brokers on other machines.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
from confluent_kafka import admin

from schemas.events import AdvantagedGroup, derive_id
from schemas.serde import decode, encode
from streams.kafka.client import client_config
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.settings.model import Settings
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import line, say
from tests.benchmarks.whole_groups import SLOTS, whole

RATE = 50.0
"""Responses a second."""
GROUPS = 160
WARM = 60
"""Groups that are not measured: the worker joins its group, and a broker that has just started takes longer."""
ECHO = "bench.echo"


AIMS_S = {50: 0.006, 99: 0.025}
"""At most so long, by percentile."""


def run() -> Iterator[dict[str, Any]]:
    """Yield two lines a driver, p50 and p99, in seconds; the ratio is the bare round trip to ours, and aims beside."""
    for driver in ("faust", "loop"):
        yield from _of_driver(driver)


def _of_driver(driver: str) -> Iterator[dict[str, Any]]:
    say(f"overhead: {RATE:g} responses/s for {GROUPS * SLOTS / RATE:.0f} s, one live worker, {driver}")
    with node() as settings:
        client = admin.AdminClient(client_config(settings.kafka))
        client.create_topics([admin.NewTopic(ECHO, 1, 1)])[ECHO].result()
        with process("streams.cli", "streams", "--driver", driver, settings=settings):
            ours, peer = _measure(settings)
    for percent in (50, 99):
        mine, bare = (statistics.quantiles(values, n=100)[percent - 1] for values in (ours, peer))
        yield line(
            "overhead",
            f"p{percent}, response to group, {RATE:g} responses/s, {driver}",
            ours=mine,
            peer=bare,
            unit="s",
            ratio=bare / mine,
            peer_is="bare produce and consume, same broker",
            groups=len(ours),
            round_trips=len(peer),
            aim_s=AIMS_S[percent],
        )


def _measure(settings: Settings) -> tuple[list[float], list[float]]:
    """Return the seconds to each group, and of each bare round trip."""
    watch = _Watch(settings)
    reader = threading.Thread(target=watch.read)
    reader.start()
    try:
        with Producer(settings, linger_ms=0) as producer:
            _send(producer, watch, range(WARM), paced=False)
            watch.wait_for(WARM)
            _send(producer, watch, range(WARM, WARM + GROUPS), paced=True)
        watch.wait_for(WARM + GROUPS)
    finally:
        watch.stop.set()
        reader.join()
    measured = {derive_id("bench", f"overhead {number}") for number in range(WARM, WARM + GROUPS)}
    ours = [watch.groups[task] - watch.sent[task] for task in measured]
    return ours, [back - watch.sent[probe] for probe, back in watch.echoes.items()]


def _send(producer: Producer, watch: _Watch, numbers: range, *, paced: bool) -> None:
    due = time.monotonic()
    for number in numbers:
        group = whole(f"overhead {number}")
        producer.send(group.task)
        for response, reward in zip(group.responses, group.rewards, strict=True):
            if paced:
                due += 1 / RATE
                time.sleep(max(0.0, due - time.monotonic()))
                probe = response.response_id
                watch.sent[probe] = time.monotonic()
                producer.send_bytes(ECHO, probe.encode(), encode(response))
            watch.sent[group.task.task_id] = time.monotonic()  # of the last response, in the end
            producer.send(response)
            producer.send(reward)


class _Watch:
    """Notes when each group and each echo came, in seconds of the monotonic clock."""

    def __init__(self, settings: Settings) -> None:
        self.sent: dict[str, float] = {}
        self.groups: dict[str, float] = {}
        self.echoes: dict[str, float] = {}
        self.stop = threading.Event()
        topic = topics(settings.topics)["groups"]
        self._consumer = ck.Consumer(
            {**client_config(settings.kafka), "group.id": "bench", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
        )
        places = [(topic.name, partition) for partition in range(topic.partitions)]
        self._consumer.assign([ck.TopicPartition(*place, 0) for place in [*places, (ECHO, 0)]])

    def read(self) -> None:
        """Read until told to stop."""
        while not self.stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            now = time.monotonic()
            if message.topic() == ECHO:
                self.echoes[message.key().decode()] = now
            else:
                group = decode(message.value(), AdvantagedGroup)
                assert isinstance(group, AdvantagedGroup), group
                self.groups.setdefault(group.task_id, now)
        self._consumer.close()

    def wait_for(self, groups: int) -> None:
        """Return when that many groups came. Raises TimeoutError after a minute."""
        deadline = time.monotonic() + 60
        while len(self.groups) < groups:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.groups)} groups came of {groups}")
            time.sleep(0.02)
