"""One partition of the four topics, and the join reading it.

    Log.read(event) ──► next offset of its topic ──► GroupReducer.reduce ──► Log.closes, Log.rejects, Log.group()
                                  state ──► table row ──► state, before and after every step

Not covered: several partitions. The join never looks from one into another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from schemas.events import AdvantagedGroup, Coordinates, Event, GroupControl, Response, Reward, Task
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Advantages, Topics
from streams.stages.advantages.group_event import group_record
from streams.stages.advantages.incoming import ResponseBody, columns_of, incoming
from streams.stages.advantages.reducer import GroupReducer
from streams.stages.advantages.rows import dump, load
from streams.stages.advantages.state import DeadLetterEffect, Effect, EmitGroup, GroupState
from tests.support.factories import response, reward

GROUPS = topics(Topics())["groups"]
TOPICS: dict[type[Any], str] = {
    Task: "tasks",
    Response: "responses",
    Reward: "rewards",
    GroupControl: "group-control",
}


class Log:
    """Partition 5 of the four topics, and the join reading it; the table row is written and read at every step."""

    def __init__(self, *, row_bytes: int = 4 * 1024 * 1024, **rule: Any) -> None:
        self.reducer = GroupReducer(Advantages(**rule), "responses", "rewards", row_bytes)
        self.state: GroupState = None
        self.ends: dict[str, int] = {}
        self.bodies: dict[tuple[int, int], ResponseBody] = {}
        self.closes: list[EmitGroup] = []
        self.rejects: list[DeadLetterEffect] = []
        self.history: dict[str, int] = {}

    def read(self, event: Event, at_ms: int | None = None) -> Sequence[Effect]:
        """Append `event` to its topic and read it; the record's time is created_at unless given."""
        topic = TOPICS[type(event)]
        offset = self.ends[topic] = self.ends.get(topic, -1) + 1
        return self.read_at(event, offset, event.created_at if at_ms is None else at_ms)

    def read_at(self, event: Any, offset: int, at_ms: int) -> Sequence[Effect]:
        at = Coordinates(TOPICS[type(event)], 5, offset)
        (came,) = incoming(type(event), columns_of(event), [Record(at, at_ms, None, None)])
        if came.body is not None:
            self.bodies[5, offset] = came.body
        self.state, effects = self.reducer.reduce(reloaded(self.state), came, at, at_ms)
        assert reloaded(self.state) == self.state
        self.closes += [effect for effect in effects if isinstance(effect, EmitGroup)]
        self.rejects += [effect for effect in effects if isinstance(effect, DeadLetterEffect)]
        return effects

    def read_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self.read(event)

    def group(self) -> AdvantagedGroup:
        """Return the one group that left."""
        (close,) = self.closes
        made = group_record(close, self.bodies, GROUPS)
        assert made is not None
        return made.event()

    def reasons(self) -> list[tuple[str, str]]:
        """Return what was rejected: its coordinates, and why."""
        return [(f"{effect.at.topic}@{effect.at.offset}", effect.reason) for effect in self.rejects]


def reloaded(state: GroupState) -> GroupState:
    return None if state is None else load(dump(state))


def answers(size: int = 4, **changes: Any) -> list[Response]:
    return [response(slot=slot, group_size=size, **changes) for slot in range(size)]


def scores(of: Iterable[Response], values: Sequence[float] = (0.0, 1.0, 1.0, 2.0), **changes: Any) -> list[Reward]:
    return [reward(one, value=value, **changes) for one, value in zip(of, values, strict=False)]


def left_out(group: AdvantagedGroup) -> list[tuple[int, str]]:
    return [(left.slot, left.reason) for left in group.left_out]
