"""Faults 12 to 14: what Kafka deletes, and what a newer version writes.

Not covered: a source topic that is made anew. That is refused at once (streams/worker/faust/fixes.py,
streams/kafka/consumer.py).
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import confluent_kafka as ck
from confluent_kafka import admin

from streams.kafka import admin as cluster
from streams.kafka.client import client_config
from streams.kafka.node import process as broker
from streams.kafka.reader import read
from streams.settings.load import to_env
from streams.settings.model import Settings
from streams.tools.audit.reading import commits
from tests.chaos.load import Load
from tests.chaos.matrix import fault
from tests.chaos.world import REPO, World, plain_environment

# --- retention --------------------------------------------------------------------------------------------------------


@fault(
    12,
    "retention deletes what nobody has read",
    "tasks are deleted below their end while the agent is away; it must refuse to go on until told to skip them",
    settings={"advantages": {"grace_s": 1.0}},
    tasks=lambda number: {"deadline_at": int(time.time() * 1000) + 20_000},
    codes=frozenset({5}),
    cut=True,
)
def retention(world: World, load: Load, draw: random.Random) -> None:
    group = f"policy-{world.direct.policy.name}"
    load.until(draw.uniform(0.2, 0.4))
    begun = dict.fromkeys(cluster.offsets(world.direct, ["tasks"]), 1)
    wait_until_read(group, world, begun)  # else it starts where the log does now, and has lost nothing
    world.stop("policy")
    world.wait_for("tasks", 300)
    ends = {tp: high for tp, (_, high) in cluster.offsets(world.direct, ["tasks"]).items()}
    wait_until_read("streams", world, ends)  # else the worker has lost something too, and refuses as rightly
    delete_records(world.direct, ends)
    world.start("policy")
    deadline = time.monotonic() + 30
    while not any(end.name == "policy" and end.code == 5 for end in world.exits):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the agent passed over what was deleted: {world.said('policy')[-400:]}")
        time.sleep(0.1)
    world.stop("policy")
    said = world.said("policy")
    if "offsets skip" not in said:
        raise RuntimeError(f"the agent did not say what to do: {said[-400:]}")
    streamward(world.direct, "admin", "offsets", "skip", "--group", group)
    world.start("policy")
    load.until(1)


def wait_until_read(group: str, world: World, ends: dict[tuple[str, int], int]) -> None:
    """Return once a group has committed up to these offsets. Raises TimeoutError."""
    deadline = time.monotonic() + 30
    while not read_by(group, world, ends):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{group} did not read the tasks")
        time.sleep(0.1)


def read_by(group: str, world: World, ends: dict[tuple[str, int], int]) -> bool:
    """Whether a group has committed up to these offsets."""
    done = commits(world.direct)
    return all(done.get((group, *tp), 0) >= end for tp, end in ends.items())


def delete_records(settings: Settings, before: dict[tuple[str, int], int]) -> None:
    """Delete the records below these offsets, as retention does."""
    client = admin.AdminClient({**client_config(settings.kafka), "log_level": 0})
    client.list_topics(timeout=10)
    for future in client.delete_records([ck.TopicPartition(*tp, offset) for tp, offset in before.items()]).values():
        future.result()


def streamward(settings: Settings, *arguments: str, repo: Path = REPO) -> str:
    """Run a command to its end, and return what it printed. Raises RuntimeError with its words if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "streams.cli", *arguments],
        env={**plain_environment(repo), **to_env(settings)},
        cwd=repo,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        raise RuntimeError(f"streamward {' '.join(arguments)}: exit {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


# --- versions ---------------------------------------------------------------------------------------------------------


@fault(
    13,
    "old and new code in one group, and one schema version more",
    "readers first: of workers, then scorers, then agents a new one works beside the old one, which is then told "
    "to end; the new scorers write rewards of the next schema version",
)
def mixed_versions(world: World, load: Load, draw: random.Random) -> None:
    newer = next_version(world.folder / "newer")
    world.repo = newer
    for number, kind in enumerate(("streams", "scoring", "policy")):
        old = [name for name in world.names() if name.partition("-")[0] == kind]
        load.until(0.1 + 0.3 * number)
        for name in old:
            world.start(f"{name}-newer", repo=newer)
        load.until(0.25 + 0.3 * number + draw.uniform(0, 0.1))
        world.stop(*old)
    load.until(1)


def next_version(folder: Path) -> Path:
    """Return a copy of this code in which a Reward has one field more, and schema files to match."""
    for package in ("plugins", "schemas", "streams", "trainer", "tests"):
        shutil.copytree(REPO / package, folder / package, ignore=shutil.ignore_patterns("__pycache__", "histories"))
    events = folder / "schemas" / "response_events.py"
    before = events.read_text()
    one_more = r"\1    annotator: str | None = None\n\2"
    after = re.sub(r"(class Reward:.*?\n)(    components: )", one_more, before, count=1, flags=re.DOTALL)
    if before == after:
        raise RuntimeError("Reward has changed its shape; give the next version another field")
    events.write_text(after)
    generate = [sys.executable, "-m", "schemas.generate"]
    subprocess.run(generate, cwd=folder, env=plain_environment(folder), capture_output=True, check=True, timeout=120)
    return folder


# --- changelogs -------------------------------------------------------------------------------------------------------

TABLE = "streams-open-groups-changelog"


class QuickCleaner(World):
    """A World whose node compacts without waiting."""

    def open_broker(self) -> None:
        """Start the node with a cleaner that looks every second."""
        properties = {"log.cleaner.backoff.ms": "1000"}
        self.use(self.stack.enter_context(broker.embedded(self.node.data_dir, properties=properties)).bootstrap)


@fault(
    14,
    "a changelog is compacted, cut, shortened, deleted",
    "each in turn, in random order, while the worker is away: it recovers from what is there, or reads the source "
    "topics again, and says which",
    place=QuickCleaner,
)
def changelog(world: World, load: Load, draw: random.Random) -> None:
    topic = world.direct.topics.prefix + TABLE
    ways: list[tuple[Callable[[World, str], None] | None, str]] = [
        (None, "none has lost records"),
        (cut_head, "rebuilt"),
        (shorten, "rebuilt"),
        (remove, "rebuilt"),
    ]
    draw.shuffle(ways)
    for number, (spoil, says) in enumerate(ways):
        load.until(0.12 + 0.12 * number)
        world.wait_for("groups", 20, timeout_s=120)  # so that there is a state to lose
        compact_soon(world, topic)
        wait_until_compacted(world, topic)  # while somebody appends to it: what is not rolled is not compacted
        world.wait_for("groups", 60, timeout_s=120)
        workers = [name for name in world.names() if name.partition("-")[0] == "streams"]
        world.stop(*workers)
        if spoil is not None:
            spoil(world, topic)
        heard = {name: len(world.said(name)) for name in workers}
        for name in workers:
            world.start(name)
        world.wait_for("groups", 20, timeout_s=120)
        said = "".join(world.said(name)[heard[name] :] for name in workers)
        if says not in said:
            raise RuntimeError(f"after {spoil} no worker said {says!r}: {said}")
    load.until(1)


def _admin(world: World) -> admin.AdminClient:
    """Return a client; it must be held until its futures are done."""
    client = admin.AdminClient({**client_config(world.direct.kafka), "log_level": 0})
    client.list_topics(timeout=10)
    return client


def _bounds(world: World, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
    consumer = ck.Consumer({**client_config(world.direct.kafka), "group.id": "chaos"})
    try:
        return {
            (topic, partition): consumer.get_watermark_offsets(ck.TopicPartition(topic, partition), 10)
            for partition in range(world.direct.topics.partitions)
        }
    finally:
        consumer.close()


def compact_soon(world: World, topic: str) -> None:
    """Have the broker roll its segments quickly (it does so when something is appended) and compact what it rolled."""
    configure(world, topic, {"segment.ms": "500", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "500"})


def configure(world: World, topic: str, entries: Mapping[str, str]) -> None:
    """Set these of a topic's configuration."""
    changes = [
        admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
        for name, value in entries.items()
    ]
    resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    client = _admin(world)
    for future in client.incremental_alter_configs([resource]).values():
        future.result()


def wait_until_compacted(world: World, topic: str) -> None:
    """Return once the broker has compacted it so far that it has gaps."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        bounds = _bounds(world, topic)
        starts, ends = ({tp: bound[i] for tp, bound in bounds.items()} for i in (0, 1))
        if sum(1 for _ in read(world.direct, starts, ends)) < sum(high - low for low, high in bounds.values()):
            return
        time.sleep(1)
    raise TimeoutError(f"{topic} was not compacted within 60 s")


def cut_head(world: World, topic: str) -> None:
    """Delete the first half, which Kafka does not let one do to a topic that is only compacted."""
    configure(world, topic, {"cleanup.policy": "compact,delete"})
    delete_records(world.direct, {tp: (low + high) // 2 for tp, (low, high) in _bounds(world, topic).items()})
    configure(world, topic, {"cleanup.policy": "compact"})


def remove(world: World, topic: str) -> None:
    """Delete the topic."""
    client = _admin(world)
    for future in client.delete_topics([topic]).values():
        future.result()
    while topic in cluster.describe(world.direct):
        time.sleep(0.1)


def shorten(world: World, topic: str) -> None:
    """Make it anew, with the first two thirds of its records, as a broker that lost its last segment has them."""
    bounds = _bounds(world, topic)
    starts = {tp: low for tp, (low, _) in bounds.items()}
    kept = list(read(world.direct, starts, {tp: low + (high - low) * 2 // 3 for tp, (low, high) in bounds.items()}))
    config = cluster.configs(world.direct, [topic])[topic]
    remove(world, topic)
    cluster.create(
        world.direct, [admin.NewTopic(topic, num_partitions=len(bounds), replication_factor=1, config=config)]
    )
    producer = ck.Producer({**client_config(world.direct.kafka), "acks": "all", "linger.ms": 5})
    for record in kept:
        producer.produce(topic, record.payload, record.key, partition=record.at.partition)
        producer.poll(0)
    if left := producer.flush(30):
        raise RuntimeError(f"{left} records were not acknowledged")
