"""Workers in virtual time: the code of the loop worker and its stages, its clients simulated, killed and frozen.

    tasks, responses, rewards ──► SimulatedProcess, many: LoopWorker.step, and the time it takes ──► groups, batches
                                    └── killed within a step, stopped, frozen, slow

What is real: `streams/worker/batched`, the stages, and `consumer.py`, `reader.py` and `producer.py` of `streams/kafka`,
with all that they decide about rebalances, epochs, rows and fences. What is not: librdkafka, the broker, and time.

A record stands for `weight` of them: it takes as long, and as many fewer are taken at once. So a few hundred thousand
events keep hundreds of workers as busy as a hundred million would.

Not covered: the network, and a broker with too much to do. Every process has a core of its own.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn
from unittest import mock

import confluent_kafka as ck

from streams.kafka import topic_ids
from streams.kafka.record import TopicPartition
from streams.kafka.topics import KEYED_BY_TASK, topics
from streams.settings.model import Settings
from streams.worker import changelog_topics
from streams.worker.batched import restoring, worker as loop
from tests.simulation.broker import SimulatedBroker
from tests.simulation.clock import VirtualClock, read_by_workers
from tests.simulation.group import GroupTimes, SimulatedGroup
from tests.simulation.process import Costs, Ended, SimulatedProcess

READ = (*KEYED_BY_TASK, "groups")
"""What the stages read, by label."""


def _end_process(why: str) -> NoReturn:
    raise Ended(why)


class _WithoutIds:
    """In place of a client of the node's administration: no topic is recreated here, and none has an id."""

    has_answered = True

    @property
    def client(self) -> _WithoutIds:
        """Itself."""
        return self

    def describe_topics(self, *_: object, **__: object) -> dict[str, Any]:
        """Return no topic."""
        return {}


class _Unwatched:
    """In place of the worker's watchdog, which is a thread in real time."""

    def __init__(self, *_: object) -> None: ...

    def beat(self) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nobody looks."""


@dataclass
class Measured:
    """What happened."""

    still_s: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """By partition number: since when, and how long, nobody read it."""
    rows: int = 0
    """Read again from changelogs."""
    taken: int = 0
    """Records of the sources that were taken."""
    again: int = 0
    """Those that had been taken before."""
    moved: int = 0
    """Partition numbers that went to another worker."""
    ended: list[str] = field(default_factory=list)
    """Why workers ended themselves."""
    kept: int = 0
    """Partition numbers that came back to the worker that had them."""


class Simulation:
    """The log, the group, and all processes. Use as a context manager: within it, the workers' code is simulated."""

    def __init__(
        self,
        settings: Settings,
        *,
        seed: int = 0,
        weight: float = 1.0,
        costs: Costs | None = None,
        times: GroupTimes | None = None,
    ) -> None:
        self.settings, self.weight, self.costs = settings, weight, costs or Costs()
        self.draw, self.clock, self.measured = random.Random(seed), VirtualClock(), Measured()
        self.named = topics(settings.topics)
        self.tasks, self.groups = self.named["tasks"].name, self.named["groups"].name
        self.sources = {self.named[label].name: self.named[label].partitions for label in READ}
        self.broker = SimulatedBroker({topic.name: topic.partitions for topic in self.named.values()}, weight)
        session_s = settings.kafka.session_timeout_s
        self.group = SimulatedGroup(self.clock, times or GroupTimes(session_s=session_s), self.sources, self.draw)
        self.processes: list[SimulatedProcess] = []
        self.at_work: SimulatedProcess | None = None
        self.read_to: dict[TopicPartition, int] = defaultdict(int)
        self.last_reader: dict[int, SimulatedProcess] = {}
        self.reading: dict[int, tuple[float, float]] = {}
        """By partition number that is read: since when, and since when it was not before."""
        self._still: dict[int, float] = dict.fromkeys(range(settings.topics.partitions), 0.0)
        self.told: list[tuple[float, int, str, int, frozenset[int]]] = []
        """When, and of which worker: its name in the group, the generation, what it reads from then on."""
        self._patches: list[Any] = []

    def __enter__(self) -> Simulation:
        # what takes most records at once takes fewer, as each stands for many
        most, rows = max(1, round(loop.MAX_RECORDS / self.weight)), max(1, round(restoring.AT_ONCE / self.weight))
        self._patches = [
            read_by_workers(self.clock, self._sleep),
            mock.patch.object(ck, "Consumer", lambda config: self._host.consumer(config)),
            mock.patch.object(ck, "Producer", lambda config: self._host.producer(config)),
            mock.patch.object(changelog_topics, "create", lambda _, wanted: self.broker.create_compacted(wanted)),
            mock.patch.object(topic_ids, "kept_admin", lambda _: _WithoutIds()),
            mock.patch.object(loop, "Watchdog", _Unwatched),
            mock.patch.object(loop, "end_process", _end_process),
            mock.patch.object(loop, "MAX_RECORDS", most),
            mock.patch.object(restoring, "AT_ONCE", rows),
        ]
        for patch in self._patches:
            patch.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        for patch in reversed(self._patches):
            patch.__exit__(*exc)

    @property
    def _host(self) -> SimulatedProcess:
        assert self.at_work is not None, "no process is at work"
        return self.at_work

    def _sleep(self, seconds: float) -> None:
        self._host.local += seconds

    @contextmanager
    def work_of(self, process: SimulatedProcess) -> Iterator[None]:
        """Have a process at work: time is its own."""
        self.at_work, self.clock.ahead = process, lambda: process.local
        try:
            yield
        finally:
            self.at_work = self.clock.ahead = None

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, count: int = 1, *, slow: float = 1.0) -> list[SimulatedProcess]:
        """Start workers."""
        new = [SimulatedProcess(self, len(self.processes) + n, slow=slow) for n in range(count)]
        self.processes += new
        return new

    def replace(self, process: SimulatedProcess) -> SimulatedProcess:
        """Start another in place of one that has ended."""
        (new,) = self.start(slow=process.slow)
        return new

    @property
    def alive(self) -> list[SimulatedProcess]:
        """The processes that have not ended."""
        return [process for process in self.processes if not process.dead]

    # --- who reads what -----------------------------------------------------------------------------------------------

    def reads(self, number: int, process: SimulatedProcess, when: float) -> None:
        """A process reads a partition number from now on."""
        if number in self.reading and self.last_reader.get(number) is process:
            return
        if number in self._still:
            since = self._still.pop(number)
            self.reading[number] = (when, since)
            before = self.last_reader.get(number)
            if before is not None:
                self.measured.still_s[number].append((since, when - since))
            if before is not process:
                self.measured.moved += before is not None
            else:
                self.measured.kept += 1
        self.last_reader[number] = process

    def stops(self, number: int, process: SimulatedProcess, when: float) -> None:
        """A process reads it no more."""
        if self.last_reader.get(number) is not process or number not in self.reading:
            return
        began, still_since = self.reading.pop(number)
        if when > began:
            self._still[number] = when
            return
        self._still[number] = still_since  # it was paused as soon as it was assigned
        gaps = self.measured.still_s[number]
        if gaps and gaps[-1][0] == still_since:
            gaps.pop()

    def read_by(self, process: SimulatedProcess) -> list[int]:
        """Return the partition numbers that a process reads."""
        return [number for number in self.reading if self.last_reader.get(number) is process]

    # --- running ------------------------------------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """Records of the sources that are not committed."""
        committed = self.group.committed
        return sum(
            self.broker[name, number].end - committed.get((name, number), (0, ""))[0]
            for name, count in self.sources.items()
            for number in range(count)
        )

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        self.clock.run_until(self.clock.now + seconds)

    def run_until(self, what: Callable[[], bool], *, limit_s: float, every_s: float = 0.5) -> None:
        """Let time pass until something is so. Raises AssertionError if it is not within `limit_s`."""
        end = self.clock.now + limit_s
        while not what():
            assert self.clock.now < end, f"not within {limit_s:g} s of virtual time; lag {self.lag}"
            self.run(every_s)
