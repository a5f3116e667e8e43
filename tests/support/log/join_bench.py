"""A set of topics for one test, join_worker processes on them, and what they should have written.

send ──► questions, answers ──► Worker processes ──► joined          expected(): the same join, from the log itself
Traffic: groups whose parts come mixed, at a rate
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from tests.support.fork_server import spawn
from tests.support.log.join_worker import ANSWERS, PARTITIONS

REPO = Path(__file__).parents[3]
SOURCES = ("questions", "answers")


class Bench:
    """A set of topics of its own, workers on them, and what lies in them."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self.folder = bootstrap, folder
        self.prefix = f"app-{uuid4().hex[:8]}."
        self.changelog = f"{self.prefix}streams-open-groups-changelog"
        self.admin = admin.AdminClient({"log_level": 0, "bootstrap.servers": bootstrap})
        self.workers: list[subprocess.Popen[bytes]] = []
        self.create({self.prefix + label: {} for label in (*SOURCES, "joined", "rejected")})
        self.group = ck.Consumer({"log_level": 0, "bootstrap.servers": bootstrap, "group.id": f"{self.prefix}streams"})
        self.producer = ck.Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )

    def create(self, topics: dict[str, dict[str, str]]) -> None:
        new = [admin.NewTopic(name, PARTITIONS, 1, config=config) for name, config in topics.items()]
        for future in self.admin.create_topics(new).values():
            future.result()

    def start(self, **env: str) -> Worker:
        """Start a worker, of driver=loop if so; the rest is its environment."""
        worker = Worker(self, env)
        self.workers.append(worker.process)
        return worker

    def send(self, label: str, group: str, value: dict[str, Any]) -> None:
        self.producer.produce(self.prefix + label, json.dumps(value).encode(), group.encode())
        self.producer.poll(0)

    def send_group(self, group: str) -> None:
        self.send("questions", group, {})
        for slot in range(ANSWERS):
            self.send("answers", group, {"slot": str(slot)})

    def records(self, topic: str) -> list[ck.Message]:
        """Every record of a topic so far, partition by partition.

        Offsets can be committed a moment before the other records of their transaction may be read: it waits for these.
        """
        ends = self.ends(topic)
        consumer = ck.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "reader", "enable.partition.eof": True}
        )
        consumer.assign([ck.TopicPartition(topic, p, ck.OFFSET_BEGINNING) for p in range(PARTITIONS)])
        found, read = [], [-1] * PARTITIONS
        while any(offset < end for offset, end in zip(read, ends, strict=True)):
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == ck.KafkaError._PARTITION_EOF, message.error()
                    read[message.partition()] = message.offset()
        consumer.close()
        return found

    def logs(self) -> str:
        """What all workers have logged."""
        return "\n".join(path.read_text() for path in self.folder.glob("*.err"))

    def joined(self) -> dict[str, list[dict[str, Any]]]:
        found = defaultdict(list)
        for message in self.records(self.prefix + "joined"):
            found[message.key().decode()].append(json.loads(message.value()))
        return found

    def expected(self) -> dict[str, dict[str, Any]]:
        """The same join, computed from the log: of each part of a group, the record that stands first."""
        groups: dict[str, dict[str, Any]] = defaultdict(lambda: {"question": None, "answers": {}, "closed": False})
        for label in SOURCES:
            for message in self.records(self.prefix + label):
                group, at = groups[message.key().decode()], [label, message.partition(), message.offset()]
                if label == "questions":
                    group["question"] = group["question"] or at
                else:
                    group["answers"].setdefault(json.loads(message.value())["slot"], at)
        return {k: group for k, group in groups.items() if group["question"] and len(group["answers"]) == ANSWERS}

    def judge(self, groups: Sequence[str]) -> None:
        """Compare what was written with what the log says. A repeated record is of the same content: it counts once."""
        expected, joined = self.expected(), self.joined()
        assert expected.keys() == set(groups)
        assert [group for group in expected if group not in joined] == []
        wrong = {group: found for group, found in joined.items() if any(one != expected[group] for one in found)}
        assert wrong == {}, {group: expected[group] for group in wrong}

    def ends(self, *topics: str) -> list[int]:
        """The next offset of each partition of some topics, in one request: tests look every few moments."""
        asked = {ck.TopicPartition(topic, p): admin.OffsetSpec.latest() for topic in topics for p in range(PARTITIONS)}
        deadline = time.monotonic() + 300
        while True:
            try:
                found = self.admin.list_offsets(asked, request_timeout=60)
                return [found[tp].result().offset for tp in asked]
            except ck.KafkaException as exc:  # what a topic that was just made answers for a moment
                if exc.args[0].code() != ck.KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def written(self, *labels: str) -> int:
        """How many records lie in some topics."""
        return sum(self.ends(*(self.prefix + label for label in labels)))

    def lag(self) -> int:
        """Records of the sources that are not committed."""
        tps = [ck.TopicPartition(self.prefix + label, p) for label in SOURCES for p in range(PARTITIONS)]
        try:
            committed = self.group.committed(tps, 10)
        except ck.KafkaException as exc:
            if exc.args[0].code() != ck.KafkaError.NOT_COORDINATOR:  # the node makes the topic of commits just now
                raise
            committed = []
        return self.written(*SOURCES) - sum(max(tp.offset, 0) for tp in committed)


class Traffic:
    """Groups whose parts are written mixed, some of them twice, at so many a second."""

    RATE = 250
    OPEN = 200

    def __init__(self, bench: Bench, groups: int) -> None:
        self.bench, self.rng = bench, random.Random(7)
        self.groups = [f"g{i}" for i in range(groups)]
        self.waiting: list[tuple[str, str, dict[str, Any]]] = []
        for group in self.groups:
            parts = [("questions", group, {})] + [("answers", group, {"slot": str(slot)}) for slot in range(ANSWERS)]
            self.waiting += parts + ([self.rng.choice(parts)] if self.rng.random() < 0.33 else [])
        self.window: list[tuple[str, str, dict[str, Any]]] = []

    def during(self, seconds: float) -> None:
        """Send for so many seconds, or until all is sent."""
        began, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds and (self.waiting or self.window):
            while sent < passed * self.RATE and (self.waiting or self.window):
                while self.waiting and len(self.window) < self.OPEN:
                    self.window.append(self.waiting.pop(0))
                self.bench.send(*self.window.pop(self.rng.randrange(len(self.window))))
                sent += 1
            time.sleep(0.01)
        self.bench.producer.flush()

    def judge(self) -> None:
        """Send the rest, wait until it is read, and compare what was written with what the log says."""
        self.during(600)
        wait_until(lambda: self.bench.lag() == 0, self.bench.logs)
        self.bench.judge(self.groups)
        assert "exit code 75" not in self.bench.logs()


class Worker:
    """One process of join_worker.py, or of join_loop.py."""

    def __init__(self, bench: Bench, env: dict[str, str]) -> None:
        number, driver = len(bench.workers), {"faust": "worker", "loop": "loop"}[env.pop("driver", "faust")]
        self.out, self.err = bench.folder / f"worker{number}.out", bench.folder / f"worker{number}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = spawn(
                [sys.executable, "-m", f"tests.support.log.join_{driver}"],
                env={
                    **os.environ,
                    "STREAMWARD_KAFKA__BOOTSTRAP": bench.bootstrap,
                    "STREAMWARD_TOPICS__PREFIX": bench.prefix,
                    "STREAMWARD_TOPICS__PARTITIONS": str(PARTITIONS),
                    **env,
                },
                cwd=REPO,
                stdout=out,
                stderr=err,
            )

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines() if line.endswith("}")]

    def owns(self, partitions: set[int]) -> None:
        wait_until(lambda: bool(self.told()) and set(self.told()[-1]["owned"]) == partitions, self.log)

    def ends(self, with_code: int) -> None:
        wait_until(lambda: self.process.poll() is not None, self.log, timeout_s=300)
        assert self.process.returncode == with_code, self.log()

    def log(self) -> str:
        return self.err.read_text()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)


def wait_until(true: Callable[[], bool], explain: Callable[[], str] = str, timeout_s: float = 300) -> None:
    """Look for a third of the time at most: the node that answers is the one that the workers need."""
    deadline = time.monotonic() + timeout_s
    while True:
        looked = time.monotonic()
        if true():
            return
        now = time.monotonic()
        assert now < deadline, f"not within {timeout_s} s; {explain()}"
        time.sleep(min(0.5, max(0.05, 2 * (now - looked))))


@pytest.fixture
def bench(kafka_bootstrap: str, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(kafka_bootstrap, tmp_path)
    yield bench
    for process in bench.workers:
        if process.poll() is None:
            process.kill()
        process.wait()
    bench.group.close()
    if mine := [name for name in bench.admin.list_topics(timeout=300).topics if bench.prefix in name]:
        bench.admin.delete_topics(mine)
