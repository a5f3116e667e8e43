"""One simulated worker: the real loop worker with its stages, stepped in virtual time, and everything that can end it.

    step ──► LoopWorker.step, at once ──► what it took and wrote costs time ──► the next step, or when something comes
    kill, stop, freeze, hang ──► between two steps, or within one

Its clients ask it for time and for the moment of its death; see HostProcess.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streams.kafka.record import TopicPartition
from streams.stages import batches
from streams.stages.advantages import loop as advantages
from streams.tools.capacity import BATCH_S, JOIN_S, ROW_S
from streams.worker.batched import worker as loop
from tests.simulation.broker import Stored
from tests.simulation.clients import SimulatedConsumer, SimulatedProducer

if TYPE_CHECKING:
    from tests.simulation.world import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of a core, as docs/benchmarks.md has them."""

    record_s: float = JOIN_S / 17
    """Of a record of the join: BENCH=join, a group of 17 at 32 tokens."""
    group_s: float = BATCH_S
    """Of a group of 17 records in the batch stage."""
    row_s: float = ROW_S
    """Of a row that is read again."""
    start_s: float = 0.8
    """Of Python, until the worker asks to join: BENCH=restart, the rest."""
    step_s: float = 0.0005
    reader_s: float = 0.02
    """Of a client that fetches records by their offsets."""
    ack_s: float = 0.005


class Killed(BaseException):
    """The process ends here."""


class Ended(Exception):
    """The worker ended itself, to be restarted."""


class SimulatedProcess:
    """One worker. `host` of its clients; see HostProcess."""

    def __init__(self, world: Simulation, number: int, *, slow: float = 1.0) -> None:
        """`slow` is how many times as long everything takes."""
        self.world, self.number, self.slow = world, number, slow
        self.broker, self.group = world.broker, world.group
        self.dead = self.is_ready = False
        self.local = 0.0
        self._is_frozen = False
        self._deferred: list[Callable[[], None]] = []
        """What would have happened while it is frozen."""
        self._waits_until: float | None = None
        self._next_at: float | None = None
        self._kill_in: int | None = None
        self._producers: list[SimulatedProducer] = []
        self._worker: loop.LoopWorker | None = None
        self._stopping = False
        self._owned = frozenset[int]()
        self._held: list[int] = []
        """What it read when it was frozen."""
        world.clock.at(world.clock.now + world.costs.start_s * slow, self._begin)

    # --- what its clients see -----------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """See HostProcess."""
        return not self.dead and not self._is_frozen

    def call(self) -> None:
        """See HostProcess."""
        if self._kill_in is not None:
            self._kill_in -= 1
            if self._kill_in < 0:
                raise Killed

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """See HostProcess."""
        clock = self.world.clock

        def when_it_runs() -> None:
            if self._is_frozen:
                self._deferred.append(call)
            else:
                call()

        clock.at(self.local + delay_s, when_it_runs)

    def wait(self, seconds: float) -> None:
        """See HostProcess."""
        if seconds > 0:
            self._waits_until = self.local + seconds

    def wake(self) -> None:
        """See HostProcess."""
        if self.world.at_work is self or self._waits_until is None:
            return
        self._waits_until = None
        self._schedule(self.world.clock.now)

    def took(self, tp: TopicPartition, records: list[Stored], *, by_fetch: bool) -> None:
        """See HostProcess."""
        world, costs, measured = self.world, self.world.costs, self.world.measured
        if by_fetch and tp[0] in world.sources:
            return  # responses of a group that leaves, looked up: the client is what it costs
        if by_fetch:
            measured.rows += len(records)
            each_s = costs.row_s
        else:
            again = sum(record.offset < world.read_to[tp] for record in records)
            measured.taken += len(records)
            measured.again += again
            world.read_to[tp] = max(world.read_to[tp], records[-1].offset + 1)
            each_s = costs.group_s if tp[0] == world.groups else costs.record_s
        self.local += len(records) * each_s * world.weight * self.slow

    def reads(self, tps: Iterable[TopicPartition]) -> None:
        """See HostProcess."""
        for number in self._numbers(tps):
            self.world.reads(number, self, self.local)

    def stops(self, tps: Iterable[TopicPartition]) -> None:
        """See HostProcess."""
        for number in self._numbers(tps):
            self.world.stops(number, self, self.local)

    def _numbers(self, tps: Iterable[TopicPartition]) -> Iterator[int]:
        return (number for topic, number in tps if topic == self.world.tasks)

    def ack_s(self, tp: TopicPartition) -> float:
        """See HostProcess: some partitions' leaders take longer than others'."""
        return self.world.costs.ack_s * (0.5 + (hash_of(tp) % 7) / 4)

    # --- its life -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._is_frozen:
            self._deferred.append(self._begin)
        if not self.running:
            return
        world = self.world
        self.local = world.clock.now
        with world.work_of(self):
            self._worker = loop.LoopWorker(world.settings, threading.Event())
            advantages.register(self._worker)
            batches.register(self._worker)
            self._worker.__enter__()
        self._schedule(self.local)

    def _schedule(self, when: float) -> None:
        self._next_at = when
        self.world.clock.at(when, lambda: self._step(when))

    def _step(self, when: float) -> None:
        world, worker = self.world, self._worker
        if not self.running or self._next_at != when or worker is None:
            return
        self.local, self._waits_until = world.clock.now, None
        with world.work_of(self):
            try:
                if self._stopping:
                    worker.__exit__(None, None, None)
                    self.dead = True
                    return
                worker.step()
            except Killed:
                self.kill()
                return
            except Ended as exc:
                world.measured.ended.append(f"{world.clock.now:.1f} s, worker {self.number}: {exc}")
                self.kill()
                world.replace(self)
                return
            finally:
                self.local += world.costs.step_s * self.slow
        self._tell(worker)
        self._schedule(self.local if self._waits_until is None else self._waits_until)

    def _tell(self, worker: loop.LoopWorker) -> None:
        """Note which partitions it reads, when that changes."""
        owned = frozenset(worker.owned(self.world.named["tasks"]))
        if owned != self._owned:
            self._owned, self.is_ready = owned, self.is_ready or bool(owned)
            name = worker._consumer._consumer.memberid()
            self.world.told.append((self.world.clock.now, self.number, name, worker.generation, owned))

    def stop(self) -> None:
        """Have it end as SIGTERM does: what was handled is settled."""
        self._stopping = True
        self.wake()

    def kill(self) -> None:
        """End it at once, with what is in flight."""
        if self.dead:
            return
        self.dead = True
        self.local = max(self.local, self.world.clock.now)
        for producer in self._producers:
            producer.die(lambda most: self.world.draw.randint(0, most))
        for number in self.world.read_by(self):
            self.world.stops(number, self, self.world.clock.now)

    def kill_within(self, calls: int) -> None:
        """Kill it in the middle of what it does next: before so many calls of its clients."""
        self._kill_in = calls

    def spare(self) -> None:
        """Let it live, though it was to be killed."""
        self._kill_in = None

    def freeze(self, seconds: float | None = None) -> None:
        """Let it stand still, as SIGSTOP does, for so long or until `thaw`; it knows nothing of it."""
        now, self._is_frozen = self.world.clock.now, True
        self._held = self.world.read_by(self)
        for number in self._held:
            self.world.stops(number, self, now)
        if seconds is not None:
            self.world.clock.at(now + seconds, self.thaw)

    def hang(self, seconds: float) -> None:
        """Have what it does next take so long; its heart beats, which is another thread's."""
        self._waits_until = None
        self._schedule(self.world.clock.now + seconds)

    def thaw(self) -> None:
        """Let it continue: what it read it reads again, unless somebody else does by now."""
        if self.dead or not self._is_frozen:
            return
        now, self._is_frozen = self.world.clock.now, False
        for number in self._held:
            if self.world.last_reader.get(number) is self:
                self.world.reads(number, self, now)
        deferred, self._deferred = self._deferred, []
        for call in deferred:
            self.world.clock.at(now, call)
        self._schedule(max(now, self.local))

    # --- its clients --------------------------------------------------------------------------------------------------

    def consumer(self, config: dict[str, Any]) -> SimulatedConsumer:
        """Return what `confluent_kafka.Consumer` makes."""
        self.local += self.world.costs.reader_s
        return SimulatedConsumer(self, config)

    def producer(self, config: dict[str, Any]) -> SimulatedProducer:
        """Return what `confluent_kafka.Producer` makes."""
        self._producers.append(SimulatedProducer(self, self.world.clock.now_ms))
        return self._producers[-1]


def hash_of(tp: TopicPartition) -> int:
    """Return a number that is the same in every run."""
    return sum(tp[0].encode()) * 31 + tp[1] * 17
