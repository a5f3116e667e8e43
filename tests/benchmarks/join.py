"""Whole groups joined per second, by the length of their answers: the live drivers, other engines, the batch driver.

A group is 17 events: a task, eight responses of so many tokens, eight rewards. Live: workers that have just started and
are at the end of their topics are stopped (SIGSTOP) while a burst of groups is written, each stage after the one
before; the time is from when they continue until the last group is in the log. Two processes of the loop share the
partitions. Batch: `streams.tools.replay.driver` over a log of GROUPS, and every group encoded, as a replay would write
it; in one process, without Python's garbage collector as in a replay's, and in one a core, their start included. The
peer reads the same log with confluent-kafka and looks at nothing. By turns, and medians. `per_cpu_s` is the same per
second of CPU time of the process that joins, its client's threads included: what a core of its own would give. Last,
how long a trainer waits for the groups of a batch, fetched and decoded.

The loop has two more peers, joins by Kafka Streams and Quix Streams (`peers.py`), one process each, measured as it is.
Java is warmed up by some bursts more, of the fewest tokens: it compiles what runs often, and compiles it again.

Not covered: several Faust workers, and several processes or threads of a peer.
"""

from __future__ import annotations

import gc
import signal
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count, islice
from pathlib import Path
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
from tests.benchmarks.loop import await_groups, node, process
from tests.benchmarks.peers import Peer, PeerUnavailable, check, kafka_streams, quix_streams, running
from tests.benchmarks.side_by_side import line, say
from tests.benchmarks.whole_groups import COMPLETION_TOKENS, EVENTS, preload, wave
from tests.support.log.shared_node import SharedNode


class Rate(NamedTuple):
    """Groups a second."""

    wall: float
    cpu: float
    """Per second of CPU time of the process that joins; its children's is not in it."""
    broker_s: float = 0.0
    """CPU seconds of the broker for a group."""


class Against(NamedTuple):
    """Aims against a peer; None: none."""

    wall: float | None = None
    cpu: float | None = None


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
AGAINST = {"Kafka Streams": Against(cpu=0.5), "Quix Streams": Against(wall=1.0, cpu=1.0)}
"""What the loop should make, of what a peer makes."""
BATCH, BATCH_TOKENS, BATCH_LIMIT_S = 64, 256, 0.05
PLAIN = {"group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 20}
"""As ours: by default a consumer whose queue was full once idles for a second."""


def run() -> Iterator[dict[str, Any]]:
    """Yield lines in groups a second: each join against the plain consume, against its aim, and long against short."""
    say(f"join: {TOKENS} tokens a response; a live worker, peers, the batch driver, and a plain consume, by turns")
    measured: dict[str, dict[int, list[Rate]]] = defaultdict(lambda: defaultdict(list))
    with node() as settings, tempfile.TemporaryDirectory(prefix="streamward-bench-") as folder:
        peers, missing = _peers(settings, Path(folder))
        logs = {tokens: renamed(settings, f"log-{tokens}.") for tokens in TOKENS}
        for tokens, log in logs.items():
            preload(log, GROUPS, tokens)
        for turn in range(ROUNDS):
            for tokens, log in logs.items():
                for name, (kind, workers) in LIVE.items():
                    with _temporary_topics(settings, f"live-{kind}-{workers}-{tokens}-{turn}.") as own:
                        measured[name][tokens].append(live_rate(own, tokens, driver=kind, workers=workers))
                for number, peer in enumerate(tuple(peers)):
                    try:
                        with _temporary_topics(settings, f"peer-{number}-{tokens}-{turn}.") as own:
                            measured[peer.name][tokens].append(peer_rate(peer, own, tokens))
                    except RuntimeError as exc:
                        missing.append(_not_measured(exc))
                        peers.remove(peer)
                        measured.pop(peer.name, None)
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
    medians = {name: _medians(rates) for name, rates in measured.items()}
    for peer in peers:
        yield from _against(peer, medians["live, loop"], medians.pop(peer.name))
    yield from _lines(medians)
    against: dict[str, Any] = {"peer": BATCH_LIMIT_S, "ratio": BATCH_LIMIT_S / fetched, "peer_is": "the limit"}
    case = f"fetch of {BATCH} groups, {BATCH_TOKENS} tokens"
    yield line("join", case, ours=fetched, unit="s", target=1.0, **against)
    for why in missing:
        say(why)


def _peers(settings: Settings, folder: Path) -> tuple[list[Peer], list[str]]:
    """Return the peers that make the groups that ours makes, and why another is not measured."""
    ready, missing = [], []
    for number, make in enumerate((partial(kafka_streams, folder), partial(quix_streams, install=True))):
        try:
            peer = make()
            with _temporary_topics(settings, f"check-{number}.") as own:
                check(peer, own)
            ready.append(peer)
        except (PeerUnavailable, RuntimeError, OSError) as exc:
            missing.append(_not_measured(exc))
    return ready, missing


def _not_measured(exc: Exception) -> str:
    """Say why a peer is left out, and return it."""
    why = "\n".join([f"join: A PEER IS NOT MEASURED: {exc}", *getattr(exc, "__notes__", [])])
    say(why)
    return why


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


def _against(peer: Peer, ours: dict[int, Rate], theirs: dict[int, Rate]) -> Iterator[dict[str, Any]]:
    """Yield how the loop compares with a peer: per second of wall time, and of CPU time of the process that joins."""
    aims, peer_is = AGAINST[peer.name], f"{peer.name} {peer.version}, one process"
    for tokens in ours:
        case = f"live, loop, against {peer.name}, {tokens} tokens"
        own, other = ours[tokens], theirs[tokens]
        for what, unit, mine, peers, aim in (
            (case, "groups/s", own.wall, other.wall, aims.wall),
            (f"{case}, of CPU", "groups/CPU s", own.cpu, other.cpu, aims.cpu),
        ):
            compared: dict[str, Any] = {"ours": mine, "peer": peers, "ratio": mine / peers, "target": aim}
            yield line("join", what, unit=unit, peer_is=peer_is, events_per_group=EVENTS, **compared)


def _line(case: str, rate: Rate, *, peer: float, peer_is: str, target: float | None = None) -> dict[str, Any]:
    more = {"per_cpu_s": round(rate.cpu, 1), "events_per_group": EVENTS}
    compared: dict[str, Any] = {"peer": peer, "ratio": rate.wall / peer, "peer_is": peer_is, "target": target}
    return line("join", case, ours=rate.wall, unit="groups/s", **compared, **more)


def renamed(settings: Settings, prefix: str) -> Settings:
    """Return settings for topics of their own, empty and on the same broker."""
    own = settings.model_copy(update={"topics": settings.topics.model_copy(update={"prefix": prefix})})
    admin.apply_topics(own)
    return own


@contextmanager
def _temporary_topics(settings: Settings, prefix: str) -> Iterator[Settings]:
    """Return settings as `renamed`; afterwards the topics are deleted, as thousands of partitions slow the broker."""
    yield renamed(settings, prefix)
    SharedNode(settings.kafka.bootstrap).delete_topics(prefix)


def live_rate(settings: Settings, tokens: int = COMPLETION_TOKENS, *, driver: str = "faust", workers: int = 1) -> Rate:
    """Return the groups a second that workers make of a burst, in empty topics. Raises RuntimeError if one stops."""
    tree = settings.model_dump()
    tree["worker"]["driver"], tree["kafka"]["session_timeout_s"] = driver, SESSION_S
    settings = Settings.model_validate(tree)
    starting = [process("tests.benchmarks.live_join", settings=settings) for _ in range(workers)]
    return burst_rates(settings, [tokens], starting, groups=BURST[driver])[0]


def peer_rate(peer: Peer, settings: Settings, tokens: int) -> Rate:
    """Return the groups a second that a peer makes of the loop's burst when it is warm. Raises as `live_rate`."""
    bursts = [*[min(TOKENS)] * peer.warm_up, tokens]
    return burst_rates(settings, bursts, [running(peer, settings)], groups=BURST["loop"])[-1]


def burst_rates(
    settings: Settings,
    bursts: Sequence[int],
    starting: Sequence[AbstractContextManager[subprocess.Popen[bytes]]],
    *,
    groups: int,
) -> list[Rate]:
    """Return the groups a second that processes make of each of some bursts, given by the tokens of their responses.

    Raises RuntimeError if a process stops.
    """
    rates = []
    with ExitStack() as stack, Producer(settings) as producer:
        workers = [stack.enter_context(each) for each in starting]
        _written(producer, _records(settings, range(1), bursts[0]))
        await_groups(settings, workers, 1)  # by then they read
        time.sleep(SETTLED_S if len(workers) > 1 else 0)
        broker = [each for each in psutil.Process().children(recursive=True) if "kafka.Kafka" in each.cmdline()]
        for first, tokens in zip(count(1, groups), bursts, strict=False):
            burst = _records(settings, range(first, first + groups), tokens)
            for worker in workers:
                worker.send_signal(signal.SIGSTOP)
            _written(producer, burst)
            begun_cpu, begun_broker, begun = sum(map(cpu_of, workers)), sum(map(cpu_of, broker)), time.perf_counter()
            for worker in workers:
                worker.send_signal(signal.SIGCONT)
            await_groups(settings, workers, first + groups)
            passed, cpu_s = time.perf_counter() - begun, sum(map(cpu_of, workers)) - begun_cpu
            rates.append(Rate(groups / passed, groups / cpu_s, (sum(map(cpu_of, broker)) - begun_broker) / groups))
    return rates


def cpu_of(process: subprocess.Popen[bytes] | psutil.Process) -> float:
    """Return the CPU seconds that a process has taken."""
    times = psutil.Process(process.pid).cpu_times()
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
    consumer = ck.Consumer({**client_config(settings.kafka), **PLAIN})
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
