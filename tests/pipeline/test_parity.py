"""One recorded log through all drivers: the Faust worker, the loop worker and the batch loop make the same bytes of it.

The log holds what makes trouble: rewards before their responses and responses before their task, doubles, a task that
was sampled twice, failed slots and failed scores, poison, contradictions, strays, latecomers, a group that a control
record closes, one that the worker's own timer closes, and one that its topic cannot take. Most of it lies there before
the worker starts, so that it reads the topics side by side in an order of its own; what is about closing comes when the
rest has been read, and what is about lateness when the groups it is late for have left.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from schemas.events import AdvantagedGroup, Batch, DeadLetter, Event, Response, Reward, RewardSource, Task, derive_id
from schemas.serde import encode
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.record import key_of, partition_of
from streams.kafka.topics import topic_of, topics
from streams.settings.model import Advantages, Batches, Settings
from streams.tools.replay import driver
from tests.support.factories import changed, control, response, reward, task
from tests.support.log.shared_node import own_prefix
from tests.support.processes import read, records, running, said, until

pytestmark = pytest.mark.kafka

SOURCES = (RewardSource(name="exact"), RewardSource(name="format", weight=0.25))
SIZE = 3
MAX_BYTES = 32_768
EXPIRES, UNANSWERED, ORPHAN, BULKY = "expires", "unanswered", "orphan", "bulky"
HELD_BACK, ABANDONED = "held-back", "abandoned"


def answers(task_id: str, sampling: str, *, version: int = 0, failed: tuple[int, ...] = ()) -> list[Response]:
    return [
        response(
            task_id=task_id,
            sampling_id=f"{task_id}/{sampling}",
            slot=slot,
            group_size=SIZE,
            adapter_version=version,
            completion_token_ids=tuple(range(slot + 1)),
            logprobs=(-0.5,) * (slot + 1),
            loss_mask=(True,) * (slot + 1),
            **({"error": "out of memory"} if slot in failed else {}),
        )
        for slot in range(SIZE)
    ]


def verdicts(slots: list[Response], draw: random.Random, *, equal: bool = False) -> list[Reward]:
    return [
        reward(slot, source=source.name, value=0.5 if equal else draw.choice([0.0, 0.25, 1.0]))
        for slot in slots
        if slot.error is None
        for source in SOURCES
    ]


def ordinary(draw: random.Random) -> list[Event]:
    """Return the events of tasks whose groups come out by themselves, in any order, some of them twice."""
    log: list[Event] = []
    for number in range(12):
        asked = task(task_id=f"task-{number}", group_size=SIZE, reward_sources=SOURCES)
        failed = {3: (1,), 4: (0, 1, 2), 5: (0, 2)}.get(number, ())
        slots = answers(asked.task_id, "first", version=1 if number == 6 else 0, failed=failed)
        scores = verdicts(slots, draw, equal=number == 7)
        if number == 8:
            scores[0] = reward(slots[0], source="exact", error="the judge did not answer")
        once: list[Event] = [asked, *slots, *scores]
        log += [*once, *draw.sample(once, 4)]
        if number in (9, 10):  # delivered twice to a policy agent, so sampled twice, and both are scored
            again = answers(asked.task_id, "second")
            log += [*again, *verdicts(again, draw)]
    log += [
        e
        for purpose, sources in (("eval", SOURCES), ("serve", ()))
        for e in _of(task(task_id=purpose, purpose=purpose, group_size=SIZE, reward_sources=sources), draw)
    ]
    draw.shuffle(log)
    return log


def _of(asked: Task, draw: random.Random) -> list[Event]:
    slots = answers(asked.task_id, "only")
    return [asked, *slots, *(verdicts(slots, draw) if asked.reward_sources else ())]


def trained_later(number: int) -> Task:
    return task(task_id=f"later-{number}", group_size=SIZE, reward_sources=SOURCES)


def expiring() -> list[Event]:
    """Return the events of a task whose last slot never comes; what is wrong with them shows in any order."""
    asked = task(task_id=EXPIRES, group_size=SIZE, reward_sources=SOURCES)
    first, second, last = answers(EXPIRES, "only")
    good = [reward(slot, source=source.name, value=float(slot.slot)) for slot in (first, second) for source in SOURCES]
    return [
        first,
        *good,
        asked,
        second,
        task(task_id=EXPIRES, group_size=SIZE + 1, reward_sources=SOURCES),
        response(task_id=EXPIRES, sampling_id=f"{EXPIRES}/other", slot=2, group_size=SIZE + 1),
        reward(first, source="exact", value=0.75),
        reward(second, source="style"),
        reward(last, source="exact"),
    ]


def held_back() -> list[Event]:
    """Return the events of train tasks without a deadline; these are written an hour before anybody answers."""
    return [
        task(task_id=name, group_size=SIZE, reward_sources=SOURCES) for name in (HELD_BACK, ABANDONED, "never-sampled")
    ]


def abandoned() -> list[Event]:
    """Return what an agent wrote before it was killed."""
    slots = answers(ABANDONED, "only")[:2]
    return [*verdicts(slots, random.Random(2)), *slots]


def bulky() -> list[Event]:
    """Return the events of a task each of whose responses fits into a record, and whose group does not."""
    tokens = MAX_BYTES // 18  # 9 bytes each
    body = {"completion_token_ids": (2**31 - 1,) * tokens, "logprobs": (-0.5,) * tokens, "loss_mask": (True,) * tokens}
    slots = [changed(slot, **body) for slot in answers(BULKY, "only")]
    return [task(task_id=BULKY, group_size=SIZE, reward_sources=SOURCES), *slots, *verdicts(slots, random.Random(1))]


@dataclass
class Writer:
    """Writes a log with times of its own, 3 ms apart."""

    settings: Settings
    now_ms: int
    poisoned: set[str] = field(default_factory=set)
    """Dead letters to come from records that can be used by nobody."""

    def write(self, log: list[Event]) -> None:
        with Producer(self.settings) as producer:
            for event in log:
                self.now_ms += 3
                topic = topic_of(type(event), self.settings.topics)
                key, payload = key_of(event, topic), encode(event)
                producer.send_bytes(topic.name, key, payload, timestamp_ms=self.now_ms)

    def poison(self, labels: tuple[str, ...], stage: str) -> None:
        """Put bytes that are no event into every partition of these topics: who has passed them has read all before."""
        with Producer(self.settings) as producer:
            for label in labels:
                topic = topics(self.settings.topics)[label]
                keys = (f"poison-{number}" for number in range(1000))
                by_partition = {partition_of(key, topic.partitions): key for key in keys}
                assert len(by_partition) == topic.partitions
                for key in by_partition.values():
                    self.now_ms += 3
                    producer.send_bytes(
                        topic.name,
                        key.encode(),
                        b"not avro",
                        timestamp_ms=self.now_ms,
                        on_ack=lambda at: self.poisoned.add(derive_id(stage, *at)),
                    )


KEYED = ("tasks", "responses", "rewards", "group-control")


@pytest.fixture(scope="module", params=["faust", "loop"])
def recorded(
    request: pytest.FixtureRequest, kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """The settings of a log that a live worker of this driver has gone through."""
    folder = tmp_path_factory.mktemp("parity")
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap": kafka_bootstrap},
            "topics": {
                "prefix": own_prefix(),
                "partitions": 3,
                "policy_partitions": 2,
                "max_record_bytes": MAX_BYTES,
            },
            "advantages": Advantages(grace_s=0.5),
            "batches": Batches(groups=2, max_policy_lag=5),
        }
    )
    admin.apply_topics(settings)
    draw = random.Random(20)
    begun_ms = int(time.time() * 1000) - 10_000
    Writer(settings, begun_ms - 3_600_000).write(held_back())
    Writer(settings, begun_ms - 700_000).write(abandoned())
    writer = Writer(settings, begun_ms)
    answered = answers(HELD_BACK, "only")
    writer.write([*verdicts(answered, draw), *answered])
    writer.write(ordinary(draw))
    writer.write(expiring())
    writer.write(bulky())
    orphan = answers(ORPHAN, "only")[:1]
    writer.write([*orphan, *verdicts(orphan, draw), task(task_id=UNANSWERED, deadline_at=begun_ms)])
    writer.poison(KEYED, "advantages")
    with Producer(settings) as producer:  # a whole event under the key of another one
        tasks = topics(settings.topics)["tasks"]
        producer.send_bytes(tasks.name, b"elsewhere", encode(task(task_id="misplaced")))
        wrong = (partition_of("misplaced", tasks.partitions) + 1) % tasks.partitions  # as librdkafka's default may do
        producer.send_bytes((tasks.name, wrong), b"misplaced", encode(task(task_id="misplaced")))

    def out(*expected: str) -> bool:
        return set(expected) <= {group.task_id for _, group in read(settings, AdvantagedGroup)}

    def passed() -> bool:
        return writer.poisoned <= {letter.dead_letter_id for _, letter in read(settings, DeadLetter)}

    with running(settings, folder, f"streams --driver {request.param}"):
        until(
            lambda: out(*(f"task-{number}" for number in range(12)), "eval", "serve", BULKY, HELD_BACK),
            "every group",
            folder=folder,
        )
        until(passed, "every record before the first control record read", folder=folder)
        writer.now_ms = int(time.time() * 1000)
        writer.write([control(task_id=EXPIRES)])
        until(lambda: out(EXPIRES, UNANSWERED, ABANDONED), "the groups that time closes", folder=folder)
        again = records(settings, "groups")[:2]
        with Producer(settings) as producer:  # as a worker that was killed between a group and its marker
            for record in again:
                producer.send_bytes(record.at.topic, record.key, record.payload)
        late = answers(EXPIRES, "only")[2]
        writer.write(
            [
                *answers("task-1", "much later"),
                *verdicts(answers("task-1", "much later"), draw),
                late,
                reward(late, source="format"),
                reward(answers("task-2", "first")[0], source="style"),
                control(task_id=ORPHAN),
                control(task_id="task-3", kind="evict"),
                *(event for number in range(4) for event in _of(trained_later(number), draw)),
            ]
        )
        writer.poison(KEYED, "advantages")
        until(passed, "every record of the join read", folder=folder)
        until(lambda: out(*(trained_later(number).task_id for number in range(4))), "the last groups", folder=folder)
        writer.poison(("groups",), "batches")
        until(passed, "every group read", folder=folder)
    assert "Traceback" not in said(folder)
    yield settings


@pytest.fixture(scope="module")
def joined(recorded: Settings) -> list[AdvantagedGroup | DeadLetter]:
    """What the batch driver makes of the same log."""
    return list(driver.join(recorded))


@pytest.fixture(scope="module")
def cut(recorded: Settings) -> list[Batch | DeadLetter]:
    """The batches that the batch driver makes of the groups that the live worker wrote."""
    made: list[Batch | DeadLetter] = []
    for partition in range(recorded.topics.policy_partitions):
        made += driver.cut(recorded, admin.read_topic(recorded, "groups", partition=partition))
    return made


def letters(settings: Settings, stage: str) -> list[tuple[str, bytes | None]]:
    """Return what the live worker wrote, by id; one that was written twice, the same, counts once."""
    live = {
        (letter.dead_letter_id, record.payload)
        for record, letter in read(settings, DeadLetter)
        if letter.stage == stage
    }
    return sorted(live)


def test_live_and_batch_driver_make_the_same_groups_byte_for_byte(
    recorded: Settings, joined: list[AdvantagedGroup | DeadLetter]
) -> None:
    live = sorted((group.group_id, record.payload) for record, group in read(recorded, AdvantagedGroup))
    batch = sorted((group.group_id, encode(group)) for group in joined if isinstance(group, AdvantagedGroup))
    assert {group_id for group_id, _ in live} == {group_id for group_id, _ in batch}
    assert sorted(set(live)) == batch
    assert len(batch) == 23
    assert len(live) >= 25  # two were written again, as after a kill


def test_the_log_holds_what_makes_trouble(joined: list[AdvantagedGroup | DeadLetter]) -> None:
    groups = {group.task_id: group for group in joined if isinstance(group, AdvantagedGroup)}
    assert (groups["task-4"].dropped_reason, groups["task-5"].dropped_reason) == ("unscored", "too_few_scored")
    assert [left.reason for left in groups["task-8"].left_out] == ["score_failed"]
    assert {groups[name].sampling_id for name in ("task-9", "task-10")} <= {
        f"task-{number}/{which}" for number in (9, 10) for which in ("first", "second")
    }
    assert (groups[EXPIRES].complete, len(groups[EXPIRES].responses)) == (False, 2)
    assert (groups[UNANSWERED].dropped_reason, groups[UNANSWERED].sampling_id) == ("unanswered", None)
    assert (groups[HELD_BACK].complete, len(groups[ABANDONED].responses)) == (True, 2)
    assert "never-sampled" not in groups
    assert [one.elsewhere is not None for one in groups[BULKY].responses] == [True, True, False]
    reasons = {letter.reason for letter in joined if isinstance(letter, DeadLetter)}
    assert reasons == {
        "not_avro", "wrong_key", "wrong_partition", "contradictory", "unasked", "superseded", "late",
        "unknown_response", "unknown_task",
    }  # fmt: skip


def test_live_and_batch_driver_write_the_same_dead_letters_byte_for_byte(
    recorded: Settings, joined: list[AdvantagedGroup | DeadLetter]
) -> None:
    batch = {letter.dead_letter_id: letter for letter in joined if isinstance(letter, DeadLetter)}
    live = {letter.dead_letter_id: letter for _, letter in read(recorded, DeadLetter) if letter.stage == "advantages"}
    assert sorted(letter.error for letter in live.values()) == sorted(letter.error for letter in batch.values())
    assert letters(recorded, "advantages") == sorted((name, encode(letter)) for name, letter in batch.items())


def test_live_and_batch_driver_cut_the_same_batches_byte_for_byte(
    recorded: Settings, cut: list[Batch | DeadLetter]
) -> None:
    live = list(dict.fromkeys(record.payload for record, _ in read(recorded, Batch)))
    batches = [batch for batch in cut if isinstance(batch, Batch)]
    assert live == [encode(batch) for batch in batches]
    assert len(batches) >= 3
    dropped = {dropped.reason for batch in batches for dropped in batch.dropped}
    assert dropped >= {"duplicate", "zero_variance", "too_few_scored", "unscored"}
    poisoned = [(letter.dead_letter_id, encode(letter)) for letter in cut if isinstance(letter, DeadLetter)]
    assert letters(recorded, "batches") == sorted(poisoned)
    assert len(poisoned) == recorded.topics.policy_partitions


def test_a_second_replay_makes_the_same_again(recorded: Settings, joined: list[AdvantagedGroup | DeadLetter]) -> None:
    assert [encode(made) for made in driver.join(recorded)] == [encode(made) for made in joined]


def test_partitions_joined_side_by_side_make_the_same_records_in_the_same_order(
    recorded: Settings, joined: list[AdvantagedGroup | DeadLetter]
) -> None:
    encoded = list(driver.join_encoded(recorded, processes=2))
    assert [record.payload for record in encoded] == [encode(made) for made in joined]
    expected = [topic_of(type(made), recorded.topics) for made in joined]
    assert [record.topic for record in encoded] == [topic.name for topic in expected]
    assert [record.key for record in encoded] == [key_of(*each) for each in zip(joined, expected, strict=True)]
