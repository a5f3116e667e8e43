"""A log in memory that went through every stage, for tests that then do it harm.

    inputs() ──► Written ──► the join's and the cutter's own reducers ──► groups, letters, batches, versions ──► records

It holds what makes trouble and is nobody's fault: failed slots and scores, a task sampled twice, latecomers,
contradictions, poison, copies, a group closed by a control record and a task that nobody answered. Two policies share
two partitions.

Not covered: letters of the scoring and policy stages, which only those write who run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from schemas.events import (
    AdapterEvent,
    AdapterFile,
    AdvantagedGroup,
    Batch,
    Coordinates,
    DeadLetter,
    Event,
    Response,
    Reward,
    RewardSource,
    Task,
)
from schemas.serde import decode, encode
from streams.kafka.record import Record, TopicPartition, key_of, partition_of
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Batches, Settings, Topics
from streams.stages.advantages.stage import AdvantageStage
from streams.stages.advantages.state import GroupState
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import recount
from streams.tools.audit.report import Report
from streams.tools.replay import driver
from tests.support import factories
from tests.support.factories import T0, control, response, reward, task

SETTINGS = Settings(
    topics=Topics(prefix="log.", partitions=2, policy_partitions=2), batches=Batches(groups=3, max_policy_lag=50)
)
TOPICS = topics(SETTINGS.topics)
BY_EVENT = {topic.event: topic for topic in TOPICS.values()}
BY_NAME = {topic.name: topic for topic in TOPICS.values()}
SOURCES = (RewardSource(name="exact"), RewardSource(name="format", weight=0.25))
SIZE = 3


@dataclass
class Written:
    """Records as they come to lie in the log."""

    records: list[Record] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def write(
        self, event: Event | bytes, ms: int, *, label: str = "", key: bytes | None = None, beside: int = 0
    ) -> Record:
        """Append an event to its topic, or bytes to the topic `label` under `key`; `beside` partitions from its own."""
        if isinstance(event, bytes):
            topic, payload = TOPICS[label], event
        else:
            topic, payload = BY_EVENT[type(event)], encode(event)
            key = key_of(event, topic) if key is None else key
        partition = (partition_of((key or b"").decode(), topic.partitions) + beside) % topic.partitions
        offset = self.ends.get((topic.name, partition), 0)
        self.ends[topic.name, partition] = offset + 1
        record = Record(Coordinates(topic.name, partition, offset), ms, key, payload)
        self.records.append(record)
        return record

    def of(self, *labels: str) -> list[Record]:
        return [record for record in self.records if BY_NAME[record.at.topic].label in labels]


class Joined:
    """The join, reading record by record; what it makes is written into the same log."""

    def __init__(self, log: Written, settings: Settings = SETTINGS) -> None:
        self._log, self._stage = log, AdvantageStage(settings, partitions=settings.topics.partitions)
        self._states: dict[tuple[int, str], GroupState] = {}

    def read(self, record: Record) -> None:
        event = self._stage.decode(record)
        if isinstance(event, DeadLetter):
            self._log.write(event, record.timestamp_ms)
            return
        key = (record.at.partition, event.task_id)
        self._states[key], effects = self._stage.reduce(self._states.get(key), event, record)
        at_hand = {one.at: one for one in self._log.records}
        for made in self._stage.outputs(effects, record, at_hand):
            event = made if isinstance(made, DeadLetter) else made.event()
            self._log.write(event, record.timestamp_ms + 1)


def answers(asked: Task, sampling: str = "first", *, failed: tuple[int, ...] = ()) -> list[Response]:
    return [
        response(
            task_id=asked.task_id,
            policy=asked.policy,
            sampling_id=f"{asked.task_id}/{sampling}",
            slot=slot,
            group_size=SIZE,
            completion_token_ids=tuple(range(slot + 2)),
            logprobs=(-0.5,) * (slot + 2),
            loss_mask=(True,) * (slot + 1) + (False,),
            **({"error": "out of memory"} if slot in failed else {}),
        )
        for slot in range(SIZE)
    ]


def verdicts(slots: Iterable[Response], draw: random.Random, *, equal: bool = False) -> list[Reward]:
    return [
        reward(slot, source=source.name, value=0.5 if equal else draw.choice([0.0, 0.25, 1.0]) + slot.slot)
        for slot in slots
        if slot.error is None
        for source in SOURCES
    ]


def inputs(log: Written, begin_ms: int = T0) -> list[Record]:
    """Write what comes from outside the join, and return it in the order in which it was written."""
    draw, now = random.Random(4), begin_ms
    for number in range(20):
        policy = "other" if number % 4 == 3 else "default"
        purpose = "eval" if number == 5 else "train"
        asked = task(
            task_id=f"task-{number}", policy=policy, group_size=SIZE, reward_sources=SOURCES, purpose=purpose,
            adapter_version=0 if purpose == "eval" else None,
        )  # fmt: skip
        failed = {3: (1,), 4: (0, 1, 2), 6: (0, 2)}.get(number, ())
        slots = answers(asked, failed=failed)
        events: list[Event] = [asked, *slots, *verdicts(slots, draw, equal=number == 7)]
        if number == 8:
            events[4] = reward(slots[0], source="exact", error="the judge did not answer")
        if number == 14:  # one source has no opinion of an answer
            events[4] = reward(slots[0], source="exact", abstained=True)
        if number == 15:  # nor has any
            events[4:6] = [reward(slots[0], source=source.name, abstained=True) for source in SOURCES]
        if number == 9:  # sampled twice
            again = answers(asked, "second")
            events += [*again, *verdicts(again, draw)]
        if number == 10:
            events += [slots[1], events[5], asked]  # copies
        if number == 11:
            events += [reward(slots[0], source="style"), reward(slots[0], source="exact", value=77.0)]
            events += [replace(asked, group_size=7)]
        if number == 12:  # never whole
            events = [asked, slots[0], slots[1], *verdicts(slots[:2], draw)]
        if number == 13:  # never answered
            events = [asked]
        for event in events:
            now += 3
            log.write(event, now)
    log.write(b"{}", now, label="responses", key=b"task-1")
    log.write(reward(answers(task(task_id="task-2"))[0]), now, key=b"another")
    quiet = task(task_id="serve", purpose="serve", group_size=SIZE, reward_sources=())
    for event in (quiet, *answers(quiet)):
        log.write(event, now + 5)
    late = now + 10_000_000
    for name in ("task-12", "task-13"):
        log.write(control(task_id=name), late - 1)
    log.write(replace(answers(task(task_id="task-12"))[2], latency_ms=float(late - now)), late)
    return log.of(*KEYED_BY_TASK)


def whole_log(begin_ms: int = T0) -> Written:
    """Return a log through all stages, in which nothing is wrong and nothing is in flight but open windows.

    Its records lie between `begin_ms` and three hours later.
    """
    log = Written()
    join = Joined(log)
    for record in inputs(log, begin_ms):
        join.read(record)
    group_again = log.of("groups")[2]
    log.write(group_again.payload or b"", group_again.timestamp_ms, label="groups", key=group_again.key)
    for partition in range(2):
        groups = [record for record in log.of("groups") if record.at.partition == partition]
        for batch in driver.cut(SETTINGS, groups):
            assert isinstance(batch, Batch)
            ms, version = groups[batch.groups_offsets[-1]].timestamp_ms + 1, batch.sequence + 1
            log.write(batch, ms)
            log.write(trained(version, batch.policy), ms)
            log.write(promoted(version, batch.policy), ms)
    return log


def trained(version: int, policy: str = "default", **changes: Any) -> AdapterEvent:
    files = (AdapterFile(path="adapter.safetensors", sha256="a" * 64, bytes=version),)
    return factories.trained(version, **{"policy": policy, "created_at": T0, "uri": None, "files": files} | changes)


def promoted(version: int, policy: str = "default") -> AdapterEvent:
    return factories.promoted(version, policy=policy, created_at=T0, actor="rollouts", reason="direct")


# --- harm -------------------------------------------------------------------------------------------------------------


def event_of(record: Record) -> Any:
    return decode(record.payload, BY_NAME[record.at.topic].event)


def recounted(
    *events: Event, begins: Mapping[str, int] = MappingProxyType({}), settled: bool = True, **reach: Any
) -> Report:
    """Return the recount of a log of these; `begins`: how many of each partition of a topic retention has deleted."""
    log = Written()
    for number, event in enumerate(events):
        log.write(event, T0 + number)
    cut = {(TOPICS[label].name, partition): count for label, count in begins.items() for partition in range(2)}
    kept = [record for record in log.records if record.at.offset >= cut.get((record.at.topic, record.at.partition), 0)]
    return recount(kept, SETTINGS, Reach(ends=ends(log.records), begins=cut, settled=settled, **reach))


def wrong(*events: Event) -> list[tuple[str, int, str]]:
    """Return category, offset and text of each finding in a log of these."""
    return [(finding.category, finding.at.offset, finding.what) for finding in recounted(*events).wrong]


def rewritten(records: list[Record], at: Coordinates, change: Callable[[Any], Event]) -> list[Record]:
    """Return the log with another event at `at`."""
    return [
        record._replace(payload=encode(change(event_of(record)))) if record.at == at else record for record in records
    ]


def appended(records: list[Record], event: Event, ms: int = T0) -> tuple[list[Record], Coordinates]:
    """Return the log with one more record, and where that lies."""
    log = Written(list(records), ends(records))
    return log.records, log.write(event, ms).at


def ends(records: Iterable[Record]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for record in records:
        tp = (record.at.topic, record.at.partition)
        found[tp] = max(found.get(tp, 0), record.at.offset + 1)
    return found


def without(records: list[Record], at: Coordinates) -> list[Record]:
    """Return the log as if this record had never been written: those behind it in its partition move up."""
    moved = []
    for record in records:
        if record.at == at:
            continue
        behind = record.at[:2] == at[:2] and record.at.offset > at.offset
        moved.append(record._replace(at=record.at._replace(offset=record.at.offset - 1)) if behind else record)
    return moved


def settled(records: list[Record], *, of: Iterable[Record] = (), **reach: Any) -> Report:
    """Return the recount of a log on which nobody works any more; `of` is the log as it should be, if it was longer."""
    return recount(records, SETTINGS, Reach(ends=ends(of or records), settled=True, **reach))


def named(report: Report) -> str:
    """Return everything that does not add up, as text."""
    return "\n".join(f"{found.category} {found.at}: {found.what}" for found in report.wrong)


def groups_of(records: Iterable[Record]) -> list[tuple[Record, AdvantagedGroup]]:
    return [(record, event_of(record)) for record in records if record.at.topic == TOPICS["groups"].name]
