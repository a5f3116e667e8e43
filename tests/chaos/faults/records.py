"""Faults 8 to 10: records that are bad, doubled or early, and clocks that are wrong.

Not covered: valid bytes that say something else under the same id. The first wins, and the other is a dead letter
(tests/unit/test_join_order.py).
"""

from __future__ import annotations

import itertools
import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import confluent_kafka as ck

from schemas import serde
from schemas.events import Reward, derive_id
from schemas.serde import Poison
from streams.kafka import admin
from streams.kafka.client import client_config
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader
from streams.kafka.record import Record
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Settings
from tests.benchmarks.whole_groups import whole
from tests.chaos import clocks
from tests.chaos.load import Load, person
from tests.chaos.matrix import fault
from tests.chaos.world import World

AGAIN = "chaos-again"
"""Header of a record that was sent again."""
SILENT_S = 30.0
"""Without a record for so long, no more will come."""

# --- bad records ------------------------------------------------------------------------------------------------------

POISON: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "no value": lambda payload, draw: None,
    "empty": lambda payload, draw: b"",
    "not Avro": lambda payload, draw: b'{"task_id": 1}',
    "unknown schema": lambda payload, draw: struct.pack(">bI", 0, 4242) + payload[5:],
    "another event": lambda payload, draw: struct.pack(">bI", 0, draw.randrange(1, 9)) + payload[5:],
    "cut short": lambda payload, draw: payload[: draw.randrange(5, len(payload))],
    "something behind": lambda payload, draw: payload + b"\0",
    "a huge length": lambda payload, draw: payload[:5] + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + payload[5:],
    "flipped bits": lambda payload, draw: _flipped(payload, draw),
    "random bytes": lambda payload, draw: draw.randbytes(draw.randrange(1, 400)),
}
"""What becomes of the bytes of a good record, by kind."""


def _flipped(payload: bytes, draw: random.Random) -> bytes:
    damaged = bytearray(payload)
    for _ in range(draw.randrange(1, 8)):
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


@fault(
    8,
    "poison records",
    f"1 in 50 records is {', '.join(POISON)}, made of good ones; only what no reader can take is sent",
)
def poison(world: World, load: Load, draw: random.Random) -> None:
    kinds, sent = itertools.cycle(sorted(POISON)), 0

    def is_enough() -> bool:
        return sent >= load.groups * 0.1

    with _Sender(world.settings) as sender:
        for number, record in enumerate(_passing(world.direct, load, (*KEYED_BY_TASK, "groups"), is_enough)):
            if number % 50:
                continue
            payload = POISON[next(kinds)](record.payload or b"", draw)
            if isinstance(_decoded(world.direct, record, payload), Poison):
                sender.send(record, payload)
                sent += 1
    world.notes.append(f"{sent} poison records")
    if not is_enough():
        raise RuntimeError(f"only {sent} poison records in {load.groups} groups")


def _decoded(settings: Settings, record: Record, payload: bytes | None) -> object:
    kind = next(topic.event for topic in topics(settings.topics).values() if topic.name == record.at.topic)
    return serde.decode(payload, kind)


class _Sender:
    """Sends records to the partition they came from. Use as a context manager."""

    def __init__(self, settings: Settings) -> None:
        self._producer = ck.Producer({**client_config(settings.kafka), "acks": "all", "linger.ms": 5})

    def __enter__(self) -> _Sender:
        return self

    def __exit__(self, *_: object) -> None:
        if left := self._producer.flush(30):
            raise RuntimeError(f"{left} records were not acknowledged")

    def send(self, record: Record, payload: bytes | None) -> None:
        """Send `payload` under the key of `record`, marked."""
        where = {"topic": record.at.topic, "partition": record.at.partition}
        self._producer.produce(value=payload, key=record.key, headers=[(AGAIN, b"")], **where)
        self._producer.poll(0)


def _passing(
    settings: Settings, load: Load, labels: tuple[str, ...], is_enough: Callable[[], bool] = lambda: True
) -> Iterator[Record]:
    """Yield the records of these topics as they come, without those of a `_Sender`, until the load was sent.

    On a slow machine most records arrive later: then it reads until `is_enough`, or until none came for SILENT_S.
    """
    starts = {tp: low for tp, (low, _) in admin.offsets(settings, labels).items()}
    silent_from = time.monotonic()
    with PartitionReader(settings, starts) as tail:
        while load.share() < 1 or (not is_enough() and time.monotonic() < silent_from + SILENT_S):
            for record in tail.poll():
                silent_from = time.monotonic()
                if AGAIN not in dict(record.headers):
                    yield record


# --- doubled, early and late records ----------------------------------------------------------------------------------


@fault(
    9,
    "records are sent twice, and early",
    "responses and rewards at once, tasks at once (to be sampled twice) or at the end; then whole partitions, and late "
    "rewards; rewards before responses before tasks",
    rate=15.0,
)
def doubles(world: World, load: Load, draw: random.Random) -> None:
    sources = ("tasks", "responses", "rewards")
    with _Sender(world.settings) as sender:
        early = _backwards(world.settings, load)
        for record in _passing(world.direct, load, sources):
            if record.at.topic != world.topic("tasks") or draw.random() < 0.2:
                sender.send(record, record.payload)
            if draw.random() < 0.001:
                next(early)
        for record in admin.read_topic(world.direct, "tasks"):
            sender.send(record, record.payload)
        for label in sources:
            for record in admin.read_topic(
                world.direct, label, partition=draw.randrange(world.direct.topics.partitions)
            ):
                sender.send(record, record.payload)
        for record in admin.read_topic(
            world.direct, "rewards", partition=draw.randrange(world.direct.topics.partitions)
        ):
            reward = record.decode(Reward)
            if isinstance(reward, Reward) and draw.random() < 0.1:  # of groups that are long out
                late = replace(reward, source="style", reward_id=derive_id(reward.response_id, "style"))
                sender.send(record, serde.encode(late))


def _backwards(settings: Settings, load: Load) -> Iterator[None]:
    """Write one more group at each step: an agent of another policy gave its rewards first, its task last."""
    with Producer(settings) as producer:
        for number in itertools.count():
            group = whole(f"early {load.seed} {number}")
            for event in (*group.rewards, *group.responses, group.task):
                producer.send(replace(event, subject=person(number)))
            producer.flush()
            load.ledger.note(group.task.task_id, "acknowledged")
            yield


# --- clocks -----------------------------------------------------------------------------------------------------------


@fault(
    10,
    "wall clocks jump",
    "each process's own clock goes 2 hours back, 1 day ahead and right again, at different times",
    starts=(),
    settings={"advantages": {"deadline_s": 30.0}},
    codes=frozenset({5, 75}),  # Kafka takes no record from more than an hour ahead, so these end, and are started again
)
def wrong_clocks(world: World, load: Load, draw: random.Random) -> None:
    names = ["streams", "policy", "scoring"]
    clock = {name: clocks.wrong_clock(0) for name in names}
    for name in names:
        preload = {key: clock[name][key] for key in ("LD_PRELOAD", clocks.FILE)}
        world.start(name, env=preload)
    jumps: list[Callable[[], None]] = []
    for name in names:
        offsets = [-7200.0, 86_400.0]
        draw.shuffle(offsets)
        jumps += [partial(clocks.set_clock, clock[name], offset) for offset in (*offsets, 0.0)]
    times = sorted(draw.uniform(0.15, 0.95) for _ in jumps)
    order = [names[i % 3] for i in range(len(jumps))]
    draw.shuffle(order)
    of = {name: iter(jumps[3 * i : 3 * i + 3]) for i, name in enumerate(names)}
    for share, name in zip(times, order, strict=True):
        load.until(share)
        next(of[name])()
    time.sleep(1)
