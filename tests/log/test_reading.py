"""Reading from a real broker: as a member of a group, and by offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from schemas.events import Coordinates, Response, Reward
from schemas.serde import Poison
from streams.errors import LogError
from streams.kafka import (
    admin as cluster,
    client as client_module,
    consumer as consumer_module,
    reader as reader_module,
)
from streams.kafka.client import client_config
from streams.kafka.consumer import GroupConsumer, OnAssignment
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader, fetch, read
from streams.kafka.record import Record, TopicPartition
from streams.kafka.retry import BrokerOutage, StoppedReading
from streams.kafka.topics import topics
from streams.settings.model import Settings
from tests.support import processes
from tests.support.factories import response, reward
from tests.support.log.members import member_of

pytestmark = pytest.mark.kafka


def name(settings: Settings, label: str) -> str:
    return topics(settings.topics)[label].name


def write(settings: Settings, count: int, *, first: int = 0, task_id: str = "t1") -> list[Coordinates]:
    """Write rewards with rising values, all of one task, and return where they lie."""
    values = range(first, first + count)
    return processes.write(settings, *(reward(task_id=task_id, value=float(value)) for value in values))


def numbers(records: Iterable[Record]) -> list[float | None]:
    found = []
    for record in records:
        event = record.decode(Reward)
        assert not isinstance(event, Poison)
        found.append(event.value)
    return found


def poll(reader: GroupConsumer | PartitionReader, count: int, *, within_s: float = 30) -> list[Record]:
    """Return the next `count` records, or fail."""
    records: list[Record] = []
    deadline = time.monotonic() + within_s
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        records += reader.poll(count - len(records))
    return records


def sees(settings: Settings, label: str, wanted: bool) -> None:
    """Return once the broker knows the topic, or does not know it any more."""
    deadline = time.monotonic() + 300
    while (name(settings, label) in cluster.describe(settings)) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- following -------------------------------------------------------------------------------------------------------


def test_a_consumer_goes_on_where_it_committed_and_not_where_it_read(made: Settings) -> None:
    (at, *_) = write(made, 10)
    partition = (at.topic, at.partition)
    with member_of(made, "g", ["rewards"]) as consumer:
        assert numbers(poll(consumer, 10)) == [float(n) for n in range(10)]
        consumer.commit({partition: 4})
        other = (at.topic, (at.partition + 1) % made.topics.partitions)
        assert consumer.committed([partition, other]) == {partition: 4, other: 0}
    with member_of(made, "g", ["rewards"]) as consumer:
        assert numbers(poll(consumer, 6)) == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]


def test_a_consumer_without_any_commit_begins_at_offset_0_again(made: Settings) -> None:
    write(made, 3)
    for _ in range(2):
        with member_of(made, "g", ["rewards"]) as consumer:
            assert numbers(poll(consumer, 3)) == [0.0, 1.0, 2.0]


def test_a_member_is_told_what_it_gains_and_loses(made: Settings) -> None:
    gained: list[list[tuple[str, int]]] = []
    lost: list[list[tuple[str, int]]] = []
    write(made, 1)
    on_assignment = OnAssignment(gained=gained.append, revoked=lost.append)
    with member_of(made, "g", ["rewards"], on_assignment) as consumer:
        poll(consumer, 1)
        every = [(name(made, "rewards"), partition) for partition in range(made.topics.partitions)]
        assert sorted(consumer.assignment()) == sorted(gained[0]) == every
    assert sorted(lost[0]) == every


def test_the_same_partition_numbers_of_two_topics_go_to_one_member(made: Settings) -> None:
    with (
        member_of(made, "g", ["responses", "rewards"]) as one,
        member_of(made, "g", ["responses", "rewards"]) as two,
    ):
        deadline = time.monotonic() + 300
        while not (len(one.assignment()) == len(two.assignment()) == made.topics.partitions):
            assert time.monotonic() < deadline
            one.poll(1)
            two.poll(1)
        for member in (one, two):
            held = {label: {p for topic, p in member.assignment() if topic == name(made, label)} for label in
                    ("responses", "rewards")}  # fmt: skip
            assert held["responses"] == held["rewards"]


def test_a_commit_for_a_lost_partition_says_nothing_and_changes_nothing(made: Settings) -> None:
    (at, *_) = write(made, 3)
    settings = made.model_copy(update={"kafka": made.kafka.model_copy(update={"session_timeout_s": 6.0})})
    with member_of(settings, "g", ["rewards"]) as one:
        poll(one, 3)
        with member_of(settings, "g", ["rewards"]) as two:
            deadline = time.monotonic() + 300
            while len(two.assignment()) != made.topics.partitions // 2:
                assert time.monotonic() < deadline
                one.poll(1)
                two.poll(1)
            for member in (one, two):  # only one of them still owns it
                member.commit({(at.topic, at.partition): 2})


def test_a_topic_that_the_broker_does_not_know_for_a_moment_is_followed_again(
    made: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a broker was just started; here the topic is made anew, which no client can tell from that."""
    monkeypatch.setattr(client_module, "METADATA_S", 1)
    client, topic = admin.AdminClient(client_config(made.kafka)), name(made, "rewards")
    with member_of(made, "g", ["rewards"]) as consumer:

        def sees(wanted: bool) -> None:
            deadline = time.monotonic() + 300
            while bool(consumer.assignment()) != wanted:
                assert time.monotonic() < deadline
                consumer.poll()

        sees(True)
        write(made, 1)
        poll(consumer, 1)
        for _ in range(10):  # every partition has found its place
            consumer.poll()
        client.delete_topics([topic])[topic].result()
        sees(False)
        assert topic not in cluster.describe(made)
        cluster.apply_topics(made)
        sees(True)


class TooLate(GroupConsumer):
    """Is given partitions of a topic that the broker does not know any more when it begins to read them."""

    is_first = True

    def _begin(self, tps: list[TopicPartition]) -> None:
        if self.is_first:
            client, topic = admin.AdminClient(client_config(self._settings.kafka)), name(self._settings, "rewards")
            client.delete_topics([topic])[topic].result()
        self.is_first = False
        super()._begin(tps)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_topic_unknown_where_reading_begins_is_no_offset_that_retention_has_cut(
    made: Settings, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """With nothing committed, librdkafka asks for the first offset, and calls it a reset that there is none.

    Or it is quicker to hear that the topic is gone, and says that.
    """
    monkeypatch.setattr(consumer_module, "MISSING_S", 2.0)
    with TooLate(made, "g", ["rewards"], BrokerOutage(made.kafka, threading.Event())) as consumer:
        deadline = time.monotonic() + 300
        while consumer.is_first:
            assert time.monotonic() < deadline
            assert consumer.poll() == []
        if comes_back:
            sees(made, "rewards", False)
            cluster.apply_topics(made)
            sees(made, "rewards", True)
            monkeypatch.setattr(consumer_module, "MISSING_S", 0.0)
            write(made, 2)
            assert numbers(poll(consumer, 2)) == [0.0, 1.0]
            return
        with pytest.raises(LogError, match=r"Unknown topic or partition.*streamward doctor"):
            poll(consumer, 1)


def test_a_topic_that_is_missing_is_an_error_and_what_came_with_it_is_not_lost(
    made: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "MISSING_S", 0.5)
    write(made, 3)
    with member_of(made, "g", ["rewards"]) as consumer:
        consumer._consumer.subscribe([name(made, "rewards"), "nowhere"], on_assign=consumer._on_assign)
        records: list[Record] = []
        with pytest.raises(LogError, match=r"nowhere: .*streamward doctor"):
            for _ in range(100):
                records += consumer.poll()
        deadline = time.monotonic() + 300
        while len(records) < 3:
            assert time.monotonic() < deadline
            try:
                records += consumer.poll()
            except LogError:
                continue
        assert numbers(records) == [0.0, 1.0, 2.0]


def test_a_paused_partition_gives_nothing_until_it_is_resumed(made: Settings) -> None:
    (at, *_) = write(made, 1)
    with member_of(made, "g", ["rewards"]) as consumer:
        poll(consumer, 1)
        consumer.pause([(at.topic, at.partition)])
        write(made, 1, first=1)
        assert [consumer.poll() for _ in range(5)] == [[]] * 5
        consumer.resume([(at.topic, at.partition)])
        assert numbers(poll(consumer, 1)) == [1.0]


# --- reading a range -------------------------------------------------------------------------------------------------


def test_a_range_is_read_exactly_and_what_comes_later_is_not(made: Settings) -> None:
    (at, *_) = write(made, 10)
    partition = (at.topic, at.partition)
    reading = read(made, {partition: 3}, {partition: 7})
    assert numbers([next(reading)]) == [3.0]
    write(made, 5, first=10)
    assert numbers(reading) == [4.0, 5.0, 6.0]


def test_an_empty_range_ends_at_once(made: Settings) -> None:
    (at, *_) = write(made, 2)
    assert list(read(made, {(at.topic, at.partition): 2}, {(at.topic, at.partition): 2})) == []
    assert list(read(made, {}, {})) == []


def test_several_partitions_are_read_each_to_its_own_bound(made: Settings) -> None:
    first, second = write(made, 6, task_id="t1"), write(made, 6, task_id="t2")
    assert first[0].partition != second[0].partition
    starts = {(at.topic, at.partition): 0 for at in (first[0], second[0])}
    ends = dict(zip(starts, (2, 6), strict=True))
    with PartitionReader(made, starts, ends=ends) as tail:
        records = poll(tail, 8)
        deadline = time.monotonic() + 300
        while not tail.at_end():
            assert time.monotonic() < deadline
            assert tail.poll() == []
        assert tail.position == ends
    assert sorted(record.at for record in records) == sorted([*first[:2], *second])


def test_what_was_behind_a_bound_is_read_once_the_bound_is_further(made: Settings) -> None:
    # the reader met a record beyond its bound; assigned again, it must not stay where it was told to fetch no more
    written = write(made, 6)
    tp = (written[0].topic, written[0].partition)
    with PartitionReader(made, {tp: 0}, ends={tp: 2}) as reader:
        assert numbers(poll(reader, 2)) == [0, 1]
        assert reader.poll() == []
        reader.assign({tp: 2}, {tp: 6})
        assert numbers(poll(reader, 4)) == [2, 3, 4, 5]


def test_a_tail_without_bounds_follows(made: Settings) -> None:
    (at, *_) = write(made, 2)
    with PartitionReader(made, {(at.topic, at.partition): 1}) as tail:
        assert numbers(poll(tail, 1)) == [1.0]
        assert not tail.at_end()
        write(made, 1, first=2)
        assert numbers(poll(tail, 1)) == [2.0]
        assert tail.position == {(at.topic, at.partition): 3}


def test_a_client_that_fetches_nothing_more_is_replaced_and_no_record_is_lost_or_doubled(
    made: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (at, *_) = write(made, 2)
    with PartitionReader(made, {at[:2]: 0}) as tail:
        assert numbers(poll(tail, 2)) == [0, 1]
        tail._consumer.pause([ck.TopicPartition(*at[:2])])  # as one that stalls: all is answered, nothing comes
        monkeypatch.setattr(reader_module, "STALL_S", 1.0)
        write(made, 3, first=2)
        assert numbers(poll(tail, 3)) == [2, 3, 4]
        assert tail.position == {at[:2]: 5}
        assert f"{at._replace(offset=2)} did not come" in caplog.text


def test_a_client_that_waits_at_the_end_is_not_replaced(
    made: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (at, *_) = write(made, 2)
    with PartitionReader(made, {at[:2]: 0}) as tail:
        assert numbers(poll(tail, 2)) == [0, 1]
        monkeypatch.setattr(reader_module, "STALL_S", 0.0)
        assert [tail.poll(timeout_s=0.05) for _ in range(5)] == [[]] * 5
    assert "did not come" not in caplog.text


@pytest.fixture
def without_brokers(made: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[[client_module.LostBrokers], None]:
    """Return what makes a client get no answer, as one that dropped its brokers; each is looked at in every poll."""
    monkeypatch.setattr(client_module, "LOST_S", 0.0)
    nowhere = made.kafka.model_copy(update={"bootstrap": "127.0.0.1:1"})

    def drop(brokers: client_module.LostBrokers) -> None:
        brokers._own = client_module.consumer(nowhere, {"group.id": "lost"})

    return drop


def test_a_reader_whose_client_has_lost_its_brokers_reads_on_with_a_new_one(
    made: Settings, without_brokers: Callable[[client_module.LostBrokers], None], caplog: pytest.LogCaptureFixture
) -> None:
    (at, *_) = write(made, 2)
    with PartitionReader(made, {at[:2]: 0}) as tail:
        assert numbers(poll(tail, 2)) == [0, 1]
        assert tail.poll(timeout_s=0.05) == []
        assert "reading on" not in caplog.text
        lost = tail._consumer
        without_brokers(tail._brokers)
        assert tail.poll(timeout_s=0.05) == []
        assert "has lost its brokers" in caplog.text
        assert tail._consumer is not lost
        write(made, 1, first=2)
        assert numbers(poll(tail, 1)) == [2]


def test_a_group_member_or_producer_whose_client_has_lost_its_brokers_ends_its_process(
    made: Settings, without_brokers: Callable[[client_module.LostBrokers], None]
) -> None:
    expected = r"one of this process gets no answer: it has lost its brokers.*start this process again"
    outage = BrokerOutage(made.kafka, threading.Event())
    with GroupConsumer(made, "lost", ["rewards"], outage) as member:
        without_brokers(member._brokers)
        with pytest.raises(LogError, match=expected):
            poll(member, 1)
    with Producer(made, outage=outage) as producer:
        without_brokers(producer._brokers)
        with pytest.raises(LogError, match=expected):
            producer._report(1, 1)


def test_a_group_member_with_a_new_client_looks_at_the_brokers_of_that_one(
    made: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(made, 1)
    monkeypatch.setattr(client_module, "LOST_S", 0.0)
    with GroupConsumer(made, "renewed", ["rewards"], BrokerOutage(made.kafka, threading.Event())) as member:
        member._renew()
        member._look_for_brokers()  # the former client is closed, and would raise
        assert numbers(poll(member, 1)) == [0]


def test_a_long_read_ends_when_the_process_should_stop(made: Settings) -> None:
    at = write(made, 1500)  # more than one poll returns
    tp, stop = at[0][:2], threading.Event()
    reading = read(made, {tp: 0}, {tp: 1500}, outage=BrokerOutage(made.kafka, stop))
    next(reading)
    stop.set()
    seen = 1
    with pytest.raises(StoppedReading, match=r"stopping while \S*rewards is read"):
        for _ in reading:
            seen += 1
    assert seen < 1500


def test_reading_a_range_commits_nothing(made: Settings, kafka_bootstrap: str) -> None:
    (at, *_) = write(made, 2)
    list(read(made, {(at.topic, at.partition): 0}, {(at.topic, at.partition): 2}))
    client = admin.AdminClient(client_config(made.kafka))
    groups = client.list_consumer_groups().result().valid
    assert [group.group_id for group in groups if group.group_id.startswith(made.topics.prefix)] == []


def test_an_offset_that_retention_has_cut_is_an_error_with_the_way_out(made: Settings) -> None:
    (at, *_) = write(made, 5)
    client = admin.AdminClient(client_config(made.kafka))  # its futures end only while it lives
    for future in client.delete_records([ck.TopicPartition(at.topic, at.partition, 3)]).values():
        future.result()
    assert cluster.offsets(made, ["rewards"])[at.topic, at.partition] == (3, 5)
    with pytest.raises(
        LogError, match=rf"rewards\[{at.partition}\]: the offset asked for is gone: .*Retention has cut"
    ):
        list(read(made, {(at.topic, at.partition): 1}, {(at.topic, at.partition): 5}))
    assert numbers(read(made, {(at.topic, at.partition): 3}, {(at.topic, at.partition): 5})) == [3.0, 4.0]


def test_records_are_fetched_by_their_coordinates(made: Settings) -> None:
    rewards = write(made, 6)
    answers: list[Coordinates] = []
    with Producer(made) as producer:
        producer.send(response(), on_ack=answers.append)
    found = fetch(made, [rewards[4], answers[0], rewards[1], rewards[4]])
    assert found.keys() == {rewards[1], rewards[4], answers[0]}
    assert numbers([found[rewards[1]], found[rewards[4]]]) == [1.0, 4.0]
    assert found[answers[0]].decode(Response) == response()
    assert fetch(made, []) == {}


def test_coordinates_where_nothing_lies_are_named(made: Settings) -> None:
    # the marker that ends a transaction takes an offset, and is no record
    config = {**client_config(made.kafka), "transactional.id": made.topics.prefix, "partitioner": "murmur2_random"}
    writer = ck.Producer(config)
    writer.init_transactions(30)
    found: list[Coordinates] = []
    for _ in range(2):
        writer.begin_transaction()
        writer.produce(
            name(made, "tasks"),
            b"x",
            b"t1",
            on_delivery=lambda _, m: found.append(Coordinates(m.topic(), m.partition(), m.offset())),
        )
        writer.commit_transaction(30)
    marker = found[0]._replace(offset=found[0].offset + 1)
    with pytest.raises(LogError, match=r"tasks\[\d\]@1: no such record"):
        fetch(made, [found[0], marker, found[1]])
    assert [record.at for record in cluster.read_topic(made, "tasks")] == found
