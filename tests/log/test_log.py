"""Writing to a real broker: where records go, and what becomes of one that cannot be delivered."""

from __future__ import annotations

import random
import time

import confluent_kafka as ck
import pytest
from aiokafka.partitioner import DefaultPartitioner

from schemas.events import Coordinates, DeadLetter, Message, Task
from schemas.serde import EncodeError, Poison, encode
from streams.errors import EventError, LogError
from streams.kafka import admin
from streams.kafka.producer import Producer, _Sent
from streams.kafka.reader import fetch
from streams.kafka.record import dead_letter, key_of, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Kafka, Settings
from tests.support.factories import one_of_each, reward, task

pytestmark = pytest.mark.kafka


def name(settings: Settings, label: str) -> str:
    return topics(settings.topics)[label].name


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
    every = list(range(made.topics.partitions))
    assert found == {key: partition_of(key, len(every)) for key in keys}
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
    assert len(list(admin.read_topic(made, "rewards"))) == 1


def test_a_record_that_is_acknowledged_without_its_offset_is_found_in_the_log_or_sent_again(made: Settings) -> None:
    topic, now_ms = name(made, "rewards"), int(time.time() * 1000)
    written: list[Coordinates] = []
    with Producer(made) as producer:
        for payload in (b"one", b"two", b"three"):
            producer.send_bytes((topic, 0), b"k", payload, on_ack=written.append, timestamp_ms=now_ms)
    settled: dict[bytes, Coordinates] = {}
    with Producer(made) as producer:
        for payload in (b"two", b"never"):
            sent = _Sent(topic, 0, b"k", payload, [], now_ms, lambda at, p=payload: settled.update({p: at}))  # type: ignore[misc]
            # as librdkafka reports a batch that it takes for written because the next one was
            producer._delivered(
                sent, None, ck.Message(topic, 0, ck.OFFSET_INVALID, b"k", payload, timestamp=(1, now_ms))
            )
    assert settled == {b"two": written[1], b"never": Coordinates(topic, 0, 3)}
    assert [record.payload for record in admin.read_topic(made, "rewards")] == [b"one", b"two", b"three", b"never"]


def test_a_topic_that_does_not_exist_is_an_error_at_the_next_flush(settings: Settings) -> None:
    hasty = settings.model_copy(update={"kafka": Kafka(bootstrap=settings.kafka.bootstrap, request_timeout_s=1)})
    producer = Producer(hasty)
    with pytest.raises(
        LogError, match=r"the log refused a record for test-[\w-]+\.rewards, key b't1': .*streamward doctor"
    ):
        producer.send(reward())
        producer.flush()


def test_a_malformed_event_never_leaves_the_process(made: Settings) -> None:
    with Producer(made) as producer, pytest.raises(EncodeError, match=r"Reward\.value: expected a finite number"):
        producer.send(reward(value=float("nan")))
    assert list(admin.read_topic(made, "rewards")) == []


def test_a_prompt_of_ten_megabytes_is_refused_with_its_size_and_the_setting(made: Settings) -> None:
    huge = task(messages=(Message(role="user", content="x" * 10_000_000),))
    with Producer(made) as producer:
        with pytest.raises(
            EventError, match=r"a record of 10000\d\d\d bytes .*at most 4194304.*max_record_bytes"
        ) as no:
            producer.send(huge)
        producer.send(task())
    assert no.value.reason == "too_large"
    assert len(list(admin.read_topic(made, "tasks"))) == 1


def test_the_largest_record_that_is_let_through_is_taken_and_so_is_its_dead_letter(made: Settings) -> None:
    size = made.topics.max_record_bytes
    payload = random.Random(0).randbytes(size - 2)
    with Producer(made) as producer:
        producer.send_bytes(name(made, "responses"), b"t1", payload)
    (record,) = admin.read_topic(made, "responses")
    with Producer(made) as producer:
        producer.send(dead_letter(record, stage="advantages", reason="not_avro", error="x"))
    (letter,) = admin.read_topic(made, "dead-letters")
    assert len(letter.payload or b"") > size
    with Producer(made) as producer, pytest.raises(EventError, match="a record of 4194305 bytes"):
        producer.send_bytes(name(made, "responses"), b"t1", payload + b"x")


def test_many_small_records_fit_where_only_small_ones_are_taken(settings: Settings) -> None:
    # a batch of them is larger than the topic's limit, which Kafka applies to the batch
    small = settings.model_copy(update={"topics": settings.topics.model_copy(update={"max_record_bytes": 1024})})
    admin.apply_topics(small)
    with Producer(small, linger_ms=200) as producer:
        for _ in range(200):
            producer.send_bytes(name(small, "tasks"), b"k", random.Random(0).randbytes(500))
    assert len(list(admin.read_topic(small, "tasks"))) == 200


def test_a_producer_without_a_broker_says_what_was_not_written(nowhere: Settings) -> None:
    producer = Producer(nowhere)
    producer.send(reward())
    with pytest.raises(LogError, match=r"1 records were not acknowledged by 127\.0\.0\.1:1 within 0\.5 s"):
        producer.flush(0.5)


# --- dead letters ----------------------------------------------------------------------------------------------------


def test_a_dead_letter_holds_the_whole_record_and_says_where_it_lay(settings: Settings) -> None:
    made = settings.model_copy(update={"topics": settings.topics.model_copy(update={"retention_days": 0})})
    admin.apply_topics(made)
    with Producer(made) as producer:
        producer.send_bytes(name(made, "rewards"), b"\xff\x00", b"\x01no", headers={"who": b"\xfe"}, timestamp_ms=1234)
    (record,) = admin.read_topic(made, "rewards")
    letter = dead_letter(record, stage="advantages", reason="not_avro", error="expected a Reward")
    assert letter.error == f"{record.at}: expected a Reward"
    assert (letter.source_offset, letter.source_timestamp, letter.created_at) == (0, 1234, 1234)
    assert (letter.key, letter.payload, letter.headers) == ("/wA=", "AW5v", {"who": "/g=="})
    assert dead_letter(record, stage="advantages", reason="not_avro", error="expected a Reward") == letter
    with Producer(made) as producer:
        producer.send(letter)
    (written,) = admin.read_topic(made, "dead-letters")
    assert (written.key, written.decode(DeadLetter)) == (b"\xff\x00", letter)


def test_a_tombstone_is_read_as_one(made: Settings) -> None:
    with Producer(made) as producer:
        producer.send_bytes(name(made, "tasks"), b"t1", None)
    (record,) = admin.read_topic(made, "tasks")
    assert record.payload is None
    assert isinstance(record.decode(Task), Poison)


def test_a_record_from_the_future_is_refused_with_a_word_about_the_clock(made: Settings) -> None:
    tomorrow_ms = int(time.time() * 1000) + 86_400_000
    producer = Producer(made)
    producer.send_bytes(topics(made.topics)["tasks"].name, b"t1", encode(task()), timestamp_ms=tomorrow_ms)
    with pytest.raises(LogError, match="clock"):
        producer.flush()
