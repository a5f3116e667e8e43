"""What retention has cut under a reader stops it loudly: how many records, and the choice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from schemas.events import Coordinates
from streams.errors import LogError
from streams.kafka.client import client_config
from streams.kafka.consumer import GroupConsumer
from streams.kafka.producer import Producer
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.scoring import scoring_agent as scoring
from tests.support import processes
from tests.support.factories import reward
from tests.support.log.members import member_of

pytestmark = pytest.mark.kafka


def write(settings: Settings, count: int) -> Coordinates:
    """Write rewards of one task; return where the first lies."""
    return processes.write(settings, *(reward(task_id="t1") for _ in range(count)))[0]


def cut(settings: Settings, at: Coordinates, before: int) -> None:
    """Delete every record of the partition before an offset, as retention does."""
    client = admin.AdminClient(client_config(settings.kafka))
    for future in client.delete_records([ck.TopicPartition(at.topic, at.partition, before)]).values():
        future.result()


def commit(settings: Settings, group: str, at: Coordinates, offset: int) -> None:
    client = admin.AdminClient(client_config(settings.kafka))
    offsets = [ck.TopicPartition(at.topic, at.partition, offset)]
    asked = ck.ConsumerGroupTopicPartitions(settings.topics.prefix + group, offsets)
    deadline = time.monotonic() + 300
    while any(
        tp.error for tp in client.alter_consumer_group_offsets([asked])[asked.group_id].result().topic_partitions
    ):
        assert time.monotonic() < deadline  # the first commit of all makes the topic of commits
        time.sleep(0.1)


def until(consumer: GroupConsumer, holds: Callable[[list[Record]], bool]) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + 300
    while not holds(records):
        assert time.monotonic() < deadline, f"{len(records)} records came"
        records += consumer.poll()
    return records


def test_a_commit_that_retention_has_cut_is_an_error_that_counts_the_loss_and_names_the_choice(made: Settings) -> None:
    at = write(made, 5)
    commit(made, "g", at, 1)
    cut(made, at, 4)
    expected = (
        rf"{at.topic}\[{at.partition}\]: group {made.topics.prefix}g has committed 1, but the first record "
        r"has offset 4: retention has cut 3 .*Restore them, or accept .*`streamward admin offsets skip --group g`"
    )
    for _ in range(2):  # to start again does not lose them in silence
        with member_of(made, "g", ["rewards"]) as consumer, pytest.raises(LogError, match=expected):
            until(consumer, lambda records: bool(records))


def test_what_retention_cuts_before_a_reader_that_lags_is_an_error_too(made: Settings) -> None:
    at = write(made, 2)
    with member_of(made, "g", ["rewards"]) as consumer:
        until(consumer, lambda records: len(records) == 2)
        consumer.pause([(at.topic, at.partition)])
        write(made, 6)
        cut(made, at, 7)
        consumer.resume([(at.topic, at.partition)])
        with pytest.raises(LogError, match=rf"\[{at.partition}\]: .*is at 2, .* has offset 7: retention has cut 5 "):
            until(consumer, lambda records: bool(records))


def test_a_commit_beyond_the_end_is_an_error(made: Settings) -> None:
    at = write(made, 2)
    commit(made, "g", at, 3)
    with (
        member_of(made, "g", ["rewards"]) as consumer,
        pytest.raises(LogError, match=r"has committed 3, but the partition ends at 2\. The topic was recreated"),
    ):
        until(consumer, lambda records: bool(records))


def test_a_group_without_a_commit_begins_with_the_first_record_there_is(made: Settings) -> None:
    at = write(made, 5)
    cut(made, at, 3)
    with member_of(made, "g", ["rewards"]) as consumer:
        assert [record.at.offset for record in until(consumer, lambda records: len(records) == 2)] == [3, 4]


def test_a_group_that_has_read_all_that_was_cut_goes_on(made: Settings) -> None:
    at = write(made, 5)
    commit(made, "g", at, 5)
    cut(made, at, 5)
    with member_of(made, "g", ["rewards"]) as consumer:
        while not consumer.assignment():
            consumer.poll()
        write(made, 1)
        assert [record.at.offset for record in until(consumer, lambda records: bool(records))] == [5]


def test_an_agent_whose_responses_were_cut_ends_with_that_error(made: Settings) -> None:
    at = write(made, 4)._replace(topic=topics(made.topics)["responses"].name)
    with Producer(made) as producer:  # no response at all, and yet records that the agent should have read
        for _ in range(3):
            producer.send_bytes(at.topic, b"t1", b"x")
    commit(made, scoring.STAGE, at, 1)
    cut(made, at, 2)
    with pytest.raises(LogError, match=r"retention has cut 1 .* --group scoring`"):
        scoring.run(made, stop=threading.Event())
