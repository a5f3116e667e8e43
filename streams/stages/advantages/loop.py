"""The advantages stage inside the loop worker: many records at once.

    records of one topic ──► decoded as columns ──► reduce, one by one ──► groups, dead letters: sent at once
                                                        └──► states of open-groups ──► rows, once a second
    each second ──► DeadlineTimers ──► group-control

States stay objects while their groups are open; a closed one becomes its row. The worker's checkpoints (`epoch.py`)
write a row after the results in it were acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from schemas.events import Coordinates, DeadLetter
from streams.arrow.events import decode_events, decode_values
from streams.kafka.reader import fetch
from streams.kafka.record import Record
from streams.kafka.times import now_ms
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.observability.tracing.tracer import headers_of
from streams.stages.advantages.group_event import GroupRecord
from streams.stages.advantages.incoming import FIELDS, Incoming
from streams.stages.advantages.leaving import count, group_trace
from streams.stages.advantages.rows import closed_ms, dump, load
from streams.stages.advantages.stage import STAGE, AdvantageStage, GroupDecision
from streams.stages.advantages.state import Effect, EmitGroup, GroupState, OpenGroup
from streams.stages.advantages.timers import DeadlineTimers
from streams.worker.batched.loop_agent import TopicReading
from streams.worker.batched.loop_table import CurrentPartition, LoopTable, Row
from streams.worker.batched.worker import LoopWorker

COLUMNS_FROM = 8
"""Fewer records are decoded one by one: columns cost a millisecond, however short they are."""


class OpenGroups(LoopTable):
    """The states of tasks, by partition number: objects, or rows that were not read since they were written."""

    def __init__(self, changelog: str, partitions: int, dumped: Callable[[str, GroupState], None]) -> None:
        """`dumped` is called with each state that is written."""
        super().__init__(changelog, partitions, CurrentPartition())
        self._states: dict[int, dict[str, OpenGroup | bytes]] = {}
        self._new: dict[int, dict[str, GroupState]] = {}
        """States decided since the last `changed`."""
        self._dumped = dumped

    def state(self, number: int, task_id: str) -> GroupState:
        """Return the state of a task."""
        new = self._new[number]
        if task_id in new:
            return new[task_id]
        entry = self._states[number].get(task_id)
        return load(entry) if isinstance(entry, bytes) else entry

    def decide(self, number: int, task_id: str, state: GroupState) -> None:
        """Store the state of a task."""
        self._new[number][task_id] = state

    def states(self) -> Iterator[tuple[str, GroupState]]:
        """Yield every task that is open, or was not written since it closed, with its state."""
        for number, states in self._states.items():
            yield from self._new[number].items()
            for task_id, entry in states.items():
                if task_id in self._new[number]:
                    continue
                if not isinstance(entry, bytes):
                    yield task_id, entry
                elif closed_ms(entry) is None:
                    yield task_id, load(entry)

    def closed(self) -> Iterator[tuple[str, int]]:
        """Yield the others, with the time in ms when they closed: there may be millions."""
        for number, states in self._states.items():
            for task_id, entry in states.items():
                when_ms = closed_ms(entry) if isinstance(entry, bytes) else None
                if when_ms is not None and task_id not in self._new[number]:
                    yield task_id, when_ms

    def take_changes(self) -> Iterator[tuple[int, bytes, Row]]:
        """Yield the rows that changed since the last call."""
        yield from super().take_changes()
        for number, new in self._new.items():
            states = self._states[number]
            for task_id, state in new.items():
                row = None if state is None else dump(state)
                if row is None:
                    states.pop(task_id, None)
                else:
                    states[task_id] = state if isinstance(state, OpenGroup) else row
                self._dumped(task_id, state)
                yield number, task_id.encode(), row
            new.clear()

    def begin(self, number: int, *, keep: bool = False) -> None:
        """Take up a partition; see LoopTable."""
        super().begin(number, keep=keep)
        if not keep or number not in self._states:
            self._states[number] = {}
        self._new[number] = {}

    def _put(self, number: int, key: bytes, row: Row) -> None:
        if row is None:
            self._states[number].pop(key.decode(), None)
        else:
            self._states[number][key.decode()] = row

    def _row(self, number: int, key: bytes) -> Row:
        entry = self._states[number].get(key.decode())
        return dump(entry) if isinstance(entry, OpenGroup) else entry

    def drop(self, number: int) -> None:
        """Forget a partition."""
        super().drop(number)
        self._states.pop(number, None)
        self._new.pop(number, None)


class LoopAdvantages:
    """The stage in one worker."""

    def __init__(self, worker: LoopWorker) -> None:
        settings = worker.settings
        partitions = settings.topics.partitions
        self._worker, self._outlet = worker, worker.outlet(STAGE)
        self._stage = AdvantageStage(settings, worker.traces, partitions=partitions)
        self._timers = DeadlineTimers(settings)
        table = OpenGroups(worker.changelog("open-groups"), partitions, self._timers.note)
        self._table = worker.add_table(table)
        self._named = topics(settings.topics)
        self._generation = worker.generation

    def register(self) -> None:
        """Start the agents of the four topics, and the timer."""
        sources = [self._named[label] for label in KEYED_BY_TASK]
        for topic in sources:
            # time acts once everything that was written before it is read
            after = [other for other in sources if other is not topic] if topic.label == "group-control" else []
            self._worker.agent_of_many(TopicReading(topic, f"{STAGE}.{topic.label}", after), self._handle)
        self._worker.timer(self._on_timer)

    def _handle(self, records: Sequence[Record]) -> None:
        """Reduce records of one topic, and send the results."""
        self._timers.record_read(min(record.timestamp_ms for record in records), now_ms())
        decisions: list[GroupDecision] = []
        missing: list[Coordinates] = []
        for record, event in zip(records, self._decode(records), strict=True):
            if (decision := self._reduce(record, event)) is not None:
                decisions.append(decision)
                missing += self._stage.missing(decision.effects, record)
        fetched = fetch(self._worker.settings, missing, outage=self._worker.outage) if missing else {}
        for record, before, effects in decisions:
            outputs = self._stage.outputs(effects, record, fetched)
            for effect, output in zip(effects, outputs, strict=True):
                self._emit(effect, output, before)

    def _decode(self, records: Sequence[Record]) -> Sequence[Incoming | DeadLetter]:
        if len(records) < COLUMNS_FROM:
            return [self._stage.decode(record) for record in records]
        kind = self._stage.event_type(records[0].at.topic)
        payloads = [record.payload for record in records]
        columns = decode_values(kind, payloads, FIELDS[kind]) if kind in FIELDS else decode_events(kind, payloads)
        return self._stage.incoming(records, *columns)

    def _reduce(self, record: Record, event: Incoming | DeadLetter) -> GroupDecision | None:
        """Store the state after one record, and return its results, if any."""
        if isinstance(event, DeadLetter):
            self._outlet.write(event)
            return None
        number = record.at.partition
        before = self._table.state(number, event.task_id)
        try:
            after, effects = self._stage.reduce(before, event, record)
        except Exception as exc:  # adds the coordinates to any error, and lets it pass
            exc.add_note(f"at {record.at}")
            raise
        if after is not before:
            self._table.decide(number, event.task_id, after)
        return GroupDecision(record, before, effects) if effects else None

    def _emit(self, effect: Effect, output: GroupRecord | DeadLetter, before: GroupState) -> None:
        if isinstance(output, DeadLetter):
            self._outlet.write(output)
            return
        meter, traces, topic = self._worker.meter, self._worker.traces, self._named["groups"]
        if not meter.on and not (isinstance(effect, EmitGroup) and effect.trace):
            self._outlet.write_bytes(topic, output.key, output.payload, headers={}, on_ack=None)
            return
        first_ms, group = before.first_seen_ms or None if isinstance(before, OpenGroup) else None, output.event()
        trace = group_trace(traces, effect, group)
        on_ack = traces.on_ack(group, trace, began_ms=first_ms)
        self._outlet.write_bytes(topic, output.key, output.payload, headers=headers_of(trace), on_ack=on_ack)
        count(meter, group, first_ms)

    def _on_timer(self) -> None:
        owned, generation = self._worker.owned(self._named["tasks"]), self._worker.generation
        if self._generation != generation or self._timers.owned != owned:
            self._generation = generation
            self._timers.rebuild(owned, self._table.states(), now_ms())
            for task_id, when_ms in self._table.closed():
                self._timers.note_closed(task_id, when_ms)
            self._stage.cache.forget_closed(
                lambda number, task_id: number in owned and isinstance(self._table.state(number, task_id), OpenGroup)
            )
        for control in self._timers.due(now_ms()):
            self._outlet.write(control)


def register(worker: LoopWorker) -> None:
    """Run the stage in the batched worker."""
    LoopAdvantages(worker).register()
