"""The advantages stage inside the stream worker.

    four topics ──► events, per partition number ──► reduce ──► groups, dead letters ──► rows of open-groups
    each second ──► DeadlineTimers ──► group-control

Results are acknowledged before the row of a closed group is written: after a kill in between, the same bytes are
emitted again; they are never lost.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from typing import Any

from schemas.events import DeadLetter
from streams.kafka.reader import fetch
from streams.kafka.record import Record
from streams.kafka.times import now_ms
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.stages.advantages.group_event import GroupRecord
from streams.stages.advantages.leaving import count, group_trace
from streams.stages.advantages.rows import GroupRows, load
from streams.stages.advantages.stage import STAGE, AdvantageStage, GroupDecision
from streams.stages.advantages.state import Effect, GroupState, OpenGroup
from streams.stages.advantages.timers import DeadlineTimers
from streams.worker.faust.faust_agent import agent_of_many
from streams.worker.faust.faust_app import App, Outlet, owned_partitions, record_of, table
from streams.worker.faust.faust_driver import FaustDriver
from streams.worker.faust.faust_table import stale


class LiveAdvantages:
    """The stage in one worker: its table, timers and output."""

    def __init__(self, app: App) -> None:
        partitions = app.settings.topics.partitions
        self._app = app
        self._stage, self._outlet = AdvantageStage(app.settings, app.traces, partitions=partitions), Outlet(app, STAGE)
        self._table, self._rows = table(app, "open-groups", partitions), GroupRows()
        self._timers = DeadlineTimers(app.settings)
        self._locks = [asyncio.Lock() for _ in range(partitions)]
        """By partition number: the agents of the four topics share one state per task."""
        self._generation = app.consumer_generation_id

    def register(self) -> None:
        """Start the agents of the four topics, and the timer."""
        named = topics(self._app.settings.topics)
        sources = [named[label] for label in KEYED_BY_TASK]
        for topic in sources:
            # timers act only after everything written before them was read
            after = [other for other in sources if other is not topic] if topic.label == "group-control" else ()
            agent_of_many(self._app, topic, self._on_events, name=f"{STAGE}.{topic.label}", after=after)
        self._app.timer(1.0)(self._on_timer)

    async def _on_events(self, events: Sequence[Any]) -> None:
        by_partition: dict[int, list[Any]] = defaultdict(list)
        for event in events:
            by_partition[event.message.partition].append(event)
        await asyncio.gather(*(self._on_partition(number, part) for number, part in by_partition.items()))

    async def _on_partition(self, partition: int, events: Sequence[Any]) -> None:
        """Reduce events of one partition number; their results are acknowledged before any row is written."""
        async with self._locks[partition]:
            # rows that were written while a rebalance began are not kept, so nothing may be decided without them
            events = [event for event in events if not stale(self._app, event)]
            changed: dict[str, tuple[Any, GroupState]] = {}
            decisions: list[GroupDecision] = []
            poison: list[DeadLetter] = []
            for event in events:
                record = record_of(event)
                try:
                    decision = self._reduce(event, record, changed)
                except Exception as exc:  # adds the coordinates to any error, and lets it pass
                    exc.add_note(f"at {record.at}")
                    raise
                if isinstance(decision, DeadLetter):
                    poison.append(decision)
                elif decision.effects:
                    decisions.append(decision)
            await asyncio.gather(*map(self._outlet.emit, poison), *await self._results(decisions))
            for task_id, (event, state) in changed.items():
                key = task_id.encode()
                self._table.write(event, key, None if state is None else self._rows.dump(key, state))
                self._timers.note(task_id, state)

    def _reduce(
        self, faust_event: Any, record: Record, changed: dict[str, tuple[Any, GroupState]]
    ) -> GroupDecision | DeadLetter:
        """Store the state after one event in `changed`, with the event; return the decision."""
        self._timers.record_read(record.timestamp_ms, now_ms())
        event = self._stage.decode(record)
        if isinstance(event, DeadLetter):
            return event
        _, before = changed.get(event.task_id) or (None, self._state(event.task_id))
        after, effects = self._stage.reduce(before, event, record)
        if after is not before:
            changed[event.task_id] = (faust_event, after)
        return GroupDecision(record, before, effects)

    async def _results(self, decisions: Sequence[GroupDecision]) -> list[Awaitable[None]]:
        """Return the records to write; missing responses are fetched in one go."""
        missing = [
            coordinates
            for decision in decisions
            for coordinates in self._stage.missing(decision.effects, decision.record)
        ]
        fetched = await asyncio.to_thread(fetch, self._app.settings, missing) if missing else {}
        return [
            self._emit(effect, output, before)
            for record, before, effects in decisions
            for effect, output in zip(effects, self._stage.outputs(effects, record, fetched), strict=True)
        ]

    async def _emit(self, effect: Effect, output: GroupRecord | DeadLetter, before: GroupState) -> None:
        if isinstance(output, DeadLetter):
            await self._outlet.emit(output)
            return
        first_ms, group = before.first_seen_ms or None if isinstance(before, OpenGroup) else None, output.event()
        await self._outlet.emit_traced(group, group_trace(self._app.traces, effect, group), began_ms=first_ms)
        count(self._app.meter, group, first_ms)

    async def _on_timer(self) -> None:
        app, owned = self._app, owned_partitions(self._app, topics(self._app.settings.topics)["tasks"].name)
        moved = self._generation != app.consumer_generation_id and not app.rebalancing
        if moved:
            self._generation = app.consumer_generation_id
            self._rows.forget_replaced(self._table)
            self._stage.cache.forget_closed(
                lambda partition, task_id: partition in owned and isinstance(self._state(task_id), OpenGroup)
            )
        if moved or self._timers.owned != owned:  # a partition may have been another worker's since the last tick
            self._timers.rebuild(owned, ((key.decode(), load(row)) for key, row in self._table.items()), now_ms())
        for control in self._timers.due(now_ms()):
            await self._outlet.emit(control)

    def _state(self, task_id: str) -> GroupState:
        key = task_id.encode()
        return self._rows.load(key, self._table.get(key))


def register(driver: FaustDriver) -> None:
    """Run the stage in the Faust worker."""
    LiveAdvantages(driver.app).register()
