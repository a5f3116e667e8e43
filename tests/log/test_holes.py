"""Topics of which compaction has removed records in the middle, and others were deleted in front: every reader passes
the holes, with both drivers, and its lag becomes 0."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from streams.kafka import admin as cluster, times
from streams.kafka.client import client_config
from streams.kafka.topics import topics
from streams.settings.model import Settings
from tests.support.commands import invoke, rows_of
from tests.support.log.archived import ONE, held, in_the_log, name, of, run, settings, write
from tests.support.log.join_bench import Bench, bench, wait_until
from tests.support.log.join_worker import PARTITIONS

__all__ = ["bench", "settings"]
pytestmark = pytest.mark.kafka

COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.0"}


def set_on(client: admin.AdminClient, kind: admin.ConfigResource.Type, name: str, values: Mapping[str, str]) -> None:
    """Set these values of a topic or a broker, and return once the node has them."""
    entries = [
        admin.ConfigEntry(key, value, incremental_operation=admin.AlterConfigOpType.SET)
        for key, value in values.items()
    ]
    resource = admin.ConfigResource(kind, name, incremental_configs=entries)
    for future in client.incremental_alter_configs([resource]).values():
        future.result()

    def is_set() -> bool:
        (described,) = client.describe_configs([admin.ConfigResource(kind, name)]).values()
        return all(described.result()[key].value == value for key, value in values.items())

    wait_until(is_set)
    time.sleep(0.1)  # its metadata have them a moment before its logs do


@pytest.fixture
def cleaner(kafka_bootstrap: str) -> Iterator[admin.AdminClient]:
    """A client of the node, whose log cleaner looks for work at once and not every 15 s."""
    client = admin.AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    set_on(client, admin.ConfigResource.Type.BROKER, "1", {"log.cleaner.backoff.ms": "200"})
    yield client
    set_on(client, admin.ConfigResource.Type.BROKER, "1", {"log.cleaner.backoff.ms": "15000"})


@pytest.mark.parametrize("driver", ["faust", "loop"])
def test_a_worker_passes_compacted_and_deleted_ranges(bench: Bench, cleaner: admin.AdminClient, driver: str) -> None:
    questions, answers = bench.prefix + "questions", bench.prefix + "answers"
    for i in range(12):
        bench.send("answers", f"old{i}", {"slot": "0"})
    bench.producer.flush()
    cut = [ck.TopicPartition(answers, p, end) for p, end in enumerate(bench.ends(answers))]
    for future in bench.admin.delete_records(cut).values():
        future.result()
    for _ in range(3):
        for i in range(20):
            bench.send("questions", f"g{i}", {})
    bench.producer.flush()
    set_on(cleaner, admin.ConfigResource.Type.TOPIC, questions, COMPACTED)
    for i in range(20):
        bench.send_group(f"g{i}")  # into a new segment: the old one can be compacted now
    bench.producer.flush()
    written = sum(bench.ends(questions))
    wait_until(lambda: len(bench.records(questions)) < written)
    worker = bench.start(driver=driver, JOIN_STUCK_S="5")
    wait_until(lambda: bench.lag() == 0, worker.log)
    time.sleep(6)  # longer than it may be stuck
    assert worker.process.poll() is None
    worker.stop()
    worker.ends(with_code=0)
    assert bench.joined() == {group: [joined] for group, joined in bench.expected().items()}
    assert len(bench.joined()) == 20 and len(cut) == PARTITIONS


def test_tools_read_a_topic_with_compacted_and_deleted_ranges(made: Settings, cleaner: admin.AdminClient) -> None:
    for _ in range(3):
        write(made, 5)
    client = admin.AdminClient(client_config(made.kafka))
    set_on(client, admin.ConfigResource.Type.TOPIC, name(made), {**COMPACTED, "cleanup.policy": "compact,delete"})
    (deleted,) = client.delete_records([ck.TopicPartition(name(made), ONE, 2)]).values()
    deleted.result()
    write(made, 5)
    wait_until(lambda: len(in_the_log(made)) < 18)
    there = [record.at.offset for record in in_the_log(made)]
    assert cluster.offsets(made, ["rewards"])[name(made), ONE] == (2, 20)

    tailed = times.tail(made, [topics(made.topics)["rewards"]], times.parse_begin("start"), until_end=True)
    assert sorted(each.record.at.offset for each in tailed) == there

    def offsets() -> list[int]:
        return [
            row["_offset"] for row in rows_of(invoke(made, "query", "SELECT _offset FROM rewards ORDER BY _offset"))
        ]

    assert offsets() == there
    assert run(made, "sync", "rewards").exit_code == run(made, "verify").exit_code == 0
    write(made, 3, first=70)
    there += [20, 21, 22]
    assert offsets() == there
    assert [record.at.offset for record in held(of(made, "auto"))] == there
    (finding, *_) = [row for row in json.loads(invoke_doctor(made)) if "is compacted" in row["what"]]
    assert "which leaves gaps in the offsets" in finding["what"]


def invoke_doctor(settings: Settings) -> str:
    """Return what doctor finds, as a JSON list; it ends with the code of the worst."""
    rows = invoke(settings, "doctor", "--output", "jsonl").stdout.splitlines()
    return f"[{','.join(rows)}]"
