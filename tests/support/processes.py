"""Streamward's processes, as a user starts them, run and ended by tests.

    settings ──► `streamward streams`, `scoring`, … ──► SIGTERM when the block ends ──► each must say 0
                 what they print lies in <folder>/<name>.log

Not covered: keeping them alive. That is the demo's (streams/demo/restarts.py).
"""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka as ck
import fastavro
import psutil

from schemas import versions
from schemas.events import Coordinates, DeadLetter, Event
from schemas.serde import Poison, encode
from streams.kafka import admin, client
from streams.kafka.producer import ANY_BYTES, PARTITIONER
from streams.kafka.record import Record, key_of, trace_of
from streams.kafka.topics import topic_of, topics
from streams.settings.load import to_env
from streams.settings.model import Settings
from tests.support.factories import plain
from tests.support.fork_server import spawn, spawn_and_wait as spawn_and_wait

E = TypeVar("E", bound=Event)
WRITE_S = 60.0
"""For the node to take what a test writes."""
READERS = {
    "tasks": "advantages",
    "responses": "advantages",
    "rewards": "advantages",
    "group-control": "advantages",
    "groups": "batches",
    "adapters": "rollouts",
}
"""By topic: the stage that writes the one dead letter about a record that cannot be read. Others skip the record."""


def environment(settings: Settings | None = None) -> dict[str, str]:
    """Return the environment of a child that loads exactly these settings."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWARD_")}
    return plain | (to_env(settings) if settings else {})


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "streams.cli", *arguments]


def log_file(folder: Path, line: str) -> Path:
    """Return where `running` writes the output of a command: retrain.log for `improve retrain follow`."""
    return folder / f"{line.removeprefix('improve ').split()[0]}.log"


@contextmanager
def running(settings: Settings, folder: Path, *names: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run `streamward NAME` for each name while the block runs. Each must end with 0 when it is told to.

    A name may have options behind it. Their output is in `log_file`.
    """
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in names:
            with log_file(folder, name).open("ab") as log:
                processes[name] = spawn(
                    command(*name.split()), env=environment(settings), cwd=folder, stdout=log, stderr=log
                )
        yield processes
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
        codes = {name: process.wait(300) for name, process in processes.items()}
        assert set(codes.values()) == {0}, f"{codes}: {said(folder)}"
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def ended(settings: Settings, folder: Path, *names: str) -> dict[str, tuple[int, str]]:
    """Return (exit code, stderr) of `streamward NAME` for each name, run side by side until they end by themselves.

    What has ended without work to do has nothing to say on stdout.
    """
    started = {
        name: spawn(
            command(name),
            env=environment(settings),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    }
    try:
        told = {name: process.communicate(timeout=300) for name, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    assert {out for out, _ in told.values()} == {""}
    return {name: (started[name].returncode, err) for name, (_, err) in told.items()}


def said(folder: Path) -> str:
    """Return the last words of every process that logged into `folder`."""
    return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(folder.glob("*.log")))


def until(met: Callable[[], bool], expected: str, *, folder: Path | None = None, timeout_s: float = 300) -> None:
    """Return once `met`; fail with what was `expected`, and what the processes said, if that takes too long.

    It looks for a quarter of the time at most: who reads a log to look takes the time from those that write it.
    """
    began = time.monotonic()
    while True:
        looked = time.monotonic()
        if met():
            return
        now = time.monotonic()
        assert now < began + timeout_s, f"expected {expected}{': ' + said(folder) if folder else ''}"
        time.sleep(min(1.0, max(0.05, 3 * (now - looked))))


def records(settings: Settings, label: str) -> list[Record]:
    """Return every record of a topic, partition by partition, in order."""
    return sorted(admin.read_topic(settings, label), key=lambda record: record.at)


def read(settings: Settings, kind: type[E]) -> list[tuple[Record, E]]:
    """Return every event of the topic of `kind` that can be read, with its record."""
    label = next(label for label, topic in topics(settings.topics).items() if topic.event is kind)
    pairs = [(record, record.decode(kind)) for record in records(settings, label)]
    return [(record, event) for record, event in pairs if not isinstance(event, Poison)]


class Writer:
    """Writes events into their topics, in order.

    Its client is not idempotent, as ours are: such a one asks for its number, and again half a second later.
    """

    def __init__(self, settings: Settings) -> None:
        in_order = {"partitioner": PARTITIONER, "max.in.flight.requests.per.connection": 1, "linger.ms": 0}
        self._topics = settings.topics
        self._client = client.producer(settings.kafka, {**in_order, "message.max.bytes": ANY_BYTES})

    def write(
        self, *events: Event, encoder: Callable[[Event], bytes] = encode, headers: Mapping[str, bytes] | None = None
    ) -> list[Coordinates]:
        """Return where the events are, once all are in the log."""
        places: dict[int, Coordinates] = {}

        def delivered(number: int, error: ck.KafkaError | None, message: ck.Message) -> None:
            assert error is None, error
            places[number] = Coordinates(message.topic(), message.partition(), message.offset())

        for number, event in enumerate(events):
            topic = topic_of(type(event), self._topics)
            given = headers or (trace_of(event) if isinstance(event, DeadLetter) else {})
            self._client.produce(
                topic.name, encoder(event), key_of(event, topic), headers=[*given.items()],
                on_delivery=partial(delivered, number),
            )  # fmt: skip
        assert self._client.flush(WRITE_S) == 0
        return [places[number] for number in range(len(events))]


def write(settings: Settings, *events: Event) -> list[Coordinates]:
    """Write events into their topics, in order, and return where they are."""
    return Writer(settings).write(*events)


def is_running(pid: int) -> bool:
    """Return whether there is such a process, and it has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def by_another_writer(event: Event, **changes: Any) -> bytes:
    """Return `event` with other values, as a producer writes that has the schema and not our checks."""
    schema = versions.files().newest(type(event))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema.fastavro_schema, plain(event, **changes))
    return struct.pack(">bI", 0, schema.id) + out.getvalue()
