"""Dead letters in a real log: looked at, redriven and dropped, each once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from click.testing import Result
from confluent_kafka.admin import AdminClient

from schemas import serde
from schemas.events import Coordinates, DeadLetter, Event, derive_id
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.record import Record, dead_letter, encoded, key_of, partition_of
from streams.kafka.topics import topic_of, topics
from streams.settings.model import Kafka, Settings, Topics
from streams.tools.dead_letters.letters import RedriveTarget, decision, load
from streams.tools.dead_letters.redrive import RETRY_HEADER, STALE_S, RedriveOrder, decide
from tests.support.commands import invoke, rows_of
from tests.support.factories import response, task
from tests.support.log.shared_node import own_prefix

pytestmark = pytest.mark.kafka


def run(settings: Settings, *args: str) -> Result:
    return invoke(settings, "admin", "dlq", *args)


MARK: dict[tuple[str, int], int] = {}
"""Where the test at hand began, in topics that several share; what lies before is not its own."""


@pytest.fixture(scope="module")
def shared(kafka_bootstrap: str) -> Settings:
    """Settings whose topics most of these tests share: a producer takes half a second to find new ones."""
    settings = Settings(kafka=Kafka(bootstrap=kafka_bootstrap), topics=Topics(prefix=own_prefix()))
    admin.apply_topics(settings)
    return settings


@pytest.fixture
def made(shared: Settings) -> Settings:
    """Shared topics, in which only what comes from now on counts. Letters are named, never `--all-matching`."""
    MARK.update({tp: end for tp, (_, end) in admin.offsets(shared, ["tasks", "responses", "dead-letters"]).items()})
    return shared


@pytest.fixture
def alone(settings: Settings) -> Settings:
    """Topics of this test's own."""
    admin.apply_topics(settings)
    return settings


def own(at: Coordinates) -> bool:
    return at.offset >= MARK.get((at.topic, at.partition), 0)


def records(settings: Settings, label: str) -> list[Record]:
    return [record for record in admin.read_topic(settings, label) if own(record.at)]


def listed(settings: Settings, *args: str) -> list[dict[str, Any]]:
    letters = {str(letter.at): letter for letter in load(settings).matching()}
    return [row for row in rows_of(run(settings, "list", *args)) if own(letters[row["at"]].at)]


@pytest.fixture(scope="module", autouse=True)
def writer(kafka_bootstrap: str) -> Iterator[Producer]:
    """The one producer of these tests: a new one takes half a second to begin."""
    with Producer(Settings(kafka=Kafka(bootstrap=kafka_bootstrap))) as producer:
        WRITER.append(producer)
        yield producer
        WRITER.clear()


WRITER: list[Producer] = []


def put(
    settings: Settings,
    label: str,
    key: bytes | None,
    payload: bytes | None,
    *,
    headers: dict[str, bytes] | None = None,
    timestamp_ms: int = 0,
    partition: int = -1,
) -> Record:
    """Write bytes, and return the record they became."""
    where: list[Coordinates] = []
    timestamp_ms = timestamp_ms or int(time.time() * 1000)
    WRITER[0].send_bytes(
        (topics(settings.topics)[label].name, partition),
        key,
        payload,
        on_ack=where.append,
        headers=headers,
        timestamp_ms=timestamp_ms,
    )
    WRITER[0].flush()
    return Record(where[0], timestamp_ms, key, payload, tuple((headers or {}).items()))


def put_event(settings: Settings, event: Event, **more: Any) -> Record:
    topic = topic_of(type(event), settings.topics)
    return put(settings, topic.label, key_of(event, topic), serde.encode(event), **more)


def bury(settings: Settings, record: Record, *, stage: str = "scoring", reason: str = "unknown_task") -> str:
    """Write the dead letter of a record, as a stage does, and return its id."""
    letter = dead_letter(record, stage=stage, reason=reason, error="it cannot be used")
    put_event(settings, letter)
    return letter.dead_letter_id


def buried(settings: Settings, event: Event | None = None, **how: Any) -> tuple[Record, str]:
    """Write an event and its dead letter."""
    record = put_event(settings, event or response(), headers={"trace": b"\x00\x01"})
    return record, bury(settings, record, **how)


def claimed(settings: Settings, record: Record, *, age_s: float) -> None:
    """Write the claim of a retry that came no further."""
    (letter,) = (found for found in load(settings).matching() if found.source == record.at)
    now_ms = int((time.time() - age_s) * 1000)
    end = admin.offsets(settings, ["responses"])[record.at.topic, record.at.partition][1]
    claim = decision(
        letter, "retried", 1, "redriven by mina", now_ms=now_ms, target=RedriveTarget(record.at.partition, end)
    )
    put_event(settings, claim, timestamp_ms=now_ms)


# --- list and show ----------------------------------------------------------------------------------------------------


def test_list_prints_open_letters_newest_last_and_filters_them(alone: Settings) -> None:
    _, first = buried(alone, task())
    _, second = buried(alone, response(), reason="late", stage="advantages")
    _, third = buried(alone, task(task_id="t2"), stage="policy")

    assert [(row["letter"], row["state"]) for row in rows_of(run(alone, "list"))] == [
        (letter, "open") for letter in (first, second, third)
    ]
    for filters, expected in {
        ("--reason", "late"): [second],
        ("--stage", "policy"): [third],
        ("--topic", "tasks"): [first, third],
        ("--since", "2100-01-01"): [],
        ("--limit", "1"): [third],
    }.items():
        assert [row["letter"] for row in rows_of(run(alone, "list", *filters))] == expected, filters


def test_a_table_has_one_line_a_letter(alone: Settings) -> None:
    record, letter = buried(alone)
    header, line = run(alone, "list", "--output", "table").stdout.splitlines()
    assert header.split() == ["letter", "when", "stage", "reason", "source", "state", "error"]
    assert line.split()[0] == letter[:8]
    assert str(record.at) in line


def test_show_decodes_what_can_be_decoded(made: Settings) -> None:
    event = response(text="eleven")
    record, letter = buried(made, event)
    (shown,) = rows_of(run(made, "show", letter[:6]))
    assert shown["payload"]["event"]["text"] == "eleven"
    assert shown["key"] == event.task_id
    assert shown["headers"] == {"trace": repr(b"\x00\x01")}
    assert rows_of(run(made, "show", f"responses[{record.at.partition}]@{record.at.offset}")) == [shown]
    assert '"text": "eleven"' in run(made, "show", letter, "--output", "table").stdout


def test_show_dumps_what_cannot_be_decoded_and_gives_the_bytes_back(made: Settings, tmp_path: Path) -> None:
    junk = b"\x1b[31m" + bytes(range(256)) * 20
    letter = bury(made, put(made, "tasks", b"t1", junk), stage="advantages", reason="not_avro")
    shown = run(made, "show", letter, "--output", "table").stdout
    assert "00000000  1b 5b 33 31 6d 00 01 02  03 04 05 06 07 08 09 0a  |.[31m" in shown
    assert "\x1b" not in shown
    assert "--raw FILE" in shown
    assert run(made, "show", letter, "--raw", "-").stdout_bytes == junk
    assert run(made, "show", letter, "--raw", str(tmp_path / "payload")).exit_code == 0
    assert (tmp_path / "payload").read_bytes() == junk


def test_show_has_the_fields_before_the_damage(made: Settings) -> None:
    cut_short = serde.encode(task(task_id="t9"))[:-3]
    letter = bury(made, put(made, "tasks", b"t9", cut_short), stage="advantages", reason="undecodable")
    (shown,) = rows_of(run(made, "show", letter))
    assert shown["payload"]["poison"]["reason"] == "undecodable"
    fields = shown["payload"]["fields"]
    assert (fields["task_id"], fields["group_size"]) == ("t9", 4) and "messages" not in fields
    table = run(made, "show", letter, "--output", "table").stdout
    assert "fields that can be read" in table and '"t9"' in table and "00000000  " in table


def test_what_is_named_wrongly_is_told_apart_from_what_is_not_there(made: Settings) -> None:
    for code, *arguments in (
        (3, "show", "123456"),
        (2, "show", "12345"),
        (3, "list", "--topic", "taks"),
        (2, "list", "--since", "-20"),
        (2, "drop"),
        (2, "drop", "123456", "--all-matching"),
        (2, "drop", "123456", "--reason", "late"),
    ):
        assert run(made, *arguments).exit_code == code, arguments


def test_a_record_of_the_topic_that_is_no_letter_is_passed_over_with_its_coordinates(alone: Settings) -> None:
    junk = put(alone, "dead-letters", b"t1", b"junk")
    _, letter = buried(alone)
    result = run(alone, "list")
    assert [row["letter"] for row in rows_of(result)] == [letter]
    assert f"{junk.at}" in result.stderr


# --- retry ------------------------------------------------------------------------------------------------------------


def test_a_retried_record_keeps_key_payload_headers_and_partition(made: Settings) -> None:
    record, letter = buried(made)
    (outcome,) = rows_of(run(made, "retry", letter, "--why", "the task was submitted late"))
    assert outcome["result"] == "retried"

    before, back = records(made, "responses")
    assert before == record
    assert (back.key, back.payload, back.at.partition) == (record.key, record.payload, record.at.partition)
    assert str(back.at) == outcome["at"]
    headers = dict(back.headers)
    assert headers.pop(RETRY_HEADER) == derive_id("dlq", *record.at, 1).encode()
    assert headers == dict(record.headers)
    assert listed(made) == []
    assert [row["state"] for row in listed(made, "--all")] == ["retried"]
    assert "the task was submitted late" in rows_of(run(made, "show", letter))[0]["decisions"][0]["said"]


def test_a_record_without_a_key_goes_back_to_its_partition(made: Settings) -> None:
    record = put(made, "responses", None, serde.encode(response()), partition=5)
    letter = bury(made, record)
    assert run(made, "retry", letter).exit_code == 0
    assert [found.at.partition for found in records(made, "responses")] == [5, 5]
    assert rows_of(run(made, "retry", letter))[0]["result"] == "already"


def test_a_record_in_the_wrong_partition_goes_back_to_the_one_that_its_key_belongs_to(made: Settings) -> None:
    own = partition_of("t1", made.topics.partitions)
    record = put_event(made, task(), partition=(own + 1) % made.topics.partitions)
    letter = bury(made, record, stage="advantages", reason="wrong_partition")
    assert run(made, "retry", letter).exit_code == 0
    assert [(found.at.partition, found.payload) for found in records(made, "tasks")] == [
        (partition, record.payload) for partition in sorted([own, record.at.partition])
    ]


def test_a_second_retry_says_so_and_writes_nothing(made: Settings) -> None:
    _, letter = buried(made)
    run(made, "retry", letter)
    before = records(made, "responses"), records(made, "dead-letters")
    again = run(made, "retry", letter)
    assert again.exit_code == 0
    assert rows_of(again)[0]["result"] == "already"
    assert (records(made, "responses"), records(made, "dead-letters")) == before


def test_two_retries_side_by_side_put_one_record_back(made: Settings) -> None:
    # both have read the letters before either writes, so only the order of their claims can tell who does it
    chosen = [buried(made, response(slot=slot))[1] for slot in range(4)]
    both_have_read = threading.Barrier(2)

    def operator(name: str) -> list[str]:
        letters = load(made)
        both_have_read.wait(300)
        wanted = [letter for name in chosen for letter in letters.find(name)]
        return [
            outcome.result for outcome in decide(made, letters, wanted, RedriveOrder(verdict="retried", actor=name))
        ]

    with ThreadPoolExecutor(2) as pool:
        results = [result for said in pool.map(operator, ("mina", "noah")) for result in said]
    assert sorted(results) == ["refused"] * 4 + ["retried"] * 4
    assert len(records(made, "responses")) == 8


def test_who_read_the_letters_before_the_other_decided_is_told_who_was_faster(made: Settings) -> None:
    # the race, told in order: both have looked, then one decides, then the other
    _, letter = buried(made)
    slow, fast = load(made), load(made)
    (first,) = decide(made, fast, fast.find(letter), RedriveOrder(verdict="retried", actor="mina"))
    (second,) = decide(made, slow, slow.find(letter), RedriveOrder(verdict="dropped", actor="noah"))
    assert (first.result, second.result) == ("retried", "refused")
    assert "redriven by mina" in str(second.error)
    assert load(made).state(first.letter) == "retried"
    assert len(records(made, "responses")) == 2


def test_a_retry_killed_between_claim_and_record_is_finished_by_a_later_one(made: Settings) -> None:
    record, letter = buried(made)
    claimed(made, record, age_s=STALE_S + 10)
    assert len(records(made, "responses")) == 1

    assert rows_of(run(made, "retry", letter))[0]["result"] == "retried"
    back = records(made, "responses")[1]
    assert dict(back.headers)[RETRY_HEADER] == derive_id("dlq", *record.at, 2).encode()
    assert rows_of(run(made, "retry", letter))[0]["result"] == "already"
    assert len(records(made, "responses")) == 2


def test_unfinished_retries_are_found_among_all(alone: Settings) -> None:
    record, letter = buried(alone)
    _, finished = buried(alone, response(slot=1))
    run(alone, "retry", finished)
    claimed(alone, record, age_s=STALE_S + 10)
    assert rows_of(run(alone, "retry", "--all-matching")) == []
    outcomes = rows_of(run(alone, "retry", "--all-matching", "--unfinished"))
    assert [(row["letter"], row["result"]) for row in outcomes] == [(letter, "retried")]


def test_a_claim_that_is_fresh_is_left_to_its_writer(made: Settings) -> None:
    record, letter = buried(made)
    claimed(made, record, age_s=0)
    result = run(made, "retry", letter)
    assert result.exit_code == 4
    assert "redriven by mina" in result.stderr
    assert len(records(made, "responses")) == 1


def test_a_retry_killed_behind_its_record_was_done(made: Settings) -> None:
    record, letter = buried(made)
    claimed(made, record, age_s=0)
    header = {RETRY_HEADER: derive_id("dlq", *record.at, 1).encode()}
    put(made, "responses", record.key, record.payload, headers=header)
    assert rows_of(run(made, "retry", letter))[0]["result"] == "already"
    assert len(records(made, "responses")) == 2


def test_a_retried_record_that_fails_again_is_open_again(made: Settings) -> None:
    _, letter = buried(made)
    run(made, "retry", letter)
    second = bury(made, records(made, "responses")[1])
    assert [row["letter"] for row in listed(made)] == [second]
    run(made, "retry", second)
    assert len(records(made, "responses")) == 3


def test_two_letters_about_one_record_share_its_fate(alone: Settings) -> None:
    record, letter = buried(alone)
    bury(alone, record, stage="advantages")
    assert len(rows_of(run(alone, "retry", "--all-matching"))) == 1
    assert rows_of(run(alone, "list")) == []
    assert len(rows_of(run(alone, "show", str(record.at)))) == 2
    assert rows_of(run(alone, "retry", letter))[0]["result"] == "already"
    assert len(records(alone, "responses")) == 2


def test_what_no_mending_helps_is_refused_unless_forced(made: Settings) -> None:
    _, letter = buried(made, stage="advantages", reason="superseded")
    result = run(made, "retry", letter)
    assert result.exit_code == 4
    assert "superseded" in result.stderr
    assert len(records(made, "dead-letters")) == 1
    assert run(made, "retry", letter, "--force").exit_code == 0
    assert len(records(made, "responses")) == 2


def test_bytes_that_cannot_be_decoded_here_either_are_not_redriven(alone: Settings) -> None:
    poison = bury(alone, put(alone, "tasks", b"t1", b"junk"), stage="advantages", reason="not_avro")
    mended = bury(alone, put(alone, "tasks", b"t1", serde.encode(task())), stage="advantages", reason="unknown_schema")
    result = run(alone, "retry", "--all-matching")
    results = {row["letter"]: row["result"] for row in rows_of(result, code=4)}
    assert results == {poison: "refused", mended: "retried"}
    assert "1 refused" in result.stderr


def test_a_tombstone_can_be_forced_back(made: Settings) -> None:
    letter = bury(made, put(made, "tasks", b"t1", None), stage="advantages", reason="not_avro")
    assert run(made, "show", letter, "--raw", "-").exit_code == 3
    assert "tombstone" in run(made, "show", letter, "--output", "table").stdout
    assert run(made, "retry", letter).exit_code == 4
    assert run(made, "retry", letter, "--force").exit_code == 0
    assert [record.payload for record in records(made, "tasks")] == [None, None]


def forged(record: Record, *, stage: str, **where: Any) -> DeadLetter:
    """Return a dead letter about `record` at other coordinates, as nobody but a forger writes it."""
    return dead_letter(record._replace(at=record.at._replace(**where)), stage=stage, reason="unknown_task", error="e")


@pytest.mark.parametrize(
    ("stage", "where", "says"),
    [
        ("scoring", {"offset": 10_000}, "no such record was ever read"),
        ("scoring", {"partition": 99}, "no such record was ever read"),
        ("rollouts", {}, "rollouts does not read responses"),
        ("nobody", {}, "nobody does not read responses"),
    ],
)
def test_a_forged_letter_is_not_redriven_even_by_force(
    made: Settings, stage: str, where: dict[str, Any], says: str
) -> None:
    record = put_event(made, response())
    letter = forged(record, stage=stage, **where)
    put_event(made, letter)
    result = run(made, "retry", letter.dead_letter_id, "--force", "--source-gone")
    assert (result.exit_code, says in result.stderr) == (4, True), result.stderr
    assert len(records(made, "responses")) == 1
    assert run(made, "drop", letter.dead_letter_id).exit_code == 0


def test_a_letter_with_other_bytes_than_its_source_is_not_redriven_even_by_force(made: Settings) -> None:
    record = put_event(made, response())
    letter = bury(made, record._replace(payload=serde.encode(response(text="another"))))
    result = run(made, "retry", letter, "--force", "--source-gone")
    assert (result.exit_code, "another key or payload" in result.stderr) == (4, True), result.stderr
    assert len(records(made, "responses")) == 1


def test_a_letter_whose_source_is_deleted_is_redriven_only_if_asked_to(alone: Settings) -> None:
    record, letter = buried(alone)
    client = AdminClient({"bootstrap.servers": alone.kafka.bootstrap})
    (deleted,) = client.delete_records([ck.TopicPartition(*record.at[:2], record.at.offset + 1)]).values()
    deleted.result()
    refused = run(alone, "retry", letter)
    assert (refused.exit_code, "--source-gone" in refused.stderr) == (4, True), refused.stderr
    assert rows_of(run(alone, "retry", letter, "--source-gone"))[0]["result"] == "retried"
    assert [found.payload for found in records(alone, "responses")] == [record.payload]


def test_a_letter_without_its_record_is_shown_and_redriven_from_the_source(made: Settings) -> None:
    record = put_event(made, response(text="x" * 100_000))
    small = made.model_copy(update={"topics": Topics(prefix=made.topics.prefix, max_record_bytes=4096)})
    whole = dead_letter(record, stage="scoring", reason="unknown_task", error="e")
    key, payload = encoded(whole, topics(small.topics)["dead-letters"])
    put(made, "dead-letters", key, payload)
    assert key is None and len(payload) < 1000
    assert rows_of(run(made, "show", whole.dead_letter_id))[0]["payload"]["event"]["text"] == "x" * 100_000
    assert rows_of(run(made, "retry", whole.dead_letter_id))[0]["result"] == "retried"
    assert [found.payload for found in records(made, "responses")] == [record.payload] * 2


def test_a_source_of_another_deployment_is_an_error_before_anything_is_written(made: Settings) -> None:
    record, _ = buried(made)
    letter = bury(made, record._replace(at=record.at._replace(topic="elsewhere.responses")))
    result = run(made, "retry", letter)
    assert result.exit_code == 3
    assert "elsewhere.responses" in result.stderr
    assert len(records(made, "dead-letters")) == 2


def test_a_record_larger_than_its_topic_takes_now_is_an_error_before_anything_is_written(made: Settings) -> None:
    _, letter = buried(made, response(text="1" * 5000))
    small = made.model_copy(update={"topics": Topics(prefix=made.topics.prefix, max_record_bytes=4096)})
    result = run(small, "retry", letter)
    assert result.exit_code == 1
    assert "topics.max_record_bytes" in result.stderr
    assert len(records(made, "dead-letters")) == 1


def test_a_dry_run_writes_nothing(alone: Settings) -> None:
    _, letter = buried(alone)
    before = records(alone, "responses"), records(alone, "dead-letters")
    assert rows_of(run(alone, "retry", "--all-matching", "--dry-run"))[0]["result"] == "would retry"
    assert rows_of(run(alone, "drop", letter, "--dry-run"))[0]["result"] == "would drop"
    assert (records(alone, "responses"), records(alone, "dead-letters")) == before


# --- drop -------------------------------------------------------------------------------------------------------------


def test_dropped_letters_are_closed_and_nothing_comes_back(made: Settings) -> None:
    _, letter = buried(made)
    assert rows_of(run(made, "drop", letter, "--why", "a test run"))[0]["result"] == "dropped"
    assert listed(made) == []
    assert listed(made, "--all")[0]["state"] == "dropped"
    assert rows_of(run(made, "drop", letter))[0]["result"] == "already"
    assert len(records(made, "responses")) == 1


def test_a_dropped_letter_is_retried_only_by_force(made: Settings) -> None:
    _, letter = buried(made)
    run(made, "drop", letter, "--why", "a test run")
    refused = run(made, "retry", letter)
    assert refused.exit_code == 4
    assert "a test run" in refused.stderr
    assert rows_of(run(made, "retry", letter, "--force"))[0]["result"] == "retried"
    assert listed(made, "--all")[0]["state"] == "retried"


def test_what_was_redriven_cannot_be_dropped(made: Settings) -> None:
    _, letter = buried(made)
    run(made, "retry", letter)
    assert run(made, "drop", letter).exit_code == 4
    assert listed(made, "--all")[0]["state"] == "retried"


def test_filters_choose_what_is_dropped(alone: Settings) -> None:
    buried(alone, reason="late", stage="advantages")
    _, other = buried(alone, response(slot=1))
    assert len(rows_of(run(alone, "drop", "--all-matching", "--reason", "late"))) == 1
    assert [row["letter"] for row in rows_of(run(alone, "list"))] == [other]


def test_a_damaged_letter_is_told_as_one_and_can_still_be_dropped(made: Settings) -> None:
    record, _ = buried(made)
    letter = dead_letter(record._replace(at=record.at._replace(offset=99)), stage="scoring", reason="r", error="e")
    put_event(made, replace(letter, payload="not base64!"))
    assert run(made, "retry", letter.dead_letter_id).exit_code == 1
    assert run(made, "drop", letter.dead_letter_id).exit_code == 0
