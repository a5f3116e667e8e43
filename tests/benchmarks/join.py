"""Whole groups joined per second, by the length of their answers: the live drivers, the batch driver, a plain consume.

A group is 17 events: a task, eight responses of so many tokens, eight rewards. Live: workers that have just started and
are at the end of their topics are stopped (SIGSTOP) while a burst of groups is written, each stage after the one
before; the time is from when they continue until the last group is in the log. Two processes of the loop share the
partitions. Batch: `streams.tools.replay.driver` over a log of GROUPS, and every
group encoded, as a replay would write it; in one process, without Python's garbage collector as in a replay's, and in
one a core, their start included. The peer reads the same log with confluent-kafka and looks at nothing. By turns, and
medians. `per_cpu_s` is the same per second of CPU time of the process that joins, its client's threads included: what a
core of its own would give. Last, how long a trainer waits for the groups of a batch, fetched and decoded.

Not covered: several Faust workers.
"""

from __future__ import annotations

import gc
import signal
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any, NamedTuple

import confluent_kafka as ck
import psutil

from schemas.events import AdvantagedGroup, Coordinates
from streams.kafka import admin
from streams.kafka.client import client_config
from streams.kafka.producer import Producer
from streams.kafka.reader import fetch
from streams.kafka.record import encoded
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Settings
from streams.tools.replay import driver
from tests.benchmarks.loop import node, process
from tests.benchmarks.side_by_side import line, say
from tests.benchmarks.whole_groups import COMPLETION_TOKENS, EVENTS, preload, wave

TOKENS = (32, 256, 1024)
GROUPS = 3000
BURST = {"faust": 500, "loop": 3000}
"""Groups, by driver: some seconds of work."""
LIVE = {"live, Faust": ("faust", 1), "live, loop": ("loop", 1), "live, loop, two processes": ("loop", 2)}
"""Driver and number of workers of each live case."""
SETTLED_S = 3.0
"""For the group to distribute its partitions among workers that have just come."""
SESSION_S = 60.0
"""Of the workers, as they are stopped for some seconds."""
ROUNDS = 3
AIMS = {"live, Faust": 150.0, "live, loop": 1000.0, "batch, one process": 2000.0}
"""Groups a second at the fewest tokens; for the loop, per second of CPU time: a core of its own."""
OF_CORE = ("live, loop",)
TWICE = 1.8
"""Two processes, against one: per second of wall time, where there are cores for both and the broker."""
OF_SHORT = 0.7
"""With the most tokens, at least this part of the rate with the fewest."""
LIMIT_S = 300.0
BATCH, BATCH_TOKENS, BATCH_LIMIT_S = 64, 256, 0.05
PEER = {"group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 20}
"""As ours: by default a consumer whose queue was full once idles for a second."""


def run() -> Iterator[dict[str, Any]]:
    """Yield lines in groups a second: each join against the plain consume, against its aim, and long against short."""
    say(f"join: {TOKENS} tokens a response; a live worker, the batch driver, and a plain consume, by turns")
    measured: dict[str, dict[int, list[Rate]]] = defaultdict(lambda: defaultdict(list))
    with node() as settings:
        logs = {tokens: renamed(settings, f"log-{tokens}.") for tokens in TOKENS}
        for tokens, log in logs.items():
            preload(log, GROUPS, tokens)
        for turn in range(ROUNDS):
            for tokens, log in logs.items():
                for name, (driver, workers) in LIVE.items():
                    burst = renamed(settings, f"live-{driver}-{workers}-{tokens}-{turn}.")
                    measured[name][tokens].append(live_rate(burst, tokens, driver=driver, workers=workers))
                measured["batch, one process"][tokens].append(
                    _batch(made.payload for made in driver.join_encoded(log, processes=1))
                )
                measured["batch, a process a core"][tokens].append(
                    _batch(made.payload for made in driver.join_encoded(log))
                )
                measured["plain"][tokens].append(_plain(log))
                rates = (
                    f"{name} {each[tokens][-1].wall:.0f} ({each[tokens][-1].cpu:.0f})"
                    for name, each in measured.items()
                )
                say(f"  round {turn + 1}, {tokens} tokens: " + ", ".join(rates))
        fetched = _fetch_s(logs[BATCH_TOKENS])
    yield from _lines({name: _medians(rates) for name, rates in measured.items()})
    against: dict[str, Any] = {"peer": BATCH_LIMIT_S, "ratio": BATCH_LIMIT_S / fetched, "peer_is": "the limit"}
    case = f"fetch of {BATCH} groups, {BATCH_TOKENS} tokens"
    yield line("join", case, ours=fetched, unit="s", target=1.0, **against)


class Rate(NamedTuple):
    """Groups a second."""

    wall: float
    cpu: float
    """Per second of CPU time of the process that joins; its children's is not in it."""


def _medians(rates: dict[int, list[Rate]]) -> dict[int, Rate]:
    return {tokens: Rate(*map(statistics.median, zip(*each, strict=True))) for tokens, each in rates.items()}


def _lines(rates: dict[str, dict[int, Rate]]) -> Iterator[dict[str, Any]]:
    plain, short, long = rates.pop("plain"), min(TOKENS), max(TOKENS)
    for name, ours in rates.items():
        for tokens, rate in ours.items():
            peer_is = "confluent-kafka consume of the same bytes"
            yield _line(f"{name}, {tokens} tokens", rate, peer=plain[tokens].wall, peer_is=peer_is)
        if name in AIMS:
            each = {tokens: Rate(rate.cpu, rate.cpu) if name in OF_CORE else rate for tokens, rate in ours.items()}
            yield _line(f"{name}, aim", each[short], peer=AIMS[name], peer_is="the aim", target=1.0)
            yield _line(f"{name}, long", each[long], peer=each[short].wall, peer_is=f"{short} tokens", target=OF_SHORT)
    one, two = rates["live, loop"][short], rates["live, loop, two processes"][short]
    yield _line("live, loop, two against one", two, peer=one.wall, peer_is="one process", target=TWICE)


def _line(case: str, rate: Rate, *, peer: float, peer_is: str, target: float | None = None) -> dict[str, Any]:
    more = {"per_cpu_s": round(rate.cpu, 1), "events_per_group": EVENTS}
    compared: dict[str, Any] = {"peer": peer, "ratio": rate.wall / peer, "peer_is": peer_is, "target": target}
    return line("join", case, ours=rate.wall, unit="groups/s", **compared, **more)


def renamed(settings: Settings, prefix: str) -> Settings:
    """Return settings for topics of their own, empty and on the same broker."""
    own = settings.model_copy(update={"topics": settings.topics.model_copy(update={"prefix": prefix})})
    admin.apply_topics(own)
    return own


def live_rate(settings: Settings, tokens: int = COMPLETION_TOKENS, *, driver: str = "faust", workers: int = 1) -> Rate:
    """Return the groups a second that workers make of a burst, in empty topics. Raises RuntimeError if one stops."""
    tree = settings.model_dump()
    tree["worker"]["driver"], tree["kafka"]["session_timeout_s"] = driver, SESSION_S
    settings, groups = Settings.model_validate(tree), BURST[driver]
    first, *burst = (_records(settings, numbers, tokens) for numbers in (range(1), range(1, groups + 1)))
    with ExitStack() as stack, Producer(settings) as producer:
        running = [
            stack.enter_context(process("tests.benchmarks.live_join", settings=settings)) for _ in range(workers)
        ]
        _written(producer, first)
        _wait(settings, running, 1)  # by then they read
        time.sleep(SETTLED_S if workers > 1 else 0)
        for worker in running:
            worker.send_signal(signal.SIGSTOP)
        _written(producer, *burst)
        begun_cpu = sum(map(_cpu_of, running))
        begun = time.perf_counter()
        for worker in running:
            worker.send_signal(signal.SIGCONT)
        _wait(settings, running, 1 + groups)
        return Rate(groups / (time.perf_counter() - begun), groups / (sum(map(_cpu_of, running)) - begun_cpu))


def _cpu_of(worker: subprocess.Popen[bytes]) -> float:
    times = psutil.Process(worker.pid).cpu_times()
    return times.user + times.system


def _records(settings: Settings, numbers: Iterable[int], tokens: int) -> list[tuple[str, bytes | None, bytes]]:
    by_event = {topic.event: topic for topic in topics(settings.topics).values()}
    return [
        (topic.name, *encoded(event, topic)) for event in wave(numbers, tokens) for topic in [by_event[type(event)]]
    ]


def _written(producer: Producer, records: list[tuple[str, bytes | None, bytes]]) -> None:
    for record in records:
        producer.send_bytes(*record)
    producer.flush()


def _wait(settings: Settings, workers: list[subprocess.Popen[bytes]], groups: int) -> None:
    """Return once so many groups are in the log."""
    deadline = time.monotonic() + LIMIT_S
    while (made := sum(end for _, end in admin.offsets(settings, ["groups"]).values())) < groups:
        if any(worker.poll() is not None for worker in workers) or time.monotonic() > deadline:
            raise RuntimeError(f"the live workers made {made} of {groups} groups")
        time.sleep(0.02)


def _batch(payloads: Iterator[bytes]) -> Rate:
    gc.collect()
    gc.disable()
    begun, begun_cpu = time.perf_counter(), time.process_time()
    groups = sum(1 for payload in payloads if payload)
    passed, cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
    gc.enable()
    if groups != GROUPS:
        raise RuntimeError(f"the batch driver made {groups} records of {GROUPS} groups")
    return Rate(groups / passed, groups / cpu_s)


def _plain(settings: Settings) -> Rate:
    bounds = admin.offsets(settings, KEYED_BY_TASK)
    begun, begun_cpu = time.perf_counter(), time.process_time()
    consumer = ck.Consumer({**client_config(settings.kafka), **PEER})
    consumer.assign([ck.TopicPartition(topic, partition, low) for (topic, partition), (low, _) in bounds.items()])
    left = sum(high - low for low, high in bounds.values())
    while left:
        # no more than there are: `consume` waits out its time for a batch that cannot fill
        left -= sum(message.error() is None for message in consumer.consume(min(left, 1000), 1.0))
    passed, cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
    consumer.close()
    return Rate(GROUPS / passed, GROUPS / cpu_s)


def _fetch_s(settings: Settings) -> float:
    """Return the seconds, median of several times, until the groups of a batch are fetched and decoded."""
    name = topics(settings.topics)["groups"].name
    with Producer(settings) as producer:
        for made in islice(driver.join(settings), BATCH):
            producer.send(made)
    (partition,) = {tp[1] for tp, (_, end) in admin.offsets(settings, ["groups"]).items() if end}
    wanted, measured = [Coordinates(name, partition, offset) for offset in range(BATCH)], []
    for _ in range(2 * ROUNDS + 1):
        begun = time.perf_counter()
        groups = [record.decode(AdvantagedGroup) for record in fetch(settings, wanted).values()]
        measured.append(time.perf_counter() - begun)
        assert {type(group) for group in groups} == {AdvantagedGroup}
    return statistics.median(measured)
