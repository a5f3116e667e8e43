"""The log against a real broker: where records go, what a failed delivery does, and what a reader gets."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

import confluent_kafka as ck
import pytest
from aiokafka.partitioner import DefaultPartitioner
from confluent_kafka import admin
from factories import one_of_each, response, reward, task

from schemas.events import Coordinates, DeadLetter, Message, Response, Reward, Task
from schemas.serde import EncodeError, Poison
from streams import cluster
from streams.errors import EventError, LogError, NotFoundError, SettingsError
from streams.log import Consumer, Producer, Record, Tail, client_config, dead_letter, fetch, key_of, partition_of, read
from streams.settings import Kafka, Settings, Topics
from streams.topics import topics

pytestmark = pytest.mark.kafka


@pytest.fixture
def made(settings: Settings) -> Settings:
    """Settings whose topics exist."""
    cluster.apply_topics(settings)
    return settings


def name(settings: Settings, label: str) -> str:
    return topics(settings.topics)[label].name


def write(settings: Settings, count: int, *, first: int = 0, task_id: str = "t1") -> list[Coordinates]:
    """Write rewards with rising values, all of one task, and return where they lie."""
    found: list[Coordinates] = []
    with Producer(settings) as producer:
        for number in range(first, first + count):
            producer.send(reward(task_id=task_id, value=float(number)), on_ack=found.append)
    return found


def numbers(records: Iterable[Record]) -> list[float | None]:
    found = []
    for record in records:
        event = record.decode(Reward)
        assert not isinstance(event, Poison)
        found.append(event.value)
    return found


def poll(reader: Consumer | Tail, count: int, *, within_s: float = 30) -> list[Record]:
    """Return the next `count` records, or fail."""
    records: list[Record] = []
    deadline = time.monotonic() + within_s
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        records += reader.poll(count - len(records))
    return records


# --- writing ---------------------------------------------------------------------------------------------------------


def test_partition_of_is_where_librdkafka_and_aiokafka_put_a_key(made: Settings) -> None:
    keys = [f"{random.Random(n).getrandbits(8 * (n % 23)):x}" for n in range(300)] + ["Grüße", "世界", ""]
    found: dict[str, int] = {}
    with Producer(made) as producer:
        for key in keys:
            producer.send_bytes(
                name(made, "tasks"),
                key.encode(),
                b"x",
                on_ack=lambda at, key=key: found.update({key: at.partition}),  # type: ignore[misc]
            )
    aiokafka = DefaultPartitioner()
    every = list(range(8))
    assert found == {key: partition_of(key, 8) for key in keys}
    assert found == {key: aiokafka(key.encode(), every, every) for key in keys}
    assert set(found.values()) == set(every)


def test_partition_of_is_where_kafkas_own_client_puts_a_key() -> None:
    # the cases of Kafka's own UtilsTest.testMurmur2, its hashes made positive as Utils.toPositive does
    cases = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "abc": 479470107}
    assert {key: partition_of(key, 2**31) for key in cases} == {key: h & 0x7FFFFFFF for key, h in cases.items()}


def test_every_event_lies_in_its_topic_under_its_key(made: Settings) -> None:
    found: dict[str, Coordinates] = {}
    with Producer(made) as producer:
        for event in one_of_each():
            kind = type(event).__name__
            producer.send(event, on_ack=lambda at, kind=kind: found.update({kind: at}), headers={"h": b"1"})  # type: ignore[misc]
    by_event = {topic.event: topic for topic in topics(made.topics).values()}
    for event in one_of_each():
        at = found[type(event).__name__]
        (record,) = fetch(made, [at]).values()
        assert at.topic == by_event[type(event)].name
        assert (record.key, record.headers) == (key_of(event, by_event[type(event)]), (("h", b"1"),))
        assert record.decode(type(event)) == event


def test_a_record_is_in_the_log_when_flush_returns(made: Settings) -> None:
    producer = Producer(made, linger_ms=1000)
    producer.send(reward())
    producer.flush()
    assert len(list(cluster.read_topic(made, "rewards"))) == 1


def test_a_topic_that_does_not_exist_is_an_error_at_the_next_flush(settings: Settings) -> None:
    hasty = settings.model_copy(update={"kafka": Kafka(bootstrap=settings.kafka.bootstrap, request_timeout_s=1)})
    producer = Producer(hasty)
    with pytest.raises(
        LogError, match=r"the log refused a record for test-\w+\.rewards, key b't1': .*streamward doctor"
    ):
        producer.send(reward())
        producer.flush()


def test_a_malformed_event_never_leaves_the_process(made: Settings) -> None:
    with Producer(made) as producer, pytest.raises(EncodeError, match=r"Reward\.value: expected a finite number"):
        producer.send(reward(value=float("nan")))
    assert list(cluster.read_topic(made, "rewards")) == []


def test_a_prompt_of_ten_megabytes_is_refused_with_its_size_and_the_setting(made: Settings) -> None:
    huge = task(messages=(Message(role="user", content="x" * 10_000_000),))
    with Producer(made) as producer:
        with pytest.raises(
            EventError, match=r"a record of 10000\d\d\d bytes .*at most 4194304.*max_record_bytes"
        ) as no:
            producer.send(huge)
        producer.send(task())
    assert no.value.reason == "too_large"
    assert len(list(cluster.read_topic(made, "tasks"))) == 1


def test_the_largest_record_that_is_let_through_is_taken_and_so_is_its_dead_letter(made: Settings) -> None:
    size = made.topics.max_record_bytes
    payload = random.Random(0).randbytes(size - 2)
    with Producer(made) as producer:
        producer.send_bytes(name(made, "responses"), b"t1", payload)
    (record,) = cluster.read_topic(made, "responses")
    with Producer(made) as producer:
        producer.send(dead_letter(record, stage="advantages", reason="not_avro", error="x"))
    (letter,) = cluster.read_topic(made, "dead-letters")
    assert len(letter.payload or b"") > size
    with Producer(made) as producer, pytest.raises(EventError, match="a record of 4194305 bytes"):
        producer.send_bytes(name(made, "responses"), b"t1", payload + b"x")


def test_many_small_records_fit_where_only_small_ones_are_taken(settings: Settings) -> None:
    # a batch of them is larger than the topic's limit, which Kafka applies to the batch
    small = settings.model_copy(update={"topics": Topics(prefix=settings.topics.prefix, max_record_bytes=1024)})
    cluster.apply_topics(small)
    with Producer(small, linger_ms=200) as producer:
        for _ in range(200):
            producer.send_bytes(name(small, "tasks"), b"k", random.Random(0).randbytes(500))
    assert len(list(cluster.read_topic(small, "tasks"))) == 200


# --- dead letters ----------------------------------------------------------------------------------------------------


def test_a_dead_letter_holds_the_whole_record_and_says_where_it_lay(made: Settings) -> None:
    with Producer(made) as producer:
        producer.send_bytes(name(made, "rewards"), b"\xff\x00", b"\x01no", headers={"who": b"\xfe"}, timestamp_ms=1234)
    (record,) = cluster.read_topic(made, "rewards")
    letter = dead_letter(record, stage="advantages", reason="not_avro", error="expected a Reward")
    assert letter.error == f"{record.at}: expected a Reward"
    assert (letter.source_offset, letter.source_timestamp, letter.created_at) == (0, 1234, 1234)
    assert (letter.key, letter.payload, letter.headers) == ("/wA=", "AW5v", {"who": "/g=="})
    assert dead_letter(record, stage="advantages", reason="not_avro", error="expected a Reward") == letter
    with Producer(made) as producer:
        producer.send(letter)
    (written,) = cluster.read_topic(made, "dead-letters")
    assert (written.key, written.decode(DeadLetter)) == (b"\xff\x00", letter)


# --- following -------------------------------------------------------------------------------------------------------


def test_a_consumer_goes_on_where_it_committed_and_not_where_it_read(made: Settings) -> None:
    (at, *_) = write(made, 10)
    partition = (at.topic, at.partition)
    with Consumer(made, "g", ["rewards"]) as consumer:
        assert numbers(poll(consumer, 10)) == [float(n) for n in range(10)]
        consumer.commit({partition: 4})
        assert consumer.committed([partition, (at.topic, (at.partition + 1) % 8)]) == {
            partition: 4,
            (at.topic, (at.partition + 1) % 8): 0,
        }
    with Consumer(made, "g", ["rewards"]) as consumer:
        assert numbers(poll(consumer, 6)) == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]


def test_a_consumer_without_any_commit_begins_at_offset_0_again(made: Settings) -> None:
    write(made, 3)
    for _ in range(2):
        with Consumer(made, "g", ["rewards"]) as consumer:
            assert numbers(poll(consumer, 3)) == [0.0, 1.0, 2.0]


def test_a_member_is_told_what_it_gains_and_loses(made: Settings) -> None:
    gained: list[list[tuple[str, int]]] = []
    lost: list[list[tuple[str, int]]] = []
    write(made, 1)
    with Consumer(made, "g", ["rewards"], on_assigned=gained.append, on_revoked=lost.append) as consumer:
        poll(consumer, 1)
        every = [(name(made, "rewards"), partition) for partition in range(8)]
        assert sorted(consumer.assignment()) == sorted(gained[0]) == every
    assert sorted(lost[0]) == every


def test_the_same_partition_numbers_of_two_topics_go_to_one_member(made: Settings) -> None:
    with Consumer(made, "g", ["responses", "rewards"]) as one, Consumer(made, "g", ["responses", "rewards"]) as two:
        deadline = time.monotonic() + 30
        while not (len(one.assignment()) == len(two.assignment()) == 8):
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
    with Consumer(settings, "g", ["rewards"]) as one:
        poll(one, 3)
        with Consumer(settings, "g", ["rewards"]) as two:
            deadline = time.monotonic() + 30
            while len(two.assignment()) != 4:
                assert time.monotonic() < deadline
                one.poll(1)
                two.poll(1)
            for member in (one, two):  # only one of them still owns it
                member.commit({(at.topic, at.partition): 2})


def test_a_topic_that_is_missing_is_an_error_and_what_came_with_it_is_not_lost(made: Settings) -> None:
    write(made, 3)
    with Consumer(made, "g", ["rewards"]) as consumer:
        consumer._consumer.subscribe([name(made, "rewards"), "nowhere"])
        records: list[Record] = []
        with pytest.raises(LogError, match=r"nowhere: .*streamward doctor"):
            for _ in range(100):
                records += consumer.poll()
        deadline = time.monotonic() + 30
        while len(records) < 3:
            assert time.monotonic() < deadline
            try:
                records += consumer.poll()
            except LogError:
                continue
        assert numbers(records) == [0.0, 1.0, 2.0]


def test_a_paused_partition_gives_nothing_until_it_is_resumed(made: Settings) -> None:
    (at, *_) = write(made, 1)
    with Consumer(made, "g", ["rewards"]) as consumer:
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
    with Tail(made, starts, ends=ends) as tail:
        records = poll(tail, 8)
        deadline = time.monotonic() + 30
        while not tail.at_end():
            assert time.monotonic() < deadline
            assert tail.poll() == []
        assert tail.position == ends
    assert sorted(record.at for record in records) == sorted([*first[:2], *second])


def test_a_tail_without_bounds_follows(made: Settings) -> None:
    (at, *_) = write(made, 2)
    with Tail(made, {(at.topic, at.partition): 1}) as tail:
        assert numbers(poll(tail, 1)) == [1.0]
        assert not tail.at_end()
        write(made, 1, first=2)
        assert numbers(poll(tail, 1)) == [2.0]
        assert tail.position == {(at.topic, at.partition): 3}


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
    with pytest.raises(LogError, match=r"tasks\[\d\]@1: nothing there"):
        fetch(made, [found[0], marker, found[1]])
    assert [record.at for record in cluster.read_topic(made, "tasks")] == found


# --- the cluster -----------------------------------------------------------------------------------------------------


def test_topics_are_made_once_in_their_shape(settings: Settings) -> None:
    assert set(cluster.apply_topics(settings).values()) == {"created"}
    assert set(cluster.apply_topics(settings).values()) == {"unchanged"}
    existing = cluster.describe(settings)
    assert {label: existing[topic.name] for label, topic in topics(settings.topics).items()} == {
        **dict.fromkeys(("tasks", "responses", "rewards", "group-control"), 8),
        **dict.fromkeys(("groups", "batches", "adapters", "dead-letters"), 4),
    }


def test_a_topic_with_too_few_partitions_is_refused_with_the_way_out(settings: Settings) -> None:
    client = admin.AdminClient(client_config(settings.kafka))
    for future in client.create_topics([admin.NewTopic(name(settings, "rewards"), num_partitions=3)]).values():
        future.result()
    with pytest.raises(SettingsError, match=r"rewards has 3 partitions, expected 8 \(topics\.partitions\)\. The four"):
        cluster.apply_topics(settings)


def test_a_topic_that_is_missing_is_named(settings: Settings) -> None:
    with pytest.raises(NotFoundError, match=r"tasks does not exist; create it with `streamward topics apply`"):
        cluster.check_topics(settings)
    with pytest.raises(NotFoundError, match="does not exist"):
        cluster.offsets(settings, ["rewards"])


def test_offsets_at_a_time_are_those_of_the_first_record_of_that_time_or_later(made: Settings) -> None:
    with Producer(made) as producer:
        for at_ms in (1000, 2000, 3000):
            producer.send_bytes(name(made, "tasks"), b"t1", b"x", timestamp_ms=at_ms)
    tp = (name(made, "tasks"), partition_of("t1", 8))
    empty = (tp[0], (tp[1] + 1) % 8)
    found = cluster.offsets_at(made, ["tasks"], 1500)
    assert (found[tp], found[empty]) == (1, -1)
    assert cluster.offsets_at(made, ["tasks"], 9999)[tp] == -1


def nowhere() -> Settings:
    """Settings of a port where nothing listens."""
    return Settings(kafka=Kafka(bootstrap="127.0.0.1:1", request_timeout_s=0.5))


def test_a_bootstrap_that_does_not_answer_is_an_error_with_the_ways_out(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LogError) as refused:
        cluster.check_topics(nowhere())
    for words in ("Kafka at 127.0.0.1:1 did not answer within 0.5 s", "streamward broker start", "kafka.bootstrap"):
        assert words in str(refused.value)
    assert capfd.readouterr() == ("", "")  # librdkafka would print a line a second


def test_a_producer_without_a_broker_says_what_was_not_written() -> None:
    producer = Producer(nowhere())
    producer.send(reward())
    with pytest.raises(LogError, match=r"1 records were not acknowledged by 127\.0\.0\.1:1 within 0\.5 s"):
        producer.flush(0.5)


def test_committed_offsets_that_cannot_be_asked_are_an_error_with_the_ways_out() -> None:
    with (
        Consumer(nowhere(), "g", ["tasks"]) as consumer,
        pytest.raises(LogError, match=r"Kafka at 127\.0\.0\.1:1 did not answer"),
    ):
        consumer.committed([("streamward.tasks", 0)])


def test_a_tombstone_is_read_as_one(made: Settings) -> None:
    with Producer(made) as producer:
        producer.send_bytes(name(made, "tasks"), b"t1", None)
    (record,) = cluster.read_topic(made, "tasks")
    assert record.payload is None
    assert isinstance(record.decode(Task), Poison)
