"""What the cluster has, and making what is missing, against a real broker."""

from __future__ import annotations

import threading

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from streams.errors import LogError, NotFoundError, SettingsError
from streams.kafka import admin as cluster
from streams.kafka.client import client_config
from streams.kafka.producer import Producer
from streams.kafka.record import partition_of
from streams.kafka.topics import SHAPES, topics
from streams.settings.model import Settings

pytestmark = pytest.mark.kafka


def name(settings: Settings, label: str) -> str:
    return topics(settings.topics)[label].name


def test_topics_are_made_once_in_their_shape(settings: Settings) -> None:
    assert set(cluster.apply_topics(settings).values()) == {"created"}
    assert set(cluster.apply_topics(settings).values()) == {"unchanged"}
    existing = cluster.describe(settings)
    by_key = ("tasks", "responses", "rewards", "group-control", "turns", "trajectories", "curation")
    assert {label: existing[topic.name] for label, topic in topics(settings.topics).items()} == {
        label: 2 if label in by_key else 1 for label in SHAPES
    }


def test_every_new_partition_has_a_leader_that_answers(settings: Settings) -> None:
    many = settings.model_copy(update={"topics": settings.topics.model_copy(update={"partitions": 100})})
    client = admin.AdminClient(client_config(settings.kafka))
    client.list_topics(timeout=300)
    cluster.apply_topics(many)
    asked = {ck.TopicPartition(name(many, "tasks"), partition): admin.OffsetSpec.latest() for partition in range(100)}
    assert {future.result().offset for future in client.list_offsets(asked, request_timeout=60).values()} == {0}


def test_a_topic_with_too_few_partitions_is_refused_with_the_way_out(settings: Settings) -> None:
    client = admin.AdminClient(client_config(settings.kafka))
    for future in client.create_topics([admin.NewTopic(name(settings, "rewards"), num_partitions=3)]).values():
        future.result()
    with pytest.raises(
        SettingsError, match=r"rewards has 3 partitions, expected 2 \(topics\.partitions\)\. The topics"
    ):
        cluster.apply_topics(settings)


def test_a_topic_that_is_missing_is_named(settings: Settings) -> None:
    with pytest.raises(NotFoundError, match=r"tasks does not exist; create it with `streamward admin topics apply`"):
        cluster.check_topics(settings)
    with pytest.raises(NotFoundError, match="does not exist"):
        cluster.offsets(settings, ["rewards"])


def test_a_process_that_starts_waits_for_topics_that_the_broker_does_not_list_yet(settings: Settings) -> None:
    late = threading.Timer(1.0, cluster.apply_topics, [settings])
    late.start()
    cluster.check_topics(settings, patient=True)
    late.join()


def test_offsets_at_a_time_are_those_of_the_first_record_of_that_time_or_later(settings: Settings) -> None:
    made = settings.model_copy(update={"topics": settings.topics.model_copy(update={"retention_days": 0})})
    cluster.apply_topics(made)
    with Producer(made) as producer:
        for at_ms in (1000, 2000, 3000):
            producer.send_bytes(name(made, "tasks"), b"t1", b"x", timestamp_ms=at_ms)
    tp = (name(made, "tasks"), partition_of("t1", made.topics.partitions))
    empty = (tp[0], (tp[1] + 1) % made.topics.partitions)
    found = cluster.offsets_at(made, ["tasks"], 1500)
    assert (found[tp], found[empty]) == (1, -1)
    assert cluster.offsets_at(made, ["tasks"], 9999)[tp] == -1


def test_a_bootstrap_that_does_not_answer_is_an_error_with_the_ways_out(
    nowhere: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LogError) as refused:
        cluster.check_topics(nowhere)
    for words in (
        "Kafka at 127.0.0.1:1 did not answer within 0.5 s",
        "streamward admin broker start",
        "kafka.bootstrap",
    ):
        assert words in str(refused.value)
    assert capfd.readouterr() == ("", "")  # librdkafka would print a line a second
