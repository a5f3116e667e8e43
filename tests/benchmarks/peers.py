"""The same join by other stream engines: what they are run with, and whether they make the groups that ours makes.

    kafka_streams/GroupJoin.java   ──► compiled against the embedded node's version ──┐
    quix_streams/group_join.py     ──► in an environment of its own, made once ───────┴─► Peer ──► running: a process
    the same small log ──► a peer's groups, our driver's groups ──► compared, byte by byte where there are bytes

What each does of the work that ours does, and what it does not, is in the headers of those two files. `check` is run
before anything is measured: who does less than is said there is no peer.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import math
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from schemas.events import AdvantagedGroup, Event, Response
from schemas.serde import decode
from streams.errors import LogError, SettingsError
from streams.files import cache_folder
from streams.kafka import admin
from streams.kafka.node import jvm
from streams.kafka.producer import Producer
from streams.kafka.reader import read
from streams.settings.model import Settings
from streams.tools.replay import driver
from tests.benchmarks.loop import await_groups, child
from tests.benchmarks.side_by_side import say
from tests.benchmarks.whole_groups import wave
from tests.support.java import Jar, MissingJar, compiled
from tests.support.log.shared_node import SharedNode

HERE = Path(__file__).parent
JAVA_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:+UseParallelGC")
"""Room for the responses of a burst; the collector with the most throughput."""
WARM_UP = 6
"""Bursts of 3,000 groups while Java compiles what runs often: each makes more than the one before it."""
INSTALL_S = 600.0
HALF = 20
GROUPS = 2 * HALF
"""Of the comparison: what is delivered again in the first half would make groups before the second's."""
AGAIN, WHOLE_AGAIN = 0.2, 5
"""Of its records are delivered twice; and all records of so many groups in each half, after the others."""


class PeerUnavailable(Exception):
    """A peer cannot run here; says why."""


class Peer(NamedTuple):
    """An engine that is ready to run."""

    name: str
    version: str
    command: list[str]
    """To be followed by bootstrap, prefix of the topics, and a folder for state."""
    warm_up: int = 0
    """Bursts until it is as fast as it gets."""


# --- making them ready -----------------------------------------------------------------------------------------------


def kafka_streams(folder: Path) -> Peer:
    """Return Kafka Streams, its program compiled in `folder`. Raises PeerUnavailable, RuntimeError as `compiled`."""
    source = HERE / "kafka_streams" / "GroupJoin.java"
    library = Jar("org.apache.kafka", "kafka-streams", jvm.KAFKA_VERSION)
    try:
        classpath = compiled(source.read_text(encoding="utf-8"), source.stem, folder, [library])
        java = str(jvm.java())
    except (MissingJar, LogError, SettingsError) as exc:
        raise PeerUnavailable(f"Kafka Streams {library.version}: {exc}") from exc
    return Peer("Kafka Streams", library.version, [java, *JAVA_OPTIONS, "-cp", classpath, source.stem], WARM_UP)


def quix_streams(*, install: bool) -> Peer:
    """Return Quix Streams from an environment of its own; `install`: which is made first if it is not there.

    Raises PeerUnavailable.
    """
    requirements = HERE / "quix_streams" / "requirements.txt"
    wanted, folder = requirements.read_text(encoding="utf-8").strip(), cache_folder("quix-streams")
    python, ready = folder / "bin" / "python", folder / "ready"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "quix-streams.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
            if not install:
                raise PeerUnavailable(f"{wanted} in an environment of its own")
            say(f"  installing {wanted} in {folder}, once")
            _install([sys.executable, "-m", "venv", "--clear", str(folder)])
            pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
            _install([*pip, "install", "--quiet", "--requirement", str(requirements)])
            ready.write_text(wanted, encoding="utf-8")
    version = wanted.removeprefix("quixstreams==")
    return Peer("Quix Streams", version, [str(python), str(HERE / "quix_streams" / "group_join.py")])


def _install(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.CalledProcessError as exc:
        raise PeerUnavailable(f"Quix Streams: {' '.join(command)} fails: {(exc.stderr or exc.stdout)[-1000:]}") from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise PeerUnavailable(f"Quix Streams: {exc}") from exc


# --- running them ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(peer: Peer, settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """Run a peer in the topics of these settings; SIGTERM at the end of the block.

    Its changelogs stay, Kafka Streams' under the prefix of the topics; those of Quix Streams are deleted.
    """
    with tempfile.TemporaryDirectory(prefix="streamward-peer-") as folder:
        arguments = (settings.kafka.bootstrap, settings.topics.prefix, folder)
        with child(*peer.command, *arguments) as process:
            yield process
    SharedNode(settings.kafka.bootstrap).delete_topics(f"changelog__{settings.topics.prefix}")


# --- comparing what they make ----------------------------------------------------------------------------------------


class PeerMember(NamedTuple):
    """A response in a peer's group."""

    slot: int
    response_id: str
    reward: float
    advantage: float
    payload: bytes


class PeerGroup(NamedTuple):
    """A group as both peers write it."""

    task_id: str
    members: list[PeerMember]


def check(peer: Peer, settings: Settings) -> None:
    """Have a peer join a small log in the topics of these settings, which are empty, and compare with our driver.

    Raises RuntimeError, naming the first difference, or if the peer stops.
    """
    rng, events = random.Random(7), list[Event]()
    with Producer(settings) as producer, running(peer, settings) as process:
        for first in range(0, GROUPS, HALF):
            groups = [list(wave([number])) for number in range(first, first + HALF)]
            part = list(chain.from_iterable(groups))
            events += part
            mixed = part + rng.sample(part, int(AGAIN * len(part)))
            rng.shuffle(mixed)
            for event in chain(mixed, *groups[:WHOLE_AGAIN]):
                producer.send(event)
            producer.flush()
            await_groups(settings, [process], first + HALF)
        if (found := _first_difference(settings, events)) is not None:
            raise RuntimeError(f"{peer.name} does not join as ours does: {found}")


def _first_difference(settings: Settings, events: list[Event]) -> str | None:
    """Return the first difference between the groups in the log and those that our driver makes of it, or None."""
    made = [peer_group(payload) for payload in _payloads(settings, "groups")]
    ours = {group.task_id: group for group in driver.join(settings) if isinstance(group, AdvantagedGroup)}
    if (ids := sorted(group.task_id for group in made)) != sorted(ours):
        return f"tasks {ids} against {sorted(ours)}"
    sent = {event.response_id: event for event in events if isinstance(event, Response)}
    return next(filter(None, (difference(group, ours[group.task_id], sent) for group in made)), None)


def difference(group: PeerGroup, ours: AdvantagedGroup, sent: Mapping[str, Response]) -> str | None:
    """Return the first difference between a peer's group and ours, or None; `sent` are its responses by id."""
    theirs = [(member.slot, member.response_id, member.reward) for member in group.members]
    if theirs != (known := [(member.slot, member.response_id, member.reward) for member in ours.responses]):
        return f"task {group.task_id}: {theirs} against {known}"
    for member, own in zip(group.members, ours.responses, strict=True):
        if not math.isclose(member.advantage, own.advantage, abs_tol=1e-9):
            return f"task {group.task_id}, slot {member.slot}: advantage {member.advantage} against {own.advantage}"
        if decode(member.payload, Response) != sent[member.response_id]:
            return f"task {group.task_id}, slot {member.slot}: not the bytes of response {member.response_id}"
    return None


def _payloads(settings: Settings, label: str) -> Iterator[bytes]:
    """Yield what a topic holds now."""
    bounds = admin.offsets(settings, [label])
    starts, ends = ({tp: bound[side] for tp, bound in bounds.items()} for side in (0, 1))
    yield from (record.payload or b"" for record in read(settings, starts, ends))


def peer_group(payload: bytes) -> PeerGroup:
    """Return the group in a record that a peer wrote. Raises struct.error or ValueError if it is none."""
    stream = io.BytesIO(payload)

    def number() -> int:
        return int(struct.unpack(">i", stream.read(4))[0])

    def real() -> float:
        return float(struct.unpack(">d", stream.read(8))[0])

    def block() -> bytes:
        return stream.read(number())

    task_id = block().decode()
    members = [PeerMember(number(), block().decode(), real(), real(), block()) for _ in range(number())]
    if rest := stream.read():
        raise ValueError(f"{len(rest)} bytes behind the group of task {task_id}")
    return PeerGroup(task_id, members)
