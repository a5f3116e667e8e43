"""What comes into the log: groups, some of whose events come twice, late, failed or not at all.

seed, rate ──► events with their times ──► appended when their time comes
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from schemas.events import Event, RewardSource, derive_id
from schemas.serde import encode
from streams.kafka.record import TopicPartition, partition_of
from tests.simulation.clock import EPOCH_S
from tests.simulation.world import Simulation
from tests.support.factories import response, reward, task


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """How much comes, and of what kind."""

    groups_s: float
    slots: int = 2
    policies: int = 16
    answer_s: float = 2.0
    """The longest that a response takes, and then a reward."""
    doubled: float = 0.05
    """The share of events that come twice."""
    lost: float = 0.02
    """The share of rewards that never come: their groups close at the deadline."""
    failed: float = 0.02
    """The share of responses that failed."""


class _Coming(NamedTuple):
    when: float
    number: int
    label: str
    key: str
    payload: bytes


def bring(world: Simulation, load: SimulatedLoad, seconds: float) -> None:
    """Have the load come for so long, from now on."""
    coming = _merged(_events(load, world.clock.now, seconds, world.draw))
    _next(world, coming)


def _next(world: Simulation, coming: Iterator[_Coming]) -> None:
    one = next(coming, None)
    if one is None:
        return

    def write() -> None:
        topic = world.named[one.label]
        tp: TopicPartition = (topic.name, partition_of(one.key, topic.partitions))
        world.broker.append(tp, world.clock.now_ms(), one.key.encode(), one.payload)
        _next(world, coming)

    world.clock.at(one.when, write)


def _merged(groups: Iterator[list[_Coming]]) -> Iterator[_Coming]:
    """Yield the events of groups, which begin one after the other, in the order of their times."""
    waiting: list[_Coming] = []
    for group in groups:
        while waiting and waiting[0].when <= group[0].when:
            yield heapq.heappop(waiting)
        for event in group:
            heapq.heappush(waiting, event)
    while waiting:
        yield heapq.heappop(waiting)


def _events(load: SimulatedLoad, start: float, seconds: float, draw: random.Random) -> Iterator[list[_Coming]]:
    numbers = count()
    for place in range(round(load.groups_s * seconds)):
        begins = start + place / load.groups_s
        coming = [
            _Coming(when, next(numbers), label, event.task_id, encode(event))
            for when, label, event in _group(load, f"{seconds:g}/{place}", begins, draw)
        ]
        coming += [
            one._replace(when=one.when + draw.uniform(0, load.answer_s), number=next(numbers))
            for one in coming
            if draw.random() < load.doubled
        ]
        yield coming


def _group(load: SimulatedLoad, name: str, begins: float, draw: random.Random) -> Iterator[tuple[float, str, Event]]:
    """Yield the events of one group, its task first, each with when it comes and its topic."""
    task_id = derive_id("simulation", f"{begins:.6f}", name)
    policy = f"p{draw.randrange(load.policies)}"
    created_at = int((EPOCH_S + begins) * 1000)
    about = {"task_id": task_id, "policy": policy, "created_at": created_at}
    yield begins, "tasks", task(**about, group_size=load.slots, reward_sources=(RewardSource(name="exact"),))
    for slot in range(load.slots):
        error = "out of memory" if draw.random() < load.failed else None
        answered = begins + draw.uniform(0.01, load.answer_s)
        one = response(**about, sampling_id=f"{task_id}/s", slot=slot, group_size=load.slots, error=error)
        yield answered, "responses", one
        if error is None and draw.random() >= load.lost:
            # a reward may come before its response is read, never before it is written
            yield answered + draw.uniform(0, load.answer_s), "rewards", reward(one, value=float(draw.randrange(3)))
