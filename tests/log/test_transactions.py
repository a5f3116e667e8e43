"""What other programs leave in topics of ours: transactions, aborted and open ones too, and impossible record times."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import confluent_kafka as ck
import pytest
from click.testing import Result
from confluent_kafka import admin as config
from confluent_kafka.admin import AdminClient

from schemas.events import Coordinates
from streams.errors import LogError
from streams.kafka import admin, times
from streams.kafka.offsets import positions
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader, read
from streams.kafka.record import TopicPartition
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import NEWEST, topics
from streams.kafka.tracked import TrackedConsumer
from streams.kafka.transactions import unread_offsets
from streams.settings.model import Settings
from streams.tools import doctor
from streams.tools.archive.history import ArchiveHistory
from tests.support.commands import invoke
from tests.support.factories import reward
from tests.support.log.transactions import Transactions
from tests.support.processes import until, write

pytestmark = pytest.mark.kafka

RECORD = (b"k", b"of somebody else")


class Partition(NamedTuple):
    """One of ours, and somebody who writes transactions into it."""

    tp: TopicPartition
    foreign: Transactions

    def write(self, settings: Settings, count: int) -> list[int]:
        """Write rewards, and return their offsets."""
        coordinates = write(settings, *(reward(task_id="t1", value=float(number)) for number in range(count)))
        assert {at[:2] for at in coordinates} == {self.tp}
        return [at.offset for at in coordinates]


@pytest.fixture
def partition(made: Settings) -> Iterator[Partition]:
    at = place_of(made)
    foreign = Transactions(made.kafka.bootstrap, at)
    yield Partition(at, foreign)
    foreign.close()


def place_of(settings: Settings) -> TopicPartition:
    """Return the partition of rewards that has those of task t1, and empty it."""
    coordinates: list[Coordinates] = []
    with Producer(settings) as producer:
        producer.send(reward(task_id="t1"), on_ack=coordinates.append)
    (at,) = coordinates
    client = AdminClient({"bootstrap.servers": settings.kafka.bootstrap, "log_level": 0})
    for future in client.delete_records([ck.TopicPartition(*at[:2], 1)]).values():
        future.result()
    return at[:2]


def tail(settings: Settings) -> list[int]:
    """Return the offsets that `events tail rewards --until-end` shows."""
    records = times.tail(settings, [topics(settings.topics)["rewards"]], times.parse_begin("start"), until_end=True)
    return [tailed.record.at.offset for tailed in records]


def test_an_aborted_transaction_at_the_end_keeps_no_reader_waiting(made: Settings, partition: Partition) -> None:
    ours = partition.write(made, 2)
    partition.foreign.abort(RECORD, RECORD)
    first, end = admin.offsets(made, ["rewards"])[partition.tp]
    assert (first, end) == (1, 6)  # two records, two that nobody gets, and the marker
    assert tail(made) == ours
    assert [record.at.offset for record in read(made, {partition.tp: first}, {partition.tp: end})] == ours


def test_a_partition_ends_where_an_open_transaction_begins_and_goes_on_when_it_ends(
    made: Settings, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    before = partition.write(made, 2)
    partition.foreign.begin(RECORD)
    behind = partition.write(made, 1)
    assert admin.offsets(made, ["rewards"])[partition.tp] == (1, 3)
    assert tail(made) == before
    caplog.clear()  # of what said so before
    with PartitionReader(made, {partition.tp: 1}) as reader:
        records = []
        deadline = time.monotonic() + 300
        while "a transaction is open" not in caplog.text:
            assert time.monotonic() < deadline
            records += reader.poll()
        assert f"{partition.tp[0]}[{partition.tp[1]}]@3: a transaction is open from here on" in caplog.text
        assert [record.at.offset for record in records] == before and reader.end(partition.tp) == 3
        partition.foreign.end(commit=False)
        while len(records) < 3:
            assert time.monotonic() < deadline
            records += reader.poll()
    assert [record.at.offset for record in records] == before + behind == tail(made)


def test_a_group_is_done_with_a_partition_that_ends_with_markers(made: Settings, partition: Partition) -> None:
    # committed up to the last record alone, four offsets would lag for ever, and a worker would take itself for stuck
    (offset,) = partition.write(made, 1)
    partition.foreign.abort(RECORD)
    partition.foreign.abort(RECORD)
    _, end = admin.offsets(made, ["rewards"])[partition.tp]
    assert end > offset + 1
    with Producer(made) as producer:
        outage = BrokerOutage(made.kafka, threading.Event())
        consumer = TrackedConsumer(made, "scoring", "rewards", producer, outage, max_open=10)
        deadline, taken = time.monotonic() + 300, []
        while committed(made, partition.tp) != end:
            assert time.monotonic() < deadline
            for record in consumer.poll():
                consumer.done(record)
                taken.append(record.record.at.offset)
            consumer.commit()
        assert taken == [offset] and consumer.open == 0
        consumer.close()
    assert all(position.lag == 0 for position in positions(made))


def test_what_is_open_holds_back_the_commit_past_markers_behind_it(made: Settings, partition: Partition) -> None:
    (offset,) = partition.write(made, 1)
    partition.foreign.abort(RECORD)
    with Producer(made) as producer:
        outage = BrokerOutage(made.kafka, threading.Event())
        consumer = TrackedConsumer(made, "scoring", "rewards", producer, outage, max_open=10)
        deadline, taken = time.monotonic() + 300, []
        while not taken:
            assert time.monotonic() < deadline
            taken += consumer.poll()
        until = time.monotonic() + 2
        while time.monotonic() < until:
            consumer.poll()
            consumer.commit()
        assert committed(made, partition.tp) is None
        consumer.done(taken[0])
        while committed(made, partition.tp) != offset + 3:
            assert time.monotonic() < deadline
            consumer.poll()
            consumer.commit()
        consumer.close()


def committed(settings: Settings, tp: TopicPartition) -> int | None:
    """Return what the group has committed."""
    return next((at.committed for at in positions(settings) if (at.topic, at.partition) == tp), None)


def test_doctor_names_the_partition_and_the_producer_of_an_open_transaction(
    made: Settings, partition: Partition
) -> None:
    assert [*doctor._open_transactions(made)] == []
    partition.foreign.begin(RECORD)
    (finding,) = doctor._open_transactions(made)
    partition.foreign.end(commit=True)
    assert re.fullmatch(
        rf"{re.escape(partition.tp[0])}\[{partition.tp[1]}\]@1: producer \d+ \(epoch \d+\) has a transaction open from "
        r"here on, since 20.*: no record from there on is read yet",
        finding.what,
    )
    assert finding.state == "warning" and [*doctor._open_transactions(made)] == []


def test_archive_sync_says_that_a_topic_has_holes_and_restore_makes_them_again(
    made: Settings, partition: Partition
) -> None:
    offsets = partition.write(made, 2)
    partition.foreign.abort(RECORD)
    offsets += partition.write(made, 1)
    partition.foreign.commit(RECORD)
    partition.foreign.abort(RECORD, RECORD)

    def archive(*arguments: str) -> Result:
        return invoke(made, "admin", "archive", *arguments)

    result = archive("sync", "rewards")
    assert result.exit_code == 0 and "4 records archived" in result.stderr, result.output
    assert "; 6 offsets hold no record (transactions, or compaction)" in result.stderr
    assert archive("sync", "rewards").exit_code == archive("verify").exit_code == 0
    history = ArchiveHistory(made)
    before = admin.offsets(made, ["rewards"])
    assert history.bounds(["rewards"])[partition.tp] == before[partition.tp] == (1, 11)
    archived = [*history.read({partition.tp: 1}, {partition.tp: 11})]
    assert [record.at.offset for record in archived] == [*offsets, 6]
    result = archive("restore", "rewards", "--into-prefix", made.topics.prefix + "again.")
    assert result.exit_code == 0 and "4 records are restored" in result.stderr, result.output
    assert "6 offsets between them hold no record, as before" in result.stderr
    again = made.model_copy(update={"topics": made.topics.model_copy(update={"prefix": made.topics.prefix + "again."})})
    tp = (topics(again.topics)["rewards"].name, partition.tp[1])
    assert admin.offsets(again, ["rewards"])[tp] == (1, 11)
    assert [(record.at.offset, *record[1:]) for record in read(again, {tp: 1}, {tp: 11})] == [
        (record.at.offset, *record[1:]) for record in archived
    ]
    assert unread_offsets(again.kafka, tp, [range(1, 11)]) >= {3, 4, 7, 8, 9, 10}
    result = archive("restore", "rewards", "--into-prefix", again.topics.prefix)
    assert result.exit_code == 0 and "nothing was changed" in result.stderr


def test_a_record_whose_time_is_in_seconds_is_named_where_it_is_read(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    # for ever kept: no time is refused, as retention deletes nothing
    made = settings.model_copy(update={"topics": settings.topics.model_copy(update={"retention_days": 0})})
    admin.apply_topics(made)
    tp = place_of(made)
    with Producer(made) as producer:
        for timestamp_ms in (int(time.time() * 1000), int(time.time())):
            producer.send_bytes(tp, b"k", b"a record", timestamp_ms=timestamp_ms)
    first, end = admin.offsets(made, ["rewards"])[tp]
    assert len([*read(made, {tp: first}, {tp: end})]) == end - first
    (line,) = [record.getMessage() for record in caplog.records if "its record time is" in record.getMessage()]
    assert line.startswith(f"{Coordinates(*tp, end - 1)}: its record time is 1")


@pytest.mark.parametrize("unit", ["seconds", "an old day", "tomorrow"])
def test_a_record_whose_time_is_far_from_the_clock_is_refused_and_its_producer_told(made: Settings, unit: str) -> None:
    now_s = int(time.time())
    timestamp_ms = {"seconds": now_s, "an old day": (now_s - 40 * 86_400) * 1000, "tomorrow": (now_s + 86_400) * 1000}
    with (
        pytest.raises(LogError, match=r"Invalid timestamp.*clock right.*older than its retention"),
        Producer(made) as p,
    ):
        p.send_bytes(topics(made.topics)["rewards"].name, b"k", b"a record", timestamp_ms=timestamp_ms[unit])
    assert all(low == high for low, high in admin.offsets(made, ["rewards"]).values())


def test_a_record_from_the_future_is_named_where_a_topic_takes_it(
    made: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    tp = place_of(made)
    entry = config.ConfigEntry(NEWEST, str(2**62), incremental_operation=config.AlterConfigOpType.SET)
    resource = config.ConfigResource(config.ConfigResource.Type.TOPIC, tp[0], incremental_configs=[entry])
    client = admin.connected(made)
    for future in client.incremental_alter_configs([resource]).values():
        future.result()

    def findings() -> list[doctor.DoctorFinding]:
        return [finding for finding in doctor._topics(made) if NEWEST in finding.what]

    until(findings, "the broker that answers has the setting of the topic")
    assert [finding.state for finding in findings()] == ["warning"]
    with Producer(made) as producer:
        producer.send_bytes(tp, b"k", b"a record", timestamp_ms=int(time.time() * 1_000_000))
    assert len([*read(made, {tp: 1}, {tp: 2})]) == 1
    assert f"{Coordinates(*tp, 1)}: its record time is" in caplog.text
    assert "more than an hour ahead of this machine's clock" in caplog.text


def test_status_names_the_partition_and_the_producer_of_an_open_transaction(
    made: Settings, partition: Partition
) -> None:
    partition.foreign.begin(RECORD)
    shown = invoke(made, "status")
    (row,) = json.loads(invoke(made, "status", "--output", "json").stdout)["open_transactions"]
    partition.foreign.end(commit=True)
    assert (row["topic"], row["partition"], row["offset"]) == (*partition.tp, 1)
    assert row["what"] in shown.stdout and f"producer {row['producer_id']} (epoch " in row["what"]
    assert json.loads(invoke(made, "status", "--output", "json").stdout)["open_transactions"] == []


COMMANDS = (
    ("audit",),
    ("query", "SELECT count(*) FROM rewards"),
    ("admin", "archive", "sync", "rewards"),
    ("events", "tail", "rewards", "--from", "start", "--until-end"),
    ("export", "e", "--format", "prompts"),
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_a_command_says_what_it_did_not_read_behind_an_open_transaction(
    made: Settings, partition: Partition, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    partition.foreign.begin(RECORD)
    shown = invoke(made, *arguments)
    partition.foreign.end(commit=True)
    topic, number = partition.tp
    assert shown.stderr.count(f"{topic}[{number}]@1: a transaction is open from here on") == 1, shown.stderr


def test_a_file_that_is_submitted_again_says_first_what_it_cannot_know(made: Settings, tmp_path: Path) -> None:
    at = (topics(made.topics)["tasks"].name, 0)
    foreign = Transactions(made.kafka.bootstrap, at)
    foreign.begin(RECORD)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "2 + 2 =", "answer": 4, "purpose": "eval"}\n')
    shown = invoke(made, "tasks", "submit", str(tmp_path / "tasks.jsonl"))
    foreign.end(commit=False)
    foreign.close()
    assert f"{at[0]}[0]@0: a transaction is open from here on" in shown.stderr
