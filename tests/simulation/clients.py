"""confluent_kafka's consumer and producer over the simulated broker: what the workers' code calls, and no more.

    Consumer.poll, consume ──► commits answered ──► a rebalance: on_revoke, on_lost, on_assign ──► records
    Producer.produce ──► in flight ──► appended, at its time, in order ──► poll, flush ──► on_delivery

A process that dies leaves what is in flight: of each partition the first few records are written, unacknowledged.

Not covered: errors of the broker. `tests/log` has them, with a real one.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import confluent_kafka as ck

from streams.kafka.reader import EARLIEST
from streams.kafka.record import TopicPartition, partition_of
from tests.simulation.broker import SimulatedBroker, Stored
from tests.simulation.group import SimulatedGroup, SimulatedMember

OnDelivery = Callable[[Any, Any], None]


class HostProcess(Protocol):
    """The process whose clients these are."""

    broker: SimulatedBroker
    group: SimulatedGroup
    running: bool
    """It is neither frozen nor dead."""
    dead: bool
    local: float
    """Its own time, within a step."""

    def call(self) -> None:
        """It calls the client: the moment at which it may be killed."""

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Have `call` called when so much of the process's time has passed."""

    def wait(self, seconds: float) -> None:
        """It waits for something to come."""

    def wake(self) -> None:
        """Something has come."""

    def took(self, tp: TopicPartition, records: list[Stored], *, by_fetch: bool) -> None:
        """It takes records, as a member of the group or as a reader of its own: what they cost it passes."""

    def reads(self, tps: Iterable[TopicPartition]) -> None:
        """It reads these partitions from now on."""

    def stops(self, tps: Iterable[TopicPartition]) -> None:
        """It reads them no more."""

    def ack_s(self, tp: TopicPartition) -> float:
        """Return how long the broker takes to acknowledge a record."""


class SimulatedConsumer:
    """As confluent_kafka.Consumer: a member of the group once it subscribes, or a reader of what it assigns itself."""

    def __init__(self, host: HostProcess, config: Mapping[str, Any]) -> None:
        self._host, self._wants_eof = host, bool(config.get("enable.partition.eof"))
        self._on_commit = config.get("on_commit")
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._ended: set[TopicPartition] = set()
        self._turn = 0
        self._is_empty = False
        """Whether nothing has come since nothing was there."""
        self._member: SimulatedMember | None = None
        self._callbacks: tuple[Any, Any, Any] = (None, None, None)
        self._events: deque[str] = deque()
        self._answers: deque[Callable[[], None]] = deque()
        self._is_assigned = self._is_closed = False

    # --- as a member --------------------------------------------------------------------------------------------------

    @property
    def beats(self) -> bool:
        """See Pulse."""
        return self._host.running and not self._is_closed

    @property
    def ended(self) -> bool:
        """See Pulse."""
        return self._host.dead or self._is_closed

    def told(self, what: str) -> None:
        """See Pulse."""
        self._events.append(what)
        self._host.wake()

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        """Join the group."""
        self._callbacks = (on_assign, on_revoke, on_lost)
        self._new_member()

    def _new_member(self) -> None:
        self._member = self._host.group.new_member(self)
        self._join(requests=2)  # the first is answered with the id to join with

    def _join(self, requests: int = 1) -> None:
        member = self._member
        assert member is not None, "not subscribed"
        self._host.later(requests * self._host.group.times.request_s, lambda: self._host.group.join(member))

    def _serve(self) -> None:
        while self._answers:
            self._answers.popleft()()
        while self._events:
            event = self._events.popleft()
            on_assign, on_revoke, on_lost = self._callbacks
            member = self._member
            assert member is not None, "not subscribed"
            if event == "rebalance":
                if not self._host.group.is_current(member) or member.joined:
                    continue
                self._give_up(on_revoke)
                self._join()
            elif event == "lost":
                self._give_up(on_lost)
                self._new_member()
            elif event == "assigned" and self._host.group.is_current(member):
                self._is_assigned = True
                on_assign(self, [ck.TopicPartition(*tp) for tp in member.assigned])

    def _give_up(self, tell: Any) -> None:
        if self._is_assigned:
            self._is_assigned = False
            tell(self, [ck.TopicPartition(*tp) for tp in self._member.assigned if self._member])
            self.assign([])

    def memberid(self) -> str:
        """Return its name in the group."""
        return "" if self._member is None else self._member.name

    def consumer_group_metadata(self) -> bytes:
        """As librdkafka writes it: streams/worker/batched/worker_consumer.py reads the generation."""
        assert self._member is not None, "not subscribed"
        return b"CGMDv2:" + struct.pack("<i", self._member.generation)

    def commit(self, *, offsets: list[ck.TopicPartition]) -> None:
        """Ask for a commit; `poll` takes the answer."""
        self._host.call()
        member = self._member
        assert member is not None, "not subscribed"
        generation = member.generation
        noted = [((at.topic, at.partition), at.offset, at.metadata or "") for at in offsets]

        def arrive() -> None:
            done = self._host.group.commit(member, generation, noted)
            failed = None if done else ck.KafkaError(ck.KafkaError.ILLEGAL_GENERATION)
            self._answers.append(lambda: self._on_commit(failed, offsets) if self._on_commit else None)
            self._host.wake()

        self._host.later(self._host.group.times.request_s, arrive)

    def committed(self, wanted: list[ck.TopicPartition], timeout: float) -> list[ck.TopicPartition]:
        """Return what is committed, with its note."""
        self._host.local += 2 * self._host.group.times.request_s
        found = []
        for at in wanted:
            offset, note = self._host.group.committed.get((at.topic, at.partition), (ck.OFFSET_INVALID, ""))
            found.append(ck.TopicPartition(at.topic, at.partition, offset, metadata=note))
        return found

    # --- reading ------------------------------------------------------------------------------------------------------

    def assign(self, partitions: list[ck.TopicPartition]) -> None:
        """Read these partitions, from their offsets on, and nothing else."""
        before, self._positions = self._positions, {(at.topic, at.partition): at.offset for at in partitions}
        self._paused.clear()
        self._ended.clear()
        self._is_empty = False
        if self._member is not None:
            for tp in before:
                self._host.broker.watchers[tp].pop(self._grown, None)
            for tp in self._positions:
                self._host.broker.watchers[tp][self._grown] = None
            self._host.stops(before)
            self._host.reads(self._positions)

    def _grown(self) -> None:
        self._is_empty = False
        self._host.wake()

    def pause(self, partitions: list[ck.TopicPartition]) -> None:
        """Stop reading some."""
        tps = [(at.topic, at.partition) for at in partitions]
        self._paused.update(tps)
        if self._member is not None:
            self._host.stops(tps)

    def resume(self, partitions: list[ck.TopicPartition]) -> None:
        """Read them again."""
        tps = [(at.topic, at.partition) for at in partitions]
        self._paused.difference_update(tps)
        self._is_empty = False
        if self._member is not None:
            self._host.reads(tps)

    def poll(self, timeout: float) -> ck.Message | None:
        """Return one message, or None."""
        self._host.call()
        if self._member is not None or self._events:
            self._serve()
        some = self._take(1)
        if not some and self._member is not None:
            self._host.wait(timeout)
        return some[0] if some else None

    def consume(self, count: int, timeout: float) -> list[ck.Message]:
        """Return up to `count` messages that are there."""
        return self._take(count)

    def _take(self, count: int) -> list[ck.Message]:
        taken: list[ck.Message] = []
        if self._is_empty:
            return taken
        tps = [tp for tp in self._positions if tp not in self._paused]
        self._turn += 1
        for place in range(len(tps)):
            tp = tps[(self._turn + place) % len(tps)]
            partition, at = self._host.broker[tp], self._positions[tp]
            records = partition.read_from(at, count - len(taken)) if at < partition.end else []
            if records:
                self._host.took(tp, records, by_fetch=self._member is None)
                taken += [_message(tp, record) for record in records]
                self._positions[tp] = records[-1].offset + 1
                self._ended.discard(tp)
            if len(taken) >= count:
                break
            if self._wants_eof and tp not in self._ended:
                self._ended.add(tp)
                self._positions[tp] = partition.end
                taken.append(_eof(tp, partition.end))
        self._is_empty = not taken
        return taken

    # --- what is asked of the broker ----------------------------------------------------------------------------------

    def assignment(self) -> list[ck.TopicPartition]:
        """Return the partitions that are read."""
        return [ck.TopicPartition(*tp) for tp in self._positions]

    def position(self, partitions: list[ck.TopicPartition]) -> list[ck.TopicPartition]:
        """Return where reading is."""
        return [ck.TopicPartition(at.topic, at.partition, self._positions[at.topic, at.partition]) for at in partitions]

    def get_watermark_offsets(
        self, at: ck.TopicPartition, timeout: float = 0.0, cached: bool = False
    ) -> tuple[int, int]:
        """Return the bounds of a partition. The simulated log begins at 0."""
        return 0, self._host.broker[at.topic, at.partition].end

    def offsets_for_times(self, asked: list[ck.TopicPartition], timeout: float) -> list[ck.TopicPartition]:
        """Return first or next offsets; a time is not asked for in what is simulated."""
        self._host.local += 2 * self._host.group.times.request_s
        found = []
        for at in asked:
            assert at.offset < 0, f"{at.topic}[{at.partition}]: {at.offset} is a time"
            offset = 0 if at.offset == EARLIEST else self._host.broker[at.topic, at.partition].end
            found.append(ck.TopicPartition(at.topic, at.partition, offset))
        return found

    def list_topics(self, topic: str, timeout: float) -> None:
        """The broker answers."""

    def close(self) -> None:
        """Leave the group; what was committed before arrives before."""
        if self._is_closed:
            return
        member = self._member
        if member is not None:
            self._give_up(self._callbacks[1])
            self._host.later(self._host.group.times.request_s, lambda: self._host.group.leave(member))
        self._is_closed = True


def _message(tp: TopicPartition, record: Stored) -> ck.Message:
    return ck.Message(
        topic=tp[0], partition=tp[1], offset=record.offset, key=record.key, value=record.value,
        headers=record.headers, timestamp=(ck.TIMESTAMP_CREATE_TIME, record.timestamp_ms),
    )  # fmt: skip


def _eof(tp: TopicPartition, end: int) -> ck.Message:
    return ck.Message(topic=tp[0], partition=tp[1], offset=end, error=ck.KafkaError(ck.KafkaError._PARTITION_EOF))


class InFlight(NamedTuple):
    """A record on its way to the broker."""

    tp: TopicPartition
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    on_delivery: OnDelivery


class SimulatedProducer:
    """As confluent_kafka.Producer, idempotent: each partition's records in order, each once."""

    def __init__(self, host: HostProcess, now_ms: Callable[[], int]) -> None:
        self._host, self._now_ms = host, now_ms
        self._in_flight: dict[TopicPartition, deque[InFlight]] = defaultdict(deque)
        self._answers: deque[tuple[OnDelivery, ck.Message]] = deque()

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        *,
        on_delivery: OnDelivery,
        headers: list[tuple[str, bytes | None]],
        timestamp: int,
        partition: int,
    ) -> None:
        """Send a record."""
        self._host.call()
        if partition < 0:
            assert key is not None, f"a record of {topic} without a key has no partition of its own"
            partition = partition_of(key.decode(), self._host.broker.counts[topic])
        tp = (topic, partition)
        self._in_flight[tp].append(InFlight(tp, timestamp or self._now_ms(), key, value, headers, on_delivery))
        self._host.later(self._host.ack_s(tp), lambda: self._arrive(tp))

    def _arrive(self, tp: TopicPartition) -> None:
        if self._in_flight[tp] and not self._host.dead:
            self._write(self._in_flight[tp].popleft())

    def _write(self, sent: InFlight) -> None:
        offset = self._host.broker.append(sent.tp, sent.timestamp_ms, sent.key, sent.value, sent.headers)
        message = ck.Message(
            topic=sent.tp[0], partition=sent.tp[1], offset=offset,
            timestamp=(ck.TIMESTAMP_CREATE_TIME, sent.timestamp_ms),
        )  # fmt: skip
        self._answers.append((sent.on_delivery, message))
        self._host.wake()

    def poll(self, timeout: float) -> int:
        """Call back for what was acknowledged."""
        done = 0
        while self._answers:
            call, message = self._answers.popleft()
            call(None, message)
            done += 1
        return done

    def flush(self, timeout: float) -> int:
        """Wait until everything is acknowledged."""
        self._host.call()
        waiting = [queue for queue in self._in_flight.values() if queue]
        if waiting:
            self._host.local += max(self._host.ack_s(queue[0].tp) for queue in waiting)
        for queue in waiting:
            while queue:
                self._host.call()
                self._write(queue.popleft())
        self.poll(0)
        return 0

    def purge(self) -> None:
        """Nothing is left of what was not sent."""
        self._in_flight.clear()

    def die(self, draw: Callable[[int], int]) -> None:
        """Its process is gone: of each partition's records the first `draw(how many)` arrive yet."""
        for queue in self._in_flight.values():
            for _ in range(draw(len(queue))):
                self._write(queue.popleft())
        self._in_flight.clear()
        self._answers.clear()

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._in_flight.values())
