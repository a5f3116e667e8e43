"""Records that somebody made to stop the loop, which they would stop again after every restart: it continues.

    hostile records in six topics, then a good task ──► policy, scoring, streams ──► a whole group
                                                  └──► audit, events tail, admin archive sync and restore

Whoever may write to one topic must not be able to end what reads it. Every topic has one partition here, so whoever
comes to the good task has passed all that is bad. The topics take records of 1 MiB, which keeps the bad ones small.

Not covered: records that are only useless (tests/pipeline/test_bad_input.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import NamedTuple

import confluent_kafka as ck
import pytest
from click.testing import Result

from schemas.events import AdapterEvent, AdvantagedGroup, Coordinates, DeadLetter
from schemas.serde import encode
from streams.kafka import admin as cluster, times
from streams.kafka.client import client_config
from streams.kafka.headers import LEFT_OUT
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.replay import driver
from tests.support.commands import invoke
from tests.support.factories import response, reward, task, trained
from tests.support.log import raw_header
from tests.support.log.shared_node import own_prefix
from tests.support.processes import READERS, by_another_writer, read, records, running, until

pytestmark = pytest.mark.kafka

LOOP = ("streams", "scoring", "policy")
ANSWER = '{"answer": "11"}'
LARGE = b"x" * 6 * 1024 * 1024
"""Compressed, this is a few KB, and passes a broker whose topics take 1 MiB."""
LONG_ID = "i" * 490_000
"""As long as an id can be, of which there is one in the key and one in the payload."""

FLOOD, PARTS = 40, {f"{number:0150}": 0.5 for number in range(200)}
"""Rewards, and the components of each: together more than a record takes."""


class Hostile(NamedTuple):
    """The log after the processes met everything hostile."""

    settings: Settings
    large: dict[str, Coordinates]
    """The coordinates of a record that is too large for a dead letter, by the topic's label."""
    odd: dict[str, Coordinates]
    """The same for a record with a header whose name is not UTF-8."""
    long: Coordinates
    """The coordinates of a response whose task, which does not exist, has a very long id."""

    def letters(self, at: Coordinates) -> dict[str, DeadLetter]:
        """Return the dead letters about a record, by their stage."""
        found = [letter for _, letter in read(self.settings, DeadLetter)]
        return {
            letter.stage: letter
            for letter in found
            if (letter.source_topic, letter.source_partition, letter.source_offset) == at
        }

    def run(self, *arguments: str) -> Result:
        """Run a command on this log."""
        return invoke(self.settings, *arguments)


@pytest.fixture(scope="module")
def hostile(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    folder = tmp_path_factory.mktemp("hostile")
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap": kafka_bootstrap},
            "topics": {
                "prefix": own_prefix(), "partitions": 1, "policy_partitions": 1, "max_record_bytes": 1024 * 1024,
            },
            "archive": {"store": str(folder / "archive")},
            "policy": {"engine": "scripted", "script": '{"accuracy": 0.5}'},
        }
    )  # fmt: skip
    cluster.apply_topics(settings)
    found = Hostile(settings, large=written_large(settings), odd=written_odd(settings), long=written_long(settings))
    with Producer(settings) as producer:
        for number in range(FLOOD):
            producer.send(reward(task_id="flooded", source=f"stranger-{number}", components=PARTS))
        producer.send(trained(2**31 - 1))
        producer.send_bytes(
            topics(settings.topics)["adapters"].name, b"default", by_another_writer(trained(1), version=-3)
        )
        producer.send(task(task_id="good", verifier=ANSWER))
    with running(settings, folder, *LOOP):
        until(lambda: {"odd", "good"} <= grouped(settings), "a group for each good task", folder=folder)
        until(lambda: not unnamed(found), "a dead letter for each bad record", folder=folder)
        until(lambda: has_refused_a_version(settings), "a dead letter for version -3", folder=folder)
    yield found


def written_large(settings: Settings) -> dict[str, Coordinates]:
    """Write a record to each topic that is too large, and passes."""
    at: dict[str, Coordinates] = {}
    careless = ck.Producer(
        {**client_config(settings.kafka), "message.max.bytes": 2 * len(LARGE), "compression.type": "lz4"}
    )
    for label in READERS:
        careless.produce(
            topics(settings.topics)[label].name,
            LARGE,
            b"key",
            on_delivery=lambda _, message, label=label: at.update(  # type: ignore[misc]
                {label: Coordinates(message.topic(), message.partition(), message.offset())}
            ),
        )
    assert careless.flush(20) == 0
    assert set(at) == set(READERS)
    return at


def written_odd(settings: Settings) -> dict[str, Coordinates]:
    """Write to each topic a record that is no event, and to `tasks` a good one, each with a header that is not text."""
    named = topics(settings.topics)

    def put(label: str, key: bytes, payload: bytes) -> Coordinates:
        return raw_header.write(settings.kafka.bootstrap, (named[label].name, 0), key, payload, times.now_ms())

    at = {label: put(label, b"key", b"no event") for label in READERS}
    put("tasks", b"odd", encode(task(task_id="odd", verifier=ANSWER)))
    return at


def written_long(settings: Settings) -> Coordinates:
    """Write a response to a task that does not exist."""
    at: list[Coordinates] = []
    with Producer(settings) as producer:
        producer.send(response(task_id=LONG_ID, sampling_id="s"), on_ack=at.append)
    return at[0]


def grouped(settings: Settings) -> set[str]:
    """Return the tasks that have a group."""
    return {group.task_id for _, group in read(settings, AdvantagedGroup)}


def has_refused_a_version(settings: Settings) -> bool:
    """Return whether there is a dead letter about the version below 0, so that the one before it was read too."""
    return any(letter.reason == "contradictory" for _, letter in read(settings, DeadLetter))


def unnamed(hostile: Hostile) -> set[Coordinates]:
    """Return the coordinates of each record whose dead letter is still missing."""
    wanted = [(at[label], stage) for at in (hostile.large, hostile.odd) for label, stage in READERS.items()]
    return {at for at, stage in [*wanted, (hostile.long, "scoring")] if stage not in hostile.letters(at)}


# --- records that are too large for a dead letter ---------------------------------------------------------------------


@pytest.mark.parametrize("label", READERS)
def test_a_record_too_large_for_a_dead_letter_is_named_by_its_digests(hostile: Hostile, label: str) -> None:
    letter = hostile.letters(hostile.large[label])[READERS[label]]
    assert (letter.reason, letter.key, letter.payload, letter.headers) == ("not_avro", None, None, {})
    assert letter.payload_sha256 == hashlib.sha256(LARGE).hexdigest()
    assert (letter.payload_bytes, letter.key_sha256) == (len(LARGE), hashlib.sha256(b"key").hexdigest())


def test_an_error_that_quotes_a_long_id_is_cut(hostile: Hostile) -> None:
    letter = hostile.letters(hostile.long)["scoring"]
    assert letter.reason == "unknown_task"
    assert letter.error.endswith(" letters)") and len(letter.error) < 2100
    assert letter.key_sha256 == hashlib.sha256(LONG_ID.encode()).hexdigest()


def test_the_batch_driver_writes_the_same_dead_letters_byte_for_byte(hostile: Hostile) -> None:
    name = topics(hostile.settings.topics)["dead-letters"].name
    again = {made.payload for made in driver.join_encoded(hostile.settings, processes=1) if made.topic == name}
    live = {record.payload for record, letter in read(hostile.settings, DeadLetter) if letter.stage == "advantages"}
    assert again == live


# --- more than a group may remember -----------------------------------------------------------------------------------


def test_a_flood_about_one_task_is_refused_and_ends_nothing(hostile: Hostile) -> None:
    letters = [letter for _, letter in read(hostile.settings, DeadLetter) if letter.reason == "over_quota"]
    refused = sorted(letter.source_offset for letter in letters)
    assert 20 < len(refused) < FLOOD
    assert refused == list(range(refused[0], refused[0] + len(refused)))


# --- versions that no batch made --------------------------------------------------------------------------------------


def test_a_version_that_no_batch_made_is_never_promoted(hostile: Hostile) -> None:
    letters = [letter for _, letter in read(hostile.settings, DeadLetter) if letter.reason == "contradictory"]
    assert [("version is -3" in letter.error, letter.stage) for letter in letters] == [(True, "rollouts")]
    assert {event.kind for _, event in read(hostile.settings, AdapterEvent)} == {"trained"}


# --- headers whose names are not text ---------------------------------------------------------------------------------


@pytest.mark.parametrize("label", READERS)
def test_a_dead_letter_says_that_the_headers_of_its_record_were_left_out(hostile: Hostile, label: str) -> None:
    letter = hostile.letters(hostile.odd[label])[READERS[label]]
    assert letter.headers == {name: "" for name, _ in LEFT_OUT}


def test_a_good_task_with_a_header_that_is_not_text_is_answered_and_scored(hostile: Hostile) -> None:
    (group,) = (group for _, group in read(hostile.settings, AdvantagedGroup) if group.task_id == "odd")
    assert group.complete and len(group.responses) == 4


def test_the_log_is_followed_audited_archived_and_restored_with_a_count_of_headers_left_out(hostile: Hostile) -> None:
    tail = hostile.run("events", "tail", "tasks", "--from", "start", "-n", "4")
    assert (tail.exit_code, len(tail.stdout.splitlines())) == (1, 4), tail.output  # 1: two are no events
    audit = json.loads(hostile.run("audit").stdout)
    assert {found["at"].partition("@")[0] for kind in ("lost", "doubled", "phantom") for found in audit[kind]} == {
        f"{topics(hostile.settings.topics)['adapters'].name}[0]"  # the version that no batch made, and nothing else
    }
    assert audit["headers_left_out"] == len(READERS) + 1
    labels, prefix = ("tasks", "responses", "adapters"), f"restored-{hostile.settings.topics.prefix}"
    synced = hostile.run("admin", "archive", "sync", *labels)
    assert synced.exit_code == 0, synced.output
    count = len(labels) + 1
    assert f"{count} of them are kept without headers" in synced.stderr
    restored = hostile.run("admin", "archive", "restore", *labels, "--into-prefix", prefix)
    assert restored.exit_code == 0, restored.output
    assert f"{count} of these records have no headers" in restored.stderr
    into = hostile.settings.model_copy(update={"topics": hostile.settings.topics.model_copy(update={"prefix": prefix})})
    for label in labels:
        before = [record[1:] for record in records(hostile.settings, label)]
        assert [record[1:] for record in records(into, label)] == before
        assert any(headers == LEFT_OUT for *_, headers in before)
