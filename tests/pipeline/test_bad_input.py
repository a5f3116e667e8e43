"""Everything bad at once, in one partition, and one good task behind it.

    poison in six topics, then a file with bad lines and one good task ──► policy, scoring, streams
                                             a letter for each, and a whole group ◄──┘

Every topic has one partition here, so whoever comes to the good task has passed all that is bad. A letter says where
its record lies, what was expected and got, and what to do, and holds the bytes as they came.

Not covered: that any bytes at all are read without an exception (tests/unit/test_serde.py does), and a trainer that
meets bad groups and batches (tests/pipeline/test_trainer.py).
"""

from __future__ import annotations

import base64
import json
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    DeadLetter,
    Event,
    Response,
    Reward,
    RewardSource,
    derive_id,
)
from schemas.serde import encode
from streams.adapters import store
from streams.kafka import admin as cluster
from streams.kafka.client import client_config
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.settings.model import Adapters, Settings
from tests.support.factories import control, group, response, reward, task
from tests.support.log.shared_node import own_prefix
from tests.support.processes import (
    READERS,
    by_another_writer,
    command,
    ended,
    environment,
    read,
    records,
    running,
    spawn_and_wait,
    until,
    write,
)

pytestmark = pytest.mark.kafka

POLICY = "default"
LOOP = ("streams", "scoring", "policy")


class Bad(NamedTuple):
    """A record that nobody can use."""

    what: str
    label: str
    key: str
    payload: bytes | None
    reason: str
    says: str


def adapter(**changes: Any) -> AdapterEvent:
    """Return the event that makes version 1."""
    whole: dict[str, Any] = {"policy": POLICY, "created_at": 1, "version": 1, "kind": "trained", "actor": "trainer"}
    whole |= {"reason": "batch 0", **changes}
    return AdapterEvent(event_id=derive_id(POLICY, whole["version"], whole["kind"]), **whole)


def one_of(label: str) -> Event:
    """Return a good event for this topic, of a task that nobody asked for."""
    made = {"tasks": task, "responses": response, "rewards": reward, "group-control": control, "groups": group}
    return made[label]() if label in made else adapter()


def unreadable() -> list[Bad]:
    """Return what is wrong in the same way in every topic."""
    found = []
    for label in READERS:
        whole, other = encode(one_of(label)), encode(control() if label != "group-control" else reward())
        strange = struct.pack(">bI", 0, 4242) + whole[5:]
        found += [
            Bad("not Avro", label, "t1", b'{"task_id": 1}', "not_avro", "got 14 bytes beginning 7b 22 74 61"),
            Bad("no value", label, "t1", None, "not_avro", "got no value"),
            Bad("an unknown schema id", label, "t1", strange, "unknown_schema", "register the schema before writing"),
            Bad("truncated", label, "t1", whole[:-3], "undecodable", "the record is cut short"),
            Bad("another event", label, "t1", other, "wrong_event", "Check which topic the producer writes to"),
        ]
    return found


def contradictory() -> list[Bad]:
    """Return what has the schema and cannot be meant, as another writer than ours would let it pass."""
    says = {
        "a purpose that is none": (
            "tasks",
            by_another_writer(task(), purpose="teach"),
            "train, serve, eval, got 'teach'",
        ),
        "no reward sources": ("tasks", by_another_writer(task(), reward_sources=[]), "needs at least one scorer"),
        "group size 0": ("tasks", by_another_writer(task(), group_size=0), "group_size is 0; a group needs at least 1"),
        "a slot too many": ("responses", by_another_writer(response(), slot=9), "slot is 9"),
        "a logprob that is none": (
            "responses",
            by_another_writer(response(), logprobs=[float("nan"), 0.0]),
            "Response.logprobs[0]: expected a finite number of 32 bits, got nan",
        ),
        "a NaN reward": (
            "rewards",
            by_another_writer(reward(), value=float("nan")),
            "expected a finite number, got nan",
        ),
    }
    return [Bad(what, label, "t1", payload, "contradictory", error) for what, (label, payload, error) in says.items()]


GOOD = {"prompt": "4 + 7 =", "answer": "11", "group_size": 4, "task_id": "good"}
ANSWER = '{"answer": "11"}'
UNKNOWN_SCORER = task(
    task_id="unknown-scorer", verifier=ANSWER, reward_sources=(RewardSource(name="exact"), RewardSource(name="exct"))
)
EMPTY = task(task_id="empty", policy="outside", group_size=2, verifier=ANSWER)
"""Answered by an agent outside, with nothing at all in slot 1."""
DAMAGED = task(task_id="damaged", adapter_version=1, verifier=ANSWER)
"""Pinned to the version whose adapter has a wrong hash."""
STRAY = reward(response(task_id="good", sampling_id="nobody's"))
LINES = [
    {"prompt": "x" * 10_000_000, "answer": "11"},
    {"prompt": "4 + 7 =", "answer": "11", "group_size": 0},
    {"prompt": "4 + 7 ="},
    {"prompt": "4 + 7 =", "answer": "11", "reward_sources": ["exct"]},
    GOOD,
]


@dataclass(frozen=True)
class Poisoned:
    """A log full of poison, as the processes have left it."""

    settings: Settings
    at: dict[str, Bad]
    """What was put where: by its coordinates."""
    submitted: subprocess.CompletedProcess[str]

    def letters(self, what: str, label: str) -> dict[str, DeadLetter]:
        """Return what each stage wrote about a record."""
        (at,) = (at for at, bad in self.at.items() if (bad.what, bad.label) == (what, label))
        return {letter.stage: letter for letter in self.all_letters() if where(letter) == at}

    def all_letters(self) -> list[DeadLetter]:
        return [letter for _, letter in read(self.settings, DeadLetter)]

    def group(self, task_id: str) -> AdvantagedGroup:
        (found,) = (found for _, found in read(self.settings, AdvantagedGroup) if found.task_id == task_id)
        return found


def where(letter: DeadLetter) -> str:
    return f"{letter.source_topic}[{letter.source_partition}]@{letter.source_offset}"


@pytest.fixture(scope="module")
def poisoned(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poisoned]:
    folder = tmp_path_factory.mktemp("bad-input")
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap": kafka_bootstrap},
            "topics": {"prefix": own_prefix(), "partitions": 1, "policy_partitions": 1},
            "policy": {"engine": "scripted", "script": '{"accuracy": 0.5}'},
        }
    )
    cluster.apply_topics(settings)
    at = poison(settings)
    write(
        settings,
        *(
            damaged_adapter(folder),
            UNKNOWN_SCORER,
            EMPTY,
            DAMAGED,
            *outside_answers(),
            STRAY,
        ),
    )
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    submitted = spawn_and_wait(
        command("tasks", "submit", "--skip-bad", str(folder / "tasks.jsonl")),
        env=environment(settings),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    expected = {(coordinates, READERS[bad.label]) for coordinates, bad in at.items()}
    with running(settings, folder, *LOOP):
        until(
            lambda: (
                {"good", "empty", "damaged", "unknown-scorer"}
                <= {group.task_id for _, group in read(settings, AdvantagedGroup)}
            ),
            "a group for each task behind the poison",
            folder=folder,
        )
        until(lambda: not missing(settings, expected), "a letter for each bad record", folder=folder)
    yield Poisoned(settings, at, submitted)


def missing(settings: Settings, expected: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of `expected`, (coordinates, stage), of which there is no letter yet."""
    return expected - {(where(letter), letter.stage) for _, letter in read(settings, DeadLetter)}


def poison(settings: Settings) -> dict[str, Bad]:
    """Write everything bad; return it by the coordinates where it lies."""
    at: dict[str, Bad] = {}
    with Producer(settings) as producer:
        for bad in [*unreadable(), *contradictory()]:
            producer.send_bytes(
                topics(settings.topics)[bad.label].name,
                bad.key.encode(),
                bad.payload,
                on_ack=lambda coordinates, bad=bad: at.update({str(coordinates): bad}),  # type: ignore[misc]
            )
    return at


def damaged_adapter(folder: Path) -> AdapterEvent:
    """Return a version whose weights somebody changed after they were published."""
    made = folder / "made"
    made.mkdir()
    (made / "adapter_model.safetensors").write_bytes(b"weights 1")
    there = folder / Adapters().store  # the agents'
    uri, files = store.publish(made, str(there), POLICY, 1)
    (there / POLICY / "1" / "adapter_model.safetensors").write_bytes(b"weights 2")
    return adapter(uri=uri, files=files)


def outside_answers() -> list[Event]:
    """Return what an agent outside answers to EMPTY: a text, and nothing."""
    nothing: dict[str, Any] = dict.fromkeys(("completion_token_ids", "logprobs", "loss_mask"), ())
    of_empty: dict[str, Any] = {"task_id": EMPTY.task_id, "policy": EMPTY.policy, "group_size": EMPTY.group_size}
    return [
        response(**of_empty, slot=0, text="11"),
        response(**of_empty, slot=1, text="", completion_tokens=0, **nothing),
    ]


# --- what cannot be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [*unreadable(), *contradictory()], ids=lambda bad: f"{bad.label}: {bad.what}")
def test_what_nobody_can_use_goes_to_dead_letters_with_coordinates_and_the_way_out(
    poisoned: Poisoned, bad: Bad
) -> None:
    letters = poisoned.letters(bad.what, bad.label)
    assert set(letters) == {READERS[bad.label]}
    for letter in letters.values():
        assert letter.reason == bad.reason
        assert letter.error.startswith(f"{where(letter)}: ")
        assert bad.says in letter.error
        assert (letter.payload and base64.b64decode(letter.payload)) == bad.payload


def test_nothing_good_is_dead_lettered(poisoned: Poisoned) -> None:
    others = [letter for letter in poisoned.all_letters() if where(letter) not in poisoned.at]
    assert {(letter.stage, letter.reason) for letter in others} == {
        ("policy", "bad_adapter"), ("advantages", "unknown_response")
    }  # fmt: skip


# --- what can be read, and not be used --------------------------------------------------------------------------------


def test_the_task_behind_all_that_is_bad_becomes_a_whole_group(poisoned: Poisoned) -> None:
    good = poisoned.group("good")
    assert (good.complete, good.dropped_reason, len(good.responses), good.adapter_version) == (True, None, 4, 0)


def test_a_reward_for_an_unknown_response_is_named_when_its_group_leaves(poisoned: Poisoned) -> None:
    (letter,) = (letter for letter in poisoned.all_letters() if letter.reason == "unknown_response")
    assert letter.error.startswith(f"{where(letter)}: ")
    assert STRAY.response_id in letter.error
    assert STRAY.response_id not in {member.response_id for member in poisoned.group("good").responses}


def test_an_unknown_scorer_is_a_reward_without_value_that_names_the_nearest(poisoned: Poisoned) -> None:
    rewards = [r for _, r in read(poisoned.settings, Reward) if (r.task_id, r.source) == ("unknown-scorer", "exct")]
    assert len(rewards) == 4
    assert all(verdict.value is None and "exact" in (verdict.error or "") for verdict in rewards)
    left = poisoned.group("unknown-scorer")
    assert (left.dropped_reason, [one.reason for one in left.left_out]) == ("unscored", ["score_failed"] * 4)


def test_an_empty_completion_is_scored_and_stands_in_its_group(poisoned: Poisoned) -> None:
    full, empty = poisoned.group("empty").responses
    assert (full.reward, empty.reward, list(empty.completion_token_ids), list(empty.logprobs)) == (1.0, 0.0, [], [])


def test_an_adapter_with_a_wrong_hash_never_answers_and_its_task_says_why(poisoned: Poisoned) -> None:
    answers = [answer for _, answer in read(poisoned.settings, Response) if answer.task_id == "damaged"]
    assert len(answers) == DAMAGED.group_size
    assert all("sha256" in (answer.error or "") or "could not be loaded" in (answer.error or "") for answer in answers)
    (letter,) = (letter for letter in poisoned.all_letters() if letter.reason == "bad_adapter")
    assert letter.source_topic == topics(poisoned.settings.topics)["adapters"].name
    assert "sha256" in letter.error
    assert [left.reason for left in poisoned.group("damaged").left_out] == ["response_failed"] * DAMAGED.group_size


def test_a_file_names_each_bad_line_and_its_good_one_is_submitted(poisoned: Poisoned) -> None:
    assert poisoned.submitted.returncode == 0
    assert json.loads(poisoned.submitted.stdout)["state"] == "sent"
    too_large, no_group, no_source, no_scorer, *_, counts = poisoned.submitted.stderr.splitlines()
    assert counts == "1 sent, 0 known, 0 repeated, 4 bad"
    assert too_large.startswith("tasks.jsonl:1: the task has 10000") and "topics.max_record_bytes" in too_large
    assert no_group.startswith("tasks.jsonl:2: ") and "group_size is 0" in no_group
    assert no_source.startswith("tasks.jsonl:3: ") and "reward_sources is empty" in no_source
    assert no_scorer.startswith("tasks.jsonl:4: ") and "exact" in no_scorer


def test_a_prompt_of_ten_megabytes_does_not_get_past_the_broker_either(poisoned: Poisoned) -> None:
    errors: list[ck.KafkaError] = []
    before = len(records(poisoned.settings, "tasks"))
    careless = ck.Producer({**client_config(poisoned.settings.kafka), "message.max.bytes": 12_000_000})
    payload = encode(task(metadata={"prompt": "x" * 10_000_000}))
    careless.produce(topics(poisoned.settings.topics)["tasks"].name, payload, on_delivery=lambda e, _: errors.append(e))
    assert careless.flush(20) == 0
    assert [error.code() for error in errors] == [ck.KafkaError.MSG_SIZE_TOO_LARGE]
    assert len(records(poisoned.settings, "tasks")) == before


# --- where nothing can run --------------------------------------------------------------------------------------------


def test_no_process_starts_on_a_topic_with_too_few_partitions(settings: Settings, tmp_path: Path) -> None:
    name = topics(settings.topics)["responses"].name
    shapes = [topic for topic in topics(settings.topics).values() if topic.name != name]
    client = admin.AdminClient(client_config(settings.kafka))
    new = [admin.NewTopic(topic.name, num_partitions=topic.partitions, replication_factor=1) for topic in shapes]
    for created in client.create_topics([*new, admin.NewTopic(name, 3, 1)]).values():
        created.result()
    for code, said in ended(settings, tmp_path, *LOOP, "train").values():
        assert code == 2
        assert f"topic {name} has 3 partitions, expected 2 (topics.partitions)" in said
        assert "use another topics.prefix" in said


def test_no_process_waits_for_ever_for_a_bootstrap_that_does_not_answer(tmp_path: Path) -> None:
    nowhere = Settings.model_validate({"kafka": {"bootstrap": "127.0.0.1:1", "request_timeout_s": 1.0}})
    for code, said in ended(nowhere, tmp_path, *LOOP, "train").values():
        assert code == 5
        assert "Kafka at 127.0.0.1:1 did not answer within 1 s" in said and "streamward admin broker start" in said
