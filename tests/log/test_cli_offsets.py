"""`streamward admin offsets`: where groups stand, and the one way to accept what retention has cut."""

from __future__ import annotations

import time

import confluent_kafka as ck
import pytest
from click.testing import Result
from confluent_kafka import admin

from schemas.events import Coordinates
from streams.kafka.client import client_config
from streams.kafka.offsets import positions
from streams.kafka.producer import Producer
from streams.settings.model import Settings
from tests.support.commands import invoke, rows_of
from tests.support.factories import reward
from tests.support.log.members import member_of

pytestmark = pytest.mark.kafka
METADATA = '{"changelog": 7}'


def run(settings: Settings, *args: str) -> Result:
    return invoke(settings, "admin", "offsets", *args)


def commit(settings: Settings, group: str, at: Coordinates, *offsets: tuple[int, int]) -> None:
    """Commit (partition, offset) of the topic of `at`, with metadata."""
    client = admin.AdminClient(client_config(settings.kafka))
    wanted = [ck.TopicPartition(at.topic, partition, offset, metadata=METADATA) for partition, offset in offsets]
    asked = ck.ConsumerGroupTopicPartitions(settings.topics.prefix + group, wanted)
    deadline = time.monotonic() + 300
    while any(
        tp.error for tp in client.alter_consumer_group_offsets([asked])[asked.group_id].result().topic_partitions
    ):
        assert time.monotonic() < deadline  # the first commit of all makes the topic of commits
        time.sleep(0.1)


@pytest.fixture
def at(made: Settings) -> Coordinates:
    """Where the first of six rewards lay; the first four were cut."""
    found: list[Coordinates] = []
    with Producer(made) as producer:
        for _ in range(6):
            producer.send(reward(task_id="t1"), on_ack=found.append)
    client = admin.AdminClient(client_config(made.kafka))
    for future in client.delete_records([ck.TopicPartition(found[0].topic, found[0].partition, 4)]).values():
        future.result()
    return found[0]


def test_list_tells_lag_and_what_was_cut_of_the_groups_of_this_deployment_only(made: Settings, at: Coordinates) -> None:
    other = (at.partition + 1) % made.topics.partitions
    commit(made, "streams", at, (at.partition, 1), (other, 3))
    commit(made, "policy-p", at, (at.partition, 5))
    commit(made, "agents-adder@p", at, (at.partition, 6))
    commit(made, "somebody", at, (at.partition, 5))
    result = run(made, "list", "--output", "jsonl")
    columns = ("group", "partition", "committed", "first", "next", "lag", "state")
    told = [tuple(row[column] for column in columns) for row in rows_of(result)]
    assert sorted(told) == sorted(
        [
            ("agents-adder@p", at.partition, 6, 4, 6, 0, "ok"),
            ("policy-p", at.partition, 5, 4, 6, 1, "ok"),
            ("streams", at.partition, 1, 4, 6, 2, "cut: 3 records gone"),
            ("streams", other, 3, 0, 0, 0, "beyond the end"),
        ]
    )
    assert "streamward admin offsets skip --group streams" in result.stderr
    table = run(made, "list", "--output", "table").stdout
    assert f"{at.topic}[{at.partition}]" in table and "cut: 3 records gone" in table


def test_skip_commits_the_first_offset_there_is_where_it_was_cut_and_keeps_metadata(
    made: Settings, at: Coordinates
) -> None:
    other = (at.partition + 1) % made.topics.partitions
    commit(made, "scoring", at, (at.partition, 1), (other, 0))
    for arguments, expected in ((["--dry-run"], {at.partition: 1, other: 0}), ([], {at.partition: 4, other: 0})):
        (given_up,) = rows_of(run(made, "skip", "--group", "scoring", *arguments, "--output", "jsonl"))
        assert (given_up["partition"], given_up["committed"], given_up["first"], given_up["gone"]) == (
            at.partition,
            1,
            4,
            3,
        )
        found = positions(made)
        assert {p.partition: p.committed for p in found} == expected
        assert {p.metadata for p in found} == {METADATA}
    again = run(made, "skip", "--group", "scoring", "--output", "jsonl")
    assert rows_of(again) == [] and "Nothing was deleted" in again.stderr
    with member_of(made, "scoring", ["rewards"]) as consumer:  # it reads again, what is left
        deadline = time.monotonic() + 300
        while not (records := consumer.poll()):
            assert time.monotonic() < deadline
    assert records[0].at.offset == 4


def test_skip_is_refused_while_the_group_has_members(made: Settings, at: Coordinates) -> None:
    with member_of(made, "scoring", ["rewards"]) as member:
        deadline = time.monotonic() + 300
        while not member.assignment():
            assert time.monotonic() < deadline
            member.poll()
        member.commit({(at.topic, at.partition): 1})
        result = run(made, "skip", "--group", "scoring")
    assert result.exit_code == 4
    assert "has 1 members" in result.stderr and "Stop them first" in result.stderr
    assert [p.committed for p in positions(made)] == [1]


def test_skip_of_a_trainer_or_of_a_group_that_is_not_there_is_refused(made: Settings, at: Coordinates) -> None:
    commit(made, "trainer-p", at, (at.partition, 1))
    trainer = run(made, "skip", "--group", "trainer-p")
    assert trainer.exit_code == 4
    assert "where its checkpoint says" in trainer.stderr
    unknown = run(made, "skip", "--group", "scroing")
    assert unknown.exit_code == 3 and "groups: trainer-p" in unknown.stderr
