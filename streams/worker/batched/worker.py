"""A stream worker with its own loop: the same stages, topics, tables and guarantees as the Faust worker.

    poll, hundreds at once ──► agents ──► results, sent and not waited for ──┐
      ▲ paused while rows come back                                         ▼
      └── commit ◄── rows acknowledged ◄── each changed row, once a second ◄── results acknowledged

Delivery is at least once. A record is done when its results, and then its rows, are acknowledged (`epoch.py`); after a
crash the work since the last commit is repeated, with the same ids and bytes. Rows carry the generation of the group,
so those of a worker that has unknowingly lost its partitions are skipped (`streams/worker/fence.py`).

One thread does everything. Handlers never wait: sends that Faust awaits are only queued here, and epochs keep the
order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self, TypeVar

from streams.errors import EventError
from streams.kafka.client import POLL_S
from streams.kafka.consumer import OnAssignment
from streams.kafka.group_names import STREAMS
from streams.kafka.producer import Producer
from streams.kafka.record import Record, TopicPartition, dead_letter
from streams.kafka.topics import Topic
from streams.observability.metrics import OFF, Meter
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.processes.watchdog import Watchdog, end_process
from streams.settings.model import Settings
from streams.worker import changelog_topics
from streams.worker.batched.epoch import Epoch, OnAck
from streams.worker.batched.loop_agent import HandleRecords, LoopAgent, TopicReading
from streams.worker.batched.loop_table import CurrentPartition, LoopTable
from streams.worker.batched.outlet import LoopOutlet
from streams.worker.batched.restoring import Restoring
from streams.worker.batched.worker_consumer import WatchedOutage, WorkerConsumer
from streams.worker.driver import HandleRecord
from streams.worker.fence import GENERATION
from streams.worker.stalls import Sight, StallDetector

MAX_RECORDS = 4096
"""Maximum records taken at once. Decoding many costs less for each; a poll returns the available ones."""
COMMIT_EVERY_S, BEHIND_S = 1.0, 3.0
"""After a kill -9, at most about this much is processed twice; the second during a backlog, when topics are read one
after the other and a row changes repeatedly."""
TICK_S = 1.0
FROZEN_S = 60.0
"""Longest time without a step, except while waiting for the broker."""
STUCK_S = 60.0
"""Longest time that a partition with records makes no progress."""
BUSY_S = 0.01
"""Longest wait for records while other work is due soon."""

log = logging.getLogger("streamward.worker")

T = TypeVar("T", bound=LoopTable)


class LoopWorker:
    """One worker. Register the stages, then enter it, and call `step` from one thread until it should stop."""

    def __init__(
        self, settings: Settings, stop: threading.Event, *, meter: Meter = OFF, tracer: Tracer = NO_TRACER
    ) -> None:
        self.settings, self.meter, self.traces = settings, meter, tracer
        self._watchdog = Watchdog(FROZEN_S, f"the loop has made no step for {FROZEN_S:g} s")
        self.outage = WatchedOutage(settings.kafka, stop, meter, self._watchdog)
        self._place = CurrentPartition()
        self._tables: dict[str, LoopTable] = {}
        self._agents: dict[str, list[LoopAgent]] = defaultdict(list)
        self._timers: list[Callable[[], None]] = []
        self._read: dict[TopicPartition, int] = {}
        """Next offset to take of each owned partition."""
        self._reached_ms: dict[TopicPartition, int] = {}
        self._reaches: dict[TopicPartition, int] = {}
        """Offset up to which the rows of changelog partitions are known, though they were handed over."""
        self._restoring: Restoring | None = None
        self._full: set[TopicPartition] = set()
        """Partitions paused because too many of their records wait."""
        self._epoch, self._closed = Epoch(), Epoch()
        """The epoch in progress, and the one that becomes a commit."""
        self._detector = StallDetector(hole_s=STUCK_S, stuck_s=STUCK_S)
        self._commit_at = self._tick_at = 0.0
        self._is_behind = False
        """Whether the last poll returned the maximum number of records."""
        self.generation = 0
        self._exits = ExitStack()
        self._leaves = False
        """Handled records are settled, or must not be."""

    # --- what stages build on -----------------------------------------------------------------------------------------

    def table(self, name: str, partitions: int) -> LoopTable:
        """Return a table of bytes by bytes; `partitions` are those of the topics whose agents write it."""
        return self.add_table(LoopTable(self.changelog(name), partitions, self._place))

    def add_table(self, table: T) -> T:
        """Keep a table, and return it."""
        self._tables[table.changelog] = table
        return table

    def changelog(self, name: str) -> str:
        """Return the changelog topic of a table: the one that Faust uses."""
        return f"{self.settings.topics.prefix}{STREAMS}-{name}-changelog"

    def outlet(self, stage: str) -> LoopOutlet:
        """Return what writes the events of a stage."""
        return LoopOutlet(self, stage)

    def agent(
        self, topic: Topic, handle: HandleRecord, stage: str, *, name: str = "", after: Iterable[Topic] = ()
    ) -> None:
        """Have `handle` called for each record of `topic`; see streams/worker/driver.py."""
        outlet = self.outlet(stage)

        def handle_each(records: Sequence[Record]) -> None:
            for record in records:
                self._place.number = record.at.partition
                try:
                    _finish(handle(record))
                except EventError as exc:
                    outlet.write(dead_letter(record, stage=stage, reason=exc.reason, error=str(exc)))
                except Exception as exc:  # any bug of a handler: it is raised again, with the coordinates
                    exc.add_note(f"at {record.at}")
                    raise

        self.agent_of_many(TopicReading(topic, name or stage, tuple(after)), handle_each)

    def agent_of_many(self, reading: TopicReading, handle: HandleRecords) -> None:
        """Have `handle` called with all available records."""
        self._agents[reading.topic.name].append(LoopAgent(reading, handle, self.meter))

    def timer(self, call: Callable[[], None]) -> None:
        """Have `call` called about once a second."""
        self._timers.append(call)

    def owned(self, topic: Topic) -> set[int]:
        """Return the partitions of a topic that this worker owns; none while their rows come back."""
        if self._restoring is not None:
            return set()
        return {number for name, number in self._read if name == topic.name}

    def send(
        self,
        topic: str,
        key: bytes | None,
        payload: bytes,
        *,
        headers: Mapping[str, bytes],
        on_ack: OnAck | None = None,
    ) -> None:
        """Send a result of the current record. Raises LogError if an earlier one was refused."""
        self._producer.send_bytes(topic, key, payload, headers=headers, on_ack=self._epoch.sends(on_ack))

    # --- running ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        changelog_topics.create(self.settings, {name: table.partitions for name, table in self._tables.items()})
        self._producer = self._exits.enter_context(Producer(self.settings, linger_ms=0, outage=self.outage))
        labels = [agents[0].reading.topic.label for agents in self._agents.values()]
        on_assignment = OnAssignment(self._on_assigned, self._on_revoked, self._on_lost)
        counts = {name: table.partitions for name, table in self._tables.items()}
        self._consumer = WorkerConsumer(self.settings, labels, counts, self.outage, on_assignment)
        self._exits.callback(self._watchdog.close)
        for agent in (agent for agents in self._agents.values() for agent in agents):
            agent.measure(self.settings.topics, self._positions_of(agent.reading.topic.name))
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        try:
            if kind is None:
                self._settle()
        finally:
            if self._restoring is not None:
                self._restoring.close()
            self._leaves = True
            self._consumer.close()
            self._exits.__exit__(kind, *rest)

    def step(self) -> None:
        """Take new records, and continue the epochs in progress. Raises LogError as GroupConsumer.poll and Producer."""
        records = self._consumer.poll(MAX_RECORDS, self._patience_s())
        self._is_behind = len(records) == MAX_RECORDS
        self._watchdog.beat()
        if self._restoring is not None and self._restoring.step():
            self._end_restoring()
        if records:
            self._take(records)
        for tp, end in self._consumer.take_reached_ends().items():
            if tp in self._read:
                self._read[tp] = max(self._read[tp], end)
        for agents in self._agents.values():
            for agent in agents:
                if agent.waits:
                    agent.take_waiting(self._is_read)
        if self._full or any(agent.waits for agents in self._agents.values() for agent in agents):
            self._pause_full()
        if time.monotonic() >= self._tick_at:
            self._tick_at = time.monotonic() + TICK_S
            self._tick()
        self._producer.serve()
        self._checkpoint()

    def _patience_s(self) -> float:
        if self._restoring is not None:
            return 0.0
        under_way = self._closed.offsets or any(a.waits for agents in self._agents.values() for a in agents)
        return BUSY_S if under_way else POLL_S

    def _take(self, records: Sequence[Record]) -> None:
        by_topic: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            topic, number, offset = record.at
            expected = self._read.get((topic, number))
            if expected is None or offset < expected:
                continue  # lost within this poll, or read before
            self._read[topic, number] = offset + 1
            by_topic[topic].append(record)
        for topic, agents in self._agents.items():
            if new := by_topic.get(topic):
                for agent in agents:
                    agent.take(new)
                for record in new:
                    self._reached_ms[topic, record.at.partition] = record.timestamp_ms

    def _is_read(self, tp: TopicPartition, time_ms: int) -> bool:
        return self._reached_ms.get(tp, 0) > time_ms or self._read.get(tp, -1) >= self._consumer.end(tp)

    def _pause_full(self) -> None:
        full = {
            (agent.reading.topic.name, number)
            for agents in self._agents.values()
            for agent in agents
            for number in agent.full()
        }
        if new := full - self._full:
            self._consumer.pause(new)
        if drained := {tp for tp in self._full - full if tp in self._read}:
            self._consumer.resume(drained)
        self._full = full

    def _tick(self) -> None:
        if self._restoring is None:
            for timer in self._timers:
                timer()
        if self.meter.on:
            for agent in (agent for agents in self._agents.values() for agent in agents):
                agent.report()
        _, stuck = self._detector.look(self._sight(), TICK_S)
        if stuck is not None and self.outage.reachable:
            end_process(stuck)

    def _sight(self) -> Sight:
        done = self._consumer.next_offsets(self._read)
        waiting = {agent.reading.topic.name for agents in self._agents.values() for agent in agents if agent.waits}
        return Sight(
            committed=done,
            lagging=frozenset(
                tp for tp, offset in done.items() if self._consumer.end(tp) > offset and tp[0] not in waiting
            ),
            holes={},
            rebalancing=self._restoring is not None,
            recovered={} if self._restoring is None else self._restoring.position,
        )

    def _positions_of(self, topic: str) -> Callable[[], Mapping[TopicPartition, tuple[int, int]]]:
        def positions() -> Mapping[TopicPartition, tuple[int, int]]:
            return {tp: (offset, self._consumer.end(tp)) for tp, offset in self._read.items() if tp[0] == topic}

        return positions

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        """Close the epoch if it is due, send the rows of the closed one, or commit its offsets."""
        closed = self._closed
        if not closed.offsets:
            if time.monotonic() < self._commit_at:
                return
            self._close_epoch()
            closed = self._closed
        if closed.unacknowledged:
            return
        if closed.rows is not None:
            self._send_rows(closed)
            if closed.unacknowledged:
                return
        self._consumer.commit(closed.offsets)
        self._closed = Epoch()
        self._commit_at = time.monotonic() + (BEHIND_S if self._is_behind else COMMIT_EVERY_S)

    def _close_epoch(self) -> None:
        rows = [
            ((t.changelog, number), key, row) for t in self._tables.values() for number, key, row in t.take_changes()
        ]
        self._epoch.close(rows, self._handled_offsets())
        self._closed, self._epoch = self._epoch, Epoch()

    def _handled_offsets(self) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that is not handled."""
        done = {}
        for (topic, number), offset in self._read.items():
            waiting = [agent.first_waiting(number) for agent in self._agents[topic]]
            done[topic, number] = min([offset, *(first for first in waiting if first is not None)])
        return done

    def _send_rows(self, closed: Epoch) -> None:
        rows, closed.rows = closed.rows or [], None
        for tp, key, row in rows:
            generation = self._tables[tp[0]].fence.generation(tp[1], self.generation)
            self._producer.send_bytes(
                tp, key, row, headers={GENERATION: b"%d" % generation}, on_ack=closed.sends(self._row_acknowledged)
            )
        self._producer.serve()

    def _row_acknowledged(self, coordinates: Any) -> None:
        contradiction = self._consumer.changelogs.acknowledged(
            (coordinates.topic, coordinates.partition), coordinates.offset
        )
        if contradiction is not None:
            end_process(f"{contradiction}: the changelog was cut or recreated while this worker ran")

    def _settle(self) -> None:
        """Have all results acknowledged, and request their commit. Raises LogError as Producer.flush."""
        if self._closed.offsets:
            self._finish_closed()
        self._close_epoch()
        self._finish_closed()

    def _finish_closed(self) -> None:
        self._producer.flush()
        if self._closed.rows is not None:
            self._send_rows(self._closed)
            self._producer.flush()
        self._consumer.commit(self._closed.offsets)
        self._closed = Epoch()

    # --- partitions come and go ---------------------------------------------------------------------------------------

    def _on_assigned(self, tps: list[TopicPartition]) -> None:
        consumer = self._consumer
        self.generation = consumer.generation
        self._consumer.pause(tps)
        self._read |= consumer.next_offsets(tps)
        starts, ends = {}, {}
        for tp in consumer.changelogs_of(tps):
            first, end = consumer.bounds[tp]
            reach = self._reaches.pop(tp, None)
            keep = reach is not None and first <= reach <= end and tp not in consumer.distrusted
            self._tables[tp[0]].begin(tp[1], keep=keep)
            starts[tp], ends[tp] = reach if keep and reach is not None else first, end
        for topic, number in self._reaches:
            self._tables[topic].drop(number)
        self._reaches.clear()
        self._restoring = Restoring(self.settings, self._tables, starts, ends, self.outage)
        self.meter.not_ready("kafka", "rows of tables are being read from their changelogs")
        log.info("owns %d partitions, generation %d", len(tps), self.generation)

    def _end_restoring(self) -> None:
        assert self._restoring is not None  # noqa: S101 - the caller has just looked
        restoring, self._restoring = self._restoring, None
        self._consumer.resume(self._read)
        self.meter.ready("kafka")
        verdict = "some have lost records" if self._consumer.distrusted else "none has lost records"
        log.info(
            "reads on: %d rows of %d changelog partitions in %.1f s; %s",
            *(restoring.rows, len(restoring.partitions), restoring.seconds, verdict),
        )

    def _on_revoked(self, tps: list[TopicPartition]) -> None:
        """Settle the work in partitions that are being revoked, and keep their rows in case they come back."""
        if self._leaves:
            return
        if self._restoring is None:
            self._settle()
            self._reaches |= self._consumer.changelogs.reach(self._consumer.changelogs_of(tps))
            for (topic, number), end in self._reaches.items():
                self._tables[topic].fence.admits(number, end - 1, self.generation)
        self._give_up_partitions(tps)

    def _on_lost(self, tps: list[TopicPartition]) -> None:
        """Forget lost partitions."""
        self._epoch, self._closed = Epoch(), Epoch()
        self._give_up_partitions(tps)

    def _give_up_partitions(self, tps: list[TopicPartition]) -> None:
        if self._restoring is not None:
            self._restoring.close()
            self._restoring = None
        for topic, number in self._consumer.changelogs_of(tps):
            if (topic, number) not in self._reaches:
                self._tables[topic].drop(number)
        for tp in tps:
            self._read.pop(tp, None)
            self._reached_ms.pop(tp, None)
            self._full.discard(tp)
        for topic, agents in self._agents.items():
            own_tps = [tp for tp in tps if tp[0] == topic]
            for agent in agents:
                agent.forget(number for _, number in own_tps)
                agent.report(own_tps)


def _finish(handling: Coroutine[Any, Any, None] | Any) -> None:
    """Run a handler, which waits for nothing here, to its end."""
    try:
        handling.send(None)
    except StopIteration:
        return
    handling.close()
    raise RuntimeError("a handler waited for something; in the loop it may only emit")
