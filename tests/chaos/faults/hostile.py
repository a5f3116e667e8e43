"""Fault 16: somebody who may write to every topic, and means harm.

    good records passing ──► damaged ──────────────────────────┐
    made up ──► too large, odd headers, wrong key or partition, ├──► every topic ──► world.bad: where, and which shape
                tasks no scorer survives, forgeries ───────────┘

Whoever writes has no rights to lack here: the node has no authorizer, and each topic gets what its own writers could
send. Ids that are made up begin with HOSTILE, so that what the processes make of them is told from the good.

Not covered: forgeries that are whole events about good tasks. Who may write those can change a result, and
docs/security.md says what the audit then names.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import confluent_kafka as ck

from schemas.events import DeadLetter, Event, RewardSource, derive_id
from schemas.serde import Poison, decode, encode
from streams.kafka.client import client_config
from streams.kafka.record import key_of, partition_of
from streams.kafka.topics import KEYED_BY_TASK, LABELS, Topic, topics
from tests.chaos.accounts import HOSTILE
from tests.chaos.faults.records import POISON
from tests.chaos.load import Load
from tests.chaos.matrix import fault
from tests.chaos.world import World
from tests.support.factories import batch, control, group, one_of_each, response, reward, task, trained
from tests.support.log import raw_header
from tests.support.processes import by_another_writer

EVERY_S = 0.1
"""Between two bad records."""
LARGE_BYTES = 6 * 1024 * 1024
"""Compressed, some KB: it passes a broker whose topics take 1 MiB, and its dead letter would not."""
LONG_ID = 490_000
"""Letters. The id of a task is in the key and in the payload."""
URIS = ("gopher://h/1", "file:///etc/passwd", "zip://x::file:///etc/passwd", "s3://none/1", "../../1", "\0", "u" * 300)


class BadRecord(NamedTuple):
    """A record to send."""

    label: str
    key: bytes | None
    payload: bytes | None
    partition: int = -1
    """-1: where its key belongs."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    raw_header: bool = False
    """With a header whose name is not UTF-8."""
    timestamp_ms: int = 0
    """0: now."""


@dataclass
class Forge:
    """Makes bad records, no two of them alike."""

    named: Mapping[str, Topic]
    draw: random.Random
    number: int = 0
    version: int = 0
    ordinary: dict[str, Event] = field(default_factory=dict)
    """A good event of each topic."""

    def __post_init__(self) -> None:
        by_type = {topic.event: label for label, topic in self.named.items()}
        self.ordinary = {by_type[type(event)]: event for event in one_of_each()}

    def next_id(self) -> str:
        """Return an id that nobody had."""
        self.number += 1
        return f"{HOSTILE}{self.number}"

    def record(self, label: str, event: Event, **changes: Any) -> BadRecord:
        """Return the record of an event, and with `changes` what a writer without our checks makes of it."""
        payload = by_another_writer(event, **changes) if changes else encode(event)
        return BadRecord(label, key_of(event, self.named[label]), payload)


Shape = Callable[[Forge], BadRecord]

# --- any topic --------------------------------------------------------------------------------------------------------


def unreadable(forge: Forge) -> BadRecord:
    """A good event whose bytes were damaged so that no reader takes them, now or at an odd time."""
    label = forge.draw.choice(LABELS)
    whole, kind = encode(forge.ordinary[label]), forge.named[label].event
    while True:
        payload = POISON[forge.draw.choice(sorted(POISON))](whole, forge.draw)
        if isinstance(decode(payload, kind), Poison):
            now_ms = int(time.time() * 1000)
            when = forge.draw.choice((0, now_ms - 86_400_000, now_ms + 3_000_000))  # what retention leaves, and takes
            key = forge.draw.choice((None, b"", b"\xff\xfe", b"default", forge.next_id().encode()))
            return BadRecord(label, key, payload, timestamp_ms=when)


def too_large(forge: Forge) -> BadRecord:
    """A record that compresses well."""
    return BadRecord(forge.draw.choice(LABELS), b"key", forge.draw.choice(b"xyz \0").to_bytes() * LARGE_BYTES)


def odd_header(forge: Forge) -> BadRecord:
    """A record that is no event, with a header whose name is not text."""
    return BadRecord(forge.draw.choice(LABELS), b"key", b"no event", raw_header=True)


def many_headers(forge: Forge) -> BadRecord:
    """A record that is no event, with ten thousand headers of one name."""
    return BadRecord(forge.draw.choice(LABELS), b"key", b"no event", headers=(("traceparent", b"00-zz"),) * 10_000)


# --- keys and partitions ----------------------------------------------------------------------------------------------


def about(forge: Forge, task_id: str) -> list[tuple[str, Event]]:
    """Return a good event of each topic that is keyed by task, about one task."""
    answer = response(task_id=task_id, sampling_id=task_id)
    made = (task(task_id=task_id), answer, reward(answer), control(task_id=task_id))
    return list(zip(KEYED_BY_TASK, made, strict=True))


def wrong_key(forge: Forge) -> BadRecord:
    """A good event under the key of another."""
    label, event = forge.draw.choice(about(forge, forge.next_id()))
    return forge.record(label, event)._replace(key=forge.draw.choice((None, b"", b"\xff", b"another")))


def wrong_partition(forge: Forge) -> BadRecord:
    """A good event where its task's other records are not."""
    task_id = forge.next_id()
    label, event = forge.draw.choice(about(forge, task_id))
    count = forge.named[label].partitions
    return forge.record(label, event)._replace(partition=(partition_of(task_id, count) + 1) % count)


# --- what has the schema and cannot be meant --------------------------------------------------------------------------


def contradictory(forge: Forge) -> BadRecord:
    """An event that breaks a rule of its own."""
    task_id = forge.next_id()
    asked, answer = task(task_id=task_id), response(task_id=task_id, sampling_id=task_id)
    breaks: list[tuple[str, Event, dict[str, Any]]] = [
        ("tasks", asked, {"purpose": "teach"}),
        ("tasks", asked, {"group_size": forge.draw.choice((0, -1, 2**31 - 1))}),
        ("tasks", asked, {"reward_sources": []}),
        ("tasks", asked, {"verifier": "[" * 5000}),
        ("responses", answer, {"slot": forge.draw.choice((-1, 9, 2**31 - 1))}),
        ("responses", answer, {"logprobs": [float("nan"), float("inf")]}),
        ("rewards", reward(answer), {"value": forge.draw.choice((float("nan"), float("-inf"), 1e308))}),
        ("groups", group(task_id=task_id), {"reward_mean": float("nan")}),
        ("adapters", trained(1), {"version": forge.draw.choice((-3, 2**31 - 1))}),
    ]
    label, event, changes = forge.draw.choice(breaks)
    return forge.record(label, event, **changes)


def of_no_task(forge: Forge) -> BadRecord:
    """A good answer, score or control record about a task that nobody asked; its id may be very long."""
    task_id = forge.next_id()
    label, event = forge.draw.choice(about(forge, forge.draw.choice((task_id, task_id, task_id + "i" * LONG_ID)))[1:])
    return forge.record(label, event)


# --- tasks that no scorer survives ------------------------------------------------------------------------------------

SOURCES: Mapping[str, Mapping[str, Any]] = {
    "mix": {"of": [{"name": "exact", "weight": 1e308}, {"name": "length", "weight": 1e308, "settings": {"limit": 1}}]},
    "regex": {"pattern": "(a+)+b"},
    "format": {"shape": "json_object", "characters": 10**30},
    "length": {"limit": 0},
    "json:loads": {},
    "tests.chaos.world:os": {},
    "exct": {},
}
"""Reward sources by name: numbers that overflow, a pattern that takes for ever, modules that no task may import."""


def harmful_task(forge: Forge) -> BadRecord:
    """A task whose answers cannot be scored: its group says why."""
    name = forge.draw.choice(sorted(SOURCES))
    asked = task(
        task_id=forge.next_id(),
        verifier=json.dumps({"answer": "a" * 40}),
        reward_sources=(RewardSource(name=name, settings=json.dumps(SOURCES[name])),),
        metadata={"\0": "x" * 10_000},
    )
    return forge.record("tasks", asked)


# --- forgeries --------------------------------------------------------------------------------------------------------


def forged_version(forge: Forge) -> BadRecord:
    """A version that no trainer made, the next one or far beyond it, somewhere that no agent may read."""
    forge.version += 1
    version = forge.draw.choice((forge.version, forge.version + 1000, 2**31 - 1))
    return forge.record("adapters", trained(version, event_id=forge.next_id(), uri=forge.draw.choice(URIS)))


def forged_letter(forge: Forge) -> BadRecord:
    """A dead letter about a record that does not exist, with a version in it that a retry would put into service."""
    label = forge.draw.choice(LABELS)
    source = (forge.draw.choice((forge.named[label].name, "another")), 0, forge.draw.randrange(10**9, 2**40))
    whole = one_of_each()[LABELS.index("dead-letters")]
    assert isinstance(whole, DeadLetter)
    named = dict(zip(("source_topic", "source_partition", "source_offset"), source, strict=True))
    stage = forge.draw.choice(("policy", "scoring", "trainer"))
    return forge.record("dead-letters", whole, **named, stage=stage, dead_letter_id=derive_id(stage, *source))


def forged_group(forge: Forge) -> BadRecord:
    """A whole group of a task that nobody asked."""
    return forge.record("groups", group(task_id=forge.next_id(), policy=HOSTILE))


def forged_batch(forge: Forge) -> BadRecord:
    """A batch of groups that do not exist."""
    forge.next_id()
    return forge.record("batches", batch(forge.number, policy=HOSTILE, groups_offsets=(10**6 + forge.number,)))


COMMON: tuple[Shape, ...] = (
    unreadable, wrong_key, wrong_partition, contradictory, of_no_task, forged_letter, forged_version, forged_group,
    forged_batch,
)  # fmt: skip
COSTLY: tuple[Shape, ...] = (too_large, odd_header, many_headers, harmful_task)
"""One in five: megabytes, another client to read a name, or a worker process that is ended for its task."""

# --- the fault --------------------------------------------------------------------------------------------------------


class _Intruder:
    """Writes bad records, and remembers where they are. Use as a context manager."""

    def __init__(self, world: World) -> None:
        self._bad, self._bootstrap = world.bad, world.settings.kafka.bootstrap
        self._named = topics(world.settings.topics)
        self._producer = ck.Producer(
            {
                **client_config(world.settings.kafka),
                "partitioner": "murmur2_random",
                "compression.type": "lz4",
                "message.max.bytes": 2 * LARGE_BYTES,
            }
        )

    def __enter__(self) -> _Intruder:
        return self

    def __exit__(self, *_: object) -> None:
        if left := self._producer.flush(30):
            raise RuntimeError(f"{left} bad records were not acknowledged")

    def send(self, shape: str, bad: BadRecord) -> None:
        """Send a record."""
        topic, now_ms = self._named[bad.label].name, int(time.time() * 1000)
        if bad.raw_header:  # which librdkafka's Python client cannot write
            assert bad.key is not None and bad.payload is not None
            tp = (topic, partition_of(bad.key.decode(), self._named[bad.label].partitions))
            self._bad[str(raw_header.write(self._bootstrap, tp, bad.key, bad.payload, now_ms))] = shape
            return

        def acknowledged(error: ck.KafkaError | None, message: ck.Message) -> None:
            if error is not None:
                raise RuntimeError(f"{shape} was not taken: {error}")
            self._bad[f"{message.topic()}[{message.partition()}]@{message.offset()}"] = shape

        where = {"partition": bad.partition, "timestamp": bad.timestamp_ms}
        self._producer.produce(
            topic, bad.payload, bad.key, headers=list(bad.headers), on_delivery=acknowledged, **where
        )
        self._producer.poll(0)


@fault(
    16,
    "somebody hostile writes to every topic",
    f"ten records a second, by seed: {', '.join(shape.__name__.replace('_', ' ') for shape in (*COMMON, *COSTLY))}",
    settings={
        "topics": {"max_record_bytes": 1024 * 1024},
        "scoring": {"timeout_s": 0.5, "retries": 0, "processes": 2},
    },
    rate=15.0,
)
def hostile(world: World, load: Load, draw: random.Random) -> None:
    forge = Forge(topics(world.settings.topics), draw)
    most = 0
    with _Intruder(world) as intruder:
        for shape in _shapes(draw):
            if load.share() >= 1:
                break
            intruder.send(shape.__name__.replace("_", " "), shape(forge))
            most = max(most, world.lag() or 0) if forge.number % 20 == 0 else most
            time.sleep(EVERY_S)
    world.notes.append(f"{len(world.bad)} bad records; the lag was {most} records at most")


def _shapes(draw: random.Random) -> Iterable[Shape]:
    """Yield shapes for ever; each comes as often as the others of its kind."""
    while True:
        turn = [*COMMON * 2, *COSTLY]
        draw.shuffle(turn)
        yield from turn
