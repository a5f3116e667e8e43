"""A program of somebody else that has Streamward's schemas, fastavro and confluent-kafka, and no line of ours.

tasks, rewards ──► transactions ──► the log ──► committed records ──► Recount: what is there, by the events alone
"""

from __future__ import annotations

import io
import json
import struct
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import fastavro
from confluent_kafka.admin import AdminClient

SCHEMAS = Path(__file__).parents[3] / "schemas"
FRAME = struct.Struct(">bI")
NAMESPACE = uuid.UUID("b1f8a7c2-5d0e-5c1b-9a53-57e4a3d0c0de")
"""Of docs/clients.md."""
WAIT_S = 60.0

Event = dict[str, Any]
Written = tuple[str, str, bytes]
"""Topic without prefix, key, payload."""


class Codec:
    """Confluent's framing, with the schemas of schemas/lock.json."""

    def __init__(self) -> None:
        entries = json.loads((SCHEMAS / "lock.json").read_text())
        files = {
            entry["id"]: next((SCHEMAS / "avro" / entry["event"]).glob(f"*{entry['version']}.avsc"))
            for entry in entries
        }
        self._by_id = {number: fastavro.parse_schema(json.loads(file.read_text())) for number, file in files.items()}
        self._newest = {entry["event"]: entry["id"] for entry in entries}  # appended to, so the last is the newest

    def encode(self, kind: str, event: Event) -> bytes:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, self._by_id[self._newest[kind]], event)
        return FRAME.pack(0, self._newest[kind]) + body.getvalue()

    def decode(self, payload: bytes) -> Event:
        _, number = FRAME.unpack_from(payload)
        event = fastavro.schemaless_reader(io.BytesIO(payload[FRAME.size :]), self._by_id[number], None)
        assert isinstance(event, dict)
        return event


CODEC = Codec()


def task(text: str, **fields: Any) -> Written:
    """Return a task of two answers, which this program scores."""
    now_ms = int(time.time() * 1000)
    event = {
        "task_id": str(uuid.uuid4()),
        "created_at": now_ms,
        "policy": "default",
        "purpose": "train",
        "group_size": 2,
        "sampling": {"max_tokens": 8},
        "verifier": json.dumps({"answer": "4"}),
        "reward_sources": [{"name": "exact"}],
        "messages": [{"role": "user", "content": text}],
    }
    return "tasks", event["task_id"], CODEC.encode("Task", event | fields)  # type: ignore[return-value]


def reward(response: Event, value: float) -> Written:
    """Return the score of an answer."""
    event = {
        "reward_id": str(uuid.uuid5(NAMESPACE, f"{response['response_id']}\x1fexact")),
        "response_id": response["response_id"],
        "task_id": response["task_id"],
        "created_at": int(time.time() * 1000),
        "policy": response["policy"],
        "slot": response["slot"],
        "source": "exact",
        "value": value,
        "scorer_version": "1",
    }
    return "rewards", response["task_id"], CODEC.encode("Reward", event)


class ForeignProgram:
    """One producer of transactions, and a reader of committed records."""

    def __init__(self, bootstrap: str, prefix: str, name: str) -> None:
        self._bootstrap, self._prefix = {"bootstrap.servers": bootstrap, "log_level": 0}, prefix
        self._producer = ck.Producer(
            {**self._bootstrap, "transactional.id": prefix + name, "partitioner": "murmur2_random"}
        )
        self._producer.init_transactions(WAIT_S)

    def begin(self, written: Iterable[Written]) -> None:
        """Write records in a transaction that stays open."""
        self._producer.begin_transaction()
        for label, key, payload in written:
            self._producer.produce(self._prefix + label, payload, key)
        assert self._producer.flush(WAIT_S) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)

    def read(self, label: str) -> list[Event]:
        """Return every committed event of a topic, partition by partition."""
        admin = AdminClient(self._bootstrap)
        topic = self._prefix + label
        partitions = [ck.TopicPartition(topic, number, ck.OFFSET_BEGINNING) for number in self._numbers(admin, topic)]
        config = {**self._bootstrap, "group.id": "foreign", "enable.partition.eof": True}
        consumer = ck.Consumer({**config, "isolation.level": "read_committed"})
        consumer.assign(partitions)
        events: list[Event] = []
        open_partitions = len(partitions)
        while open_partitions:
            message = consumer.poll(WAIT_S)
            if message.error() is None:
                events.append(CODEC.decode(message.value()))
            else:
                assert message.error().code() == ck.KafkaError._PARTITION_EOF, message.error()
                open_partitions -= 1
        consumer.close()
        return events

    @staticmethod
    def _numbers(admin: AdminClient, topic: str) -> Iterable[int]:
        return admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions

    def recount(self) -> dict[str, int]:
        """Return what the log comes to. Raises AssertionError for a group that its parts do not explain."""
        tasks = {event["task_id"]: event for event in self.read("tasks")}
        answers = {event["response_id"]: event for event in self.read("responses")}
        scores: dict[str, dict[str, float]] = defaultdict(dict)
        for event in self.read("rewards"):
            scores[event["response_id"]].setdefault(event["source"], event["value"])
        groups = self.read("groups")
        assert len({group["task_id"] for group in groups}) == len(groups)
        for group in groups:
            weights = {source["name"]: source["weight"] for source in tasks[group["task_id"]]["reward_sources"]}
            for member in group["responses"]:
                assert answers[member["response_id"]]["task_id"] == group["task_id"]
                expected = sum(weight * scores[member["response_id"]][name] for name, weight in weights.items())
                assert abs(member["reward"] - expected) < 1e-9
        return {
            "tasks": len(tasks),
            "responses": len(answers),
            "rewards": sum(map(len, scores.values())),
            "groups": len(groups),
        }
