"""A log of a few tasks in memory, with everything that can be wrong with one, and join workers that crash over it.

    task id, troubles ──► Log: four topics of two partitions ──► Workers, in any order, killed anywhere ──► outputs
                                                             └─► the batch driver, merged by time       ──► the same

A worker does as the live stage does: what an event asks for is written first, then its row, and offsets are committed
some time after. A crash loses the rows behind the last commit, or some of them, and never one before it; the partition
is then read again from what was committed, under the same worker or the other one.

Kept from the live system: a control record is read when everything before its time was, and one after which a task is
forgotten when that was committed, too. There the grace after each deadline, the hour before an `evict`, and the timers
that stand still in a backlog see to it.

Not covered: workers that write to a partition they have lost. That is Faust's, and tested against the broker.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from schemas.events import AdvantagedGroup, Coordinates, DeadLetter, Event, Response, Reward, RewardSource
from schemas.serde import encode
from streams.kafka.record import Record
from streams.settings.model import Advantages, Settings, Topics
from streams.stages.advantages.group_event import GroupRecord
from streams.stages.advantages.rows import GroupRows
from streams.stages.advantages.stage import AdvantageStage
from streams.tools.replay import driver
from tests.support.factories import T0, changed, control, response, reward, task

PARTITIONS = 2
DEADLINE, EXPIRE, AFTERWARDS = T0 + 1000, T0 + 5000, T0 + 6000
SETTINGS = Settings(
    topics=Topics(prefix="", partitions=PARTITIONS, max_record_bytes=2048),
    advantages=Advantages(deadline_s=(DEADLINE - T0) / 1000, evict_after_s=60),
)
FLOOD = {f"part-{n}": 0.5 for n in range(200)}
"""Components of a reward, a few of which are more than a row of these settings may hold."""
TROUBLES = (
    "a failed slot", "every slot failed", "a failed score", "another sampling", "part of a sampling",
    "another sampling of another version", "a sampling of two versions", "a sampling of two prompts",
    "another value", "an unasked source", "a reward on no response", "a reward on a failed slot",
    "a changed task", "the task again", "another group size", "another policy", "another pin",
    "a missing slot", "a missing reward", "a late answer", "a late reward", "no task", "no events",
    "poison", "the wrong key", "too large", "too large without tokens", "everything twice", "for evaluation", "served",
    "equal rewards", "no deadline of its own", "an abstention", "no opinion of an answer", "a flood of rewards",
)  # fmt: skip


class Placed(NamedTuple):
    """An event and the time of its record."""

    event: Event
    at_ms: int


def answers(task_id: str, sampling: str, size: int, *, failed: Sequence[int] = (), **changes: Any) -> list[Response]:
    return [
        response(
            **{"sampling_id": f"{task_id}/{sampling}", "task_id": task_id, "slot": slot, "group_size": size, **changes},
            error="out of memory" if slot in failed else None,
        )
        for slot in range(size)
    ]


def events_of(task_id: str, troubles: Sequence[str], draw: random.Random) -> tuple[list[Placed], list[Placed]]:
    """Return what is recorded about a task in time or just late, and what comes when its group has long left."""
    has, size = set(troubles), draw.choice((1, 2, 3))
    sources = ("exact",) if draw.random() < 0.5 else ("exact", "judge")
    if "served" in has and "for evaluation" not in has:
        sources = ()
    asked = task(
        task_id=task_id,
        group_size=size,
        deadline_at=None if "no deadline of its own" in has else DEADLINE,
        adapter_version=0 if "another pin" in has else None,
        purpose="eval" if "for evaluation" in has else "serve" if "served" in has else "train",
        metadata={"note": "x" * 1800} if "too large without tokens" in has else {},
        reward_sources=tuple(RewardSource(name=name) for name in sources),
    )
    failed = range(size) if "every slot failed" in has else range(1 if "a failed slot" in has else 0)
    body: dict[str, Any] = {}
    if "too large" in has:
        body = {"completion_token_ids": (2**31 - 1,) * 100, "logprobs": (-0.5,) * 100, "loss_mask": (True,) * 100}
    slots = answers(task_id, "first", size, failed=failed, **({} if failed else body))
    if "another sampling" in has:
        slots += answers(task_id, "second", size)
    if "part of a sampling" in has:
        slots += answers(task_id, "third", size)[: size - 1]
    if "another sampling of another version" in has:
        slots += answers(task_id, "fourth", size, adapter_version=1)
    if "a missing slot" in has:
        del slots[size - 1]
    values = (0.5,) if "equal rewards" in has else (0.0, 0.25, 1.0)
    scores = [
        reward(one, source=source, value=draw.choice(values))
        for one in slots
        for source in sources
        if one.error is None
    ]
    late = [Placed(event, AFTERWARDS) for event in _strange(asked, slots, scores, draw, has)]
    strange = [entry.event for entry in late]
    if scores and "a missing reward" in has:
        scores.pop(draw.randrange(len(scores)))
    if scores and "a failed score" in has:
        scores[0] = reward(_of(slots, scores[0]), source=scores[0].source, error="no answer")
    if scores and has & {"an abstention", "no opinion of an answer"}:
        answer = scores[-1].response_id
        silent = [n for n, one in enumerate(scores) if one.response_id == answer]
        for n in silent[: 1 if "an abstention" in has else None]:
            scores[n] = reward(_of(slots, scores[n]), source=scores[n].source, abstained=True)
    once: list[Event] = [*(() if "no task" in has else (asked,)), *slots, *scores]
    if "no events" in has:
        once, strange, late = once[:1] if "no task" not in has else [], [], []
    kept = strange if draw.random() < 0.7 else []
    events = [*once, *kept]
    events += events if "everything twice" in has else [event for event in events if draw.random() < 0.2]
    draw.shuffle(events)
    placed = [Placed(event, draw.randint(T0, DEADLINE)) for event in events]
    for name, kind in (("a late answer", Response), ("a late reward", Reward)):
        if name in has:
            late_at = draw.randint(DEADLINE + 1, EXPIRE - 1)
            placed = [entry._replace(at_ms=late_at) if isinstance(entry.event, kind) else entry for entry in placed]
    if "no task" in has or not once:
        return placed, []
    again = [Placed(event, AFTERWARDS) for event in once if draw.random() < 0.3]
    return placed, [*(entry for entry in late if draw.random() < 0.5), *again]


def _of(slots: Sequence[Response], score: Reward) -> Response:
    return next(slot for slot in slots if slot.response_id == score.response_id)


def _strange(
    asked: Any, slots: list[Response], scores: list[Reward], draw: random.Random, has: set[str]
) -> list[Event]:
    """Return what should not be there, by the troubles that are."""
    one, size = (slots[0] if slots else response(task_id=asked.task_id)), asked.group_size
    strange: dict[str, list[Event]] = {
        "a sampling of two versions": [dataclasses.replace(slot, adapter_version=2) for slot in slots[:1]],
        "a sampling of two prompts": [
            changed(slot, prompt_token_ids=(9,)) for slot in slots[-1:] if slot.error is None
        ],
        "another value": [dataclasses.replace(score, value=9.0, error=None, abstained=False) for score in scores[:2]],
        "an unasked source": [reward(one, source="style"), reward(one, source="style", value=0.5)],
        "a reward on no response": [reward(answers(asked.task_id, "ghost", size)[0])],
        "a reward on a failed slot": [reward(slot) for slot in slots if slot.error is not None],
        "a changed task": [dataclasses.replace(asked, group_size=size + 1), dataclasses.replace(asked, policy="other")],
        "the task again": [dataclasses.replace(asked, traceparent="00-a-b-01", deadline_at=DEADLINE + 7)],
        "another group size": list(answers(asked.task_id, "wide", size + 1)),
        "another policy": list(answers(asked.task_id, "stranger", size, policy="other")),
        "a flood of rewards": [reward(one, source=f"flood-{n}", components=FLOOD) for n in range(8)],
        "another pin": list(answers(asked.task_id, "unpinned", size, adapter_version=3)),
    }
    return [event for name, events in strange.items() if name in has for event in events]


# --- the log ----------------------------------------------------------------------------------------------------------

TOPIC_OF = {"Task": "tasks", "Response": "responses", "Reward": "rewards", "GroupControl": "group-control"}
NAMES = ("tasks", "responses", "rewards", "group-control")


class Log:
    """The records of a few tasks; task n lies in partition n % PARTITIONS."""

    def __init__(self, tasks: Sequence[Sequence[str]], seed: int) -> None:
        draw = random.Random(seed)
        self.records: dict[tuple[str, int], list[Record]] = {(n, p): [] for n in NAMES for p in range(PARTITIONS)}
        self.forgetful: set[Coordinates] = set()
        """Where the control records lie after which a task is forgotten."""
        phases: list[tuple[int, list[Placed]]] = []
        for number, troubles in enumerate(tasks):
            early, late = events_of(f"task-{number}", troubles, draw)
            phases += [(number % PARTITIONS, early), (number % PARTITIONS, late)]
            if troubles:
                self._poison(number % PARTITIONS, set(troubles))
        for partition in range(PARTITIONS):
            for phase in (phases[::2], phases[1::2]):
                events = [entry for p, entries in phase if p == partition for entry in entries]
                draw.shuffle(events)
                for event, at_ms in events:
                    self._append(event, partition, at_ms)
        for kind, at_ms in (("expire", EXPIRE), ("evict", AFTERWARDS + 1)):
            for number in range(len(tasks)):
                once, partition = control(task_id=f"task-{number}", kind=kind, created_at=at_ms), number % PARTITIONS
                if kind == "evict" or "no task" in tasks[number]:
                    end = len(self.records["group-control", partition])
                    self.forgetful.add(Coordinates("group-control", partition, end))
                self._append(once, partition, at_ms)
        self.by_place = {record.at: record for records in self.records.values() for record in records}

    def look_up(self, wanted: Iterable[Coordinates]) -> Mapping[Coordinates, Record]:
        return {at: self.by_place[at] for at in wanted}

    def ordered(self) -> set[tuple[str, bytes]]:
        """Return what the batch driver makes of it: by id, the bytes."""
        return {by_id(output) for output in joined(SETTINGS, self.records)}

    def may_be_read(self, name: str, partition: int, positions: Mapping[tuple[str, int], int]) -> bool:
        """Return whether there is a next record, and time has come for it."""
        records, position = self.records[name, partition], positions[name, partition]
        if position >= len(records):
            return False
        at_ms = records[position].timestamp_ms
        return name != "group-control" or all(
            record.timestamp_ms > at_ms
            for other in NAMES[:3]
            for record in self.records[other, partition][positions[other, partition] :]
        )

    def _poison(self, partition: int, has: set[str]) -> None:
        if "poison" in has:
            self._write("rewards", partition, T0, b"task-0", b"\x00not avro")
        if "the wrong key" in has:
            self._write("responses", partition, T0, b"elsewhere", encode(response(task_id="task-0")))

    def _append(self, event: Any, partition: int, at_ms: int) -> None:
        self._write(TOPIC_OF[type(event).__name__], partition, at_ms, event.task_id.encode(), encode(event))

    def _write(self, name: str, partition: int, at_ms: int, key: bytes, payload: bytes) -> None:
        records = self.records[name, partition]
        records.append(Record(Coordinates(name, partition, len(records)), at_ms, key, payload))


def joined(
    settings: Settings, log: Mapping[tuple[str, int], Sequence[Record]]
) -> Iterator[AdvantagedGroup | DeadLetter]:
    """Yield what the batch driver makes of a log, partition by partition, merged by time."""
    by_place = {record.at: record for records in log.values() for record in records}
    for partition in sorted({partition for _, partition in log}):
        streams = [log[name, partition] for name in NAMES]
        records = heapq.merge(*streams, key=attrgetter("timestamp_ms"))
        yield from driver.join_records(settings, records, look_up=lambda wanted: {at: by_place[at] for at in wanted})


def by_id(output: AdvantagedGroup | DeadLetter) -> tuple[str, bytes]:
    name = output.group_id if isinstance(output, AdvantagedGroup) else output.dead_letter_id
    return name, encode(output)


def event_of(made: GroupRecord | DeadLetter) -> AdvantagedGroup | DeadLetter:
    return made if isinstance(made, DeadLetter) else made.event()


# --- the workers ------------------------------------------------------------------------------------------------------


class Killed(Exception):
    """A worker ended in the middle of an event."""


class Worker:
    """The live stage without Faust: its caches, and the table rows of the partitions that it owns."""

    def __init__(self) -> None:
        self.stage, self.rows = AdvantageStage(SETTINGS), GroupRows()
        self.stage.cache.MAX_BYTES = 8000  # so that some responses are read again from the log
        self.table: dict[int, dict[bytes, bytes]] = {}


class Cluster:
    """Two workers, the changelog that they share, and what was committed."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.workers = [Worker(), Worker()]
        self.owner: dict[int, int] = {}
        self.changelog: dict[int, list[tuple[bytes, bytes | None]]] = {p: [] for p in range(PARTITIONS)}
        self.committed = dict.fromkeys(log.records, 0)
        self.safe = dict.fromkeys(range(PARTITIONS), 0)
        """How much of the changelog stood there when something was committed last: that much outlives any crash."""
        self.positions = dict(self.committed)
        self.outputs: set[tuple[str, bytes]] = set()
        for partition in range(PARTITIONS):
            self.assign(partition, partition % 2)

    def assign(self, partition: int, worker: int) -> None:
        """Give a partition to a worker, which reads its rows from the changelog and goes on where it was committed."""
        rows: dict[bytes, bytes | None] = dict(self.changelog[partition])
        self.workers[worker].table[partition] = {
            key: bytes(bytearray(row)) for key, row in rows.items() if row is not None
        }
        self.owner[partition] = worker
        self.positions |= {at: offset for at, offset in self.committed.items() if at[1] == partition}

    def read(self, name: str, partition: int, *, killed_after: int | None = None) -> None:
        """Work on the next record. Raises Killed if the worker is to end when it has written so many outputs."""
        worker = self.workers[self.owner[partition]]
        record = self.log.records[name, partition][self.positions[name, partition]]
        event = worker.stage.decode(record)
        if isinstance(event, DeadLetter):
            self.outputs.add(by_id(event))
            self.positions[name, partition] += 1
            return
        table, key = worker.table[partition], event.task_id.encode()
        before = worker.rows.load(key, table.get(key))
        after, effects = worker.stage.reduce(before, event, record)
        fetched = self.log.look_up(worker.stage.missing(effects, record))
        for number, output in enumerate(worker.stage.outputs(effects, record, fetched)):
            if number == killed_after:
                raise Killed
            self.outputs.add(by_id(event_of(output)))
        if killed_after is not None:
            raise Killed
        self.positions[name, partition] += 1
        if after is before:
            return
        row = None if after is None else worker.rows.dump(key, after)
        self.changelog[partition].append((key, row))
        if row is None:
            del table[key]
        else:
            table[key] = row

    def commit(self, partition: int, names: Iterable[str]) -> None:
        """Commit what was read of these topics; what was written before is then safe."""
        self.committed |= {(name, partition): self.positions[name, partition] for name in names}
        self.safe[partition] = len(self.changelog[partition])

    def crash(self, worker: int, heirs: Sequence[int], kept: float) -> None:
        """End a worker; of the rows written since the last commit the share `kept` is in the changelog."""
        self.workers[worker] = Worker()
        for partition, owner in list(self.owner.items()):
            if owner == worker:
                written, safe = self.changelog[partition], self.safe[partition]
                del written[safe + round(kept * (len(written) - safe)) :]
                self.assign(partition, heirs[partition])

    def readable(self) -> Iterator[tuple[str, int]]:
        """Yield the topics and partitions whose next record may be read."""
        for name, partition in self.log.records:
            if self.log.may_be_read(name, partition, self.positions) and self._may_be_forgotten(name, partition):
                yield name, partition

    def _may_be_forgotten(self, name: str, partition: int) -> bool:
        """Return whether the next record forgets nobody, or everything before it was committed long ago.

        `evict` forgets a task, and `expire` one that never came; both stand minutes behind what they are about.
        """
        record = self.log.records[name, partition][self.positions[name, partition]]
        if record.at not in self.log.forgetful:
            return True
        return all(
            one.timestamp_ms >= record.timestamp_ms
            for other in NAMES
            for one in self.log.records[other, partition][self.committed[other, partition] :]
        )

    def read_some(self, count: int, draw: random.Random) -> None:
        """Read up to `count` records, of topics as they come, or many of one before the next."""
        last, eager = None, draw.choice((0.0, 0.5, 0.9))
        for _ in range(count):
            ready = list(self.readable())
            if not ready:
                return
            last = last if last in ready and draw.random() < eager else draw.choice(ready)
            self.read(*last)

    def finish(self, draw: random.Random) -> None:
        """Read and commit everything that is left."""
        while True:
            for partition in range(PARTITIONS):
                self.commit(partition, NAMES)
            if not any(self.readable()):
                return
            self.read_some(10_000, draw)
