"""Everything that was answered and is finished: responses in groups, and runs of agents, each with all that is known.

    groups ────────────────────────────────► a task's responses, or the runs of agents that they are ─┐
    trajectories ──► ended, and no task's ─► one run ─────────────────────────────────────────────────┴─► Finished
    tasks, turns, rewards (feedback) ──────► found by their key

A group, and the end of a run, are written after everything that they are about. So the topics with the former are
looked at first, and the others are read at least as far. Of a record only its place is kept, until it is needed; what
it says is fetched when the group or the end comes, some hundred at a time.

Not covered: a response that is in no group, since its task is open, its group was dropped, or it failed.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from schemas.conventions import FEEDBACK
from schemas.events import (
    AdvantagedGroup,
    Coordinates,
    Event,
    GroupResponse,
    Purpose,
    Response,
    Reward,
    Task,
    TrajectoryEvent,
    Turn,
)
from schemas.serde import Poison
from streams.kafka.history import History
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.agents.trajectories.fold import Trajectory, fold

BY_KEY = ("trajectories", "tasks", "turns", "rewards")
"""What is found by the id of its task."""
LABELS = ("groups", "responses", *BY_KEY)
"""The topics it reads."""
CHUNK = 256
"""Groups, or ends of runs, whose records are fetched at once."""
AnEvent = TypeVar("AnEvent", bound=Event)
log = logging.getLogger("streamward.export")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSelection:
    """Which of it is wanted; None: all."""

    policy: str
    purpose: Purpose | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A response, or a run of an agent, and all that the log has about it."""

    at: Coordinates
    """Of its group, or of the end of the run."""
    answer_id: str
    """Of the response; of the trajectory where no task was submitted."""
    task_id: str
    purpose: Purpose
    task: Task | None = None
    group: AdvantagedGroup | None = None
    member: GroupResponse | None = None
    response: Response | None = None
    run: Trajectory | None = None
    """Of an agent's run: its calls."""
    feedback: dict[str, list[Reward]] = field(default_factory=dict)
    """By what it is about: the answer_id, or a turn."""

    @property
    def reward(self) -> float | None:
        """What its scorers gave; None if nobody was to score it."""
        if self.group is None or self.member is None:
            return None
        return self.member.reward if self.group.purpose != "serve" or self.member.components else None

    def opinion(self, *about: str) -> float | None:
        """Return the mean of the feedback on these; None if there is none."""
        values = [reward.value or 0.0 for name in about for reward in self.feedback.get(name, ())]
        return sum(values) / len(values) if values else None


class FinishedReader:
    """Reads on from where the last round ended; within a round, in an order that never changes. Raises as `History`."""

    def __init__(self, settings: Settings, history: History, wanted: FinishedSelection) -> None:
        self.history = history
        """May be replaced between two rounds."""
        self.unusable = 0
        """Records that are no events, or gone, and what they were about is left out for it."""
        self._wanted = wanted
        self._names = {label: topics(settings.topics)[label] for label in LABELS}
        self._kinds = {topic.name: topic.event for topic in self._names.values()}
        self._low: dict[TopicPartition, int] = {}
        self._next: dict[TopicPartition, int] = {}
        self._first: dict[TopicPartition, int] = {}
        self._places: defaultdict[bytes, list[Coordinates]] = defaultdict(list)
        """Where the records of a task are, by their key."""

    def ranges(self) -> list[dict[str, Any]]:
        """Return what was read, for a manifest."""
        return [
            {"topic": name, "partition": partition, "first": self._first[name, partition], "next": end}
            for (name, partition), end in sorted(self._next.items())
        ]

    def round(self) -> Iterator[Finished]:
        """Yield what is finished now and was not when the last round began, each group and each end once."""
        ends = {label: self._end(label) for label in LABELS}  # in this order: causes are read at least as far
        ended: list[Coordinates] = []
        starts = {label: self._begin(ends[label]) for label in LABELS}
        for label in BY_KEY:
            for record in self.history.read(starts[label], ends[label]):
                self._remember(label, record, ended)
        for tp, start in sorted(starts["groups"].items()):  # each alone, so that the order is that of the log
            end = ends["groups"][tp]
            groups = filter(self._is_in_time, self.history.read({tp: start}, {tp: end}) if start < end else ())
            while chunk := list(islice(groups, CHUNK)):
                yield from self._of_groups(chunk)
        ended.sort()
        for begin in range(0, len(ended), CHUNK):
            found = self.history.fetch(ended[begin : begin + CHUNK])
            yield from self._of_ends([found[at] for at in ended[begin : begin + CHUNK]])

    # --- reading on ---------------------------------------------------------------------------------------------------

    def _end(self, label: str) -> dict[TopicPartition, int]:
        bounds = self.history.bounds([label])
        self._low |= {tp: low for tp, (low, _) in bounds.items()}
        return {tp: high for tp, (_, high) in bounds.items()}

    def _begin(self, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return where to read on."""
        starts = {tp: self._next.get(tp, self._low[tp]) for tp in ends}
        self._first = starts | self._first
        self._next |= ends
        return starts

    def _remember(self, label: str, record: Record, ended: list[Coordinates]) -> None:
        if record.key is None or (label == "rewards" and FEEDBACK.encode() not in (record.payload or b"")):
            return
        self._places[record.key].append(record.at)
        if label == "trajectories" and self._is_in_time(record):
            event = record.decode(TrajectoryEvent)
            if not isinstance(event, Poison) and event.kind == "ended" and event.sampling_id is None:
                ended.append(record.at)

    def _is_in_time(self, record: Record) -> bool:
        since, until = self._wanted.since_ms, self._wanted.until_ms
        return (since is None or record.timestamp_ms >= since) and (until is None or record.timestamp_ms < until)

    def _decoded(self, records: Iterable[Record], kind: type[AnEvent]) -> Iterator[tuple[Coordinates, AnEvent]]:
        for record in records:
            event = record.decode(kind)
            if isinstance(event, Poison):
                self.unusable += 1
                log.warning("left out: %s", event.error, extra=record.log_extra)
            else:
                yield record.at, event

    # --- what is finished ---------------------------------------------------------------------------------------------

    def _of_groups(self, records: list[Record]) -> Iterator[Finished]:
        groups: dict[Coordinates, AdvantagedGroup] = {}
        for at, group in self._decoded(records, AdvantagedGroup):
            if group.policy == self._wanted.policy and self._wanted.purpose in (None, group.purpose):
                groups[at] = group
        # the second copy of a group is skipped: the records it is about were forgotten with the first
        known = {at: self._taken(group.task_id) for at, group in groups.items()}
        name = self._names["responses"].name
        members = {
            (at, member.slot): Coordinates(name, member.partition, member.offset)
            for at, group in groups.items()
            if known[at]
            for member in group.responses
        }
        found = self._fetched([*members.values(), *(place for places in known.values() for place in places)])
        for at, group in groups.items():
            for member in group.responses:
                response = found.get(members.get((at, member.slot), at))
                if isinstance(response, Response):
                    yield self._answer(at, group, member, response, [found.get(place) for place in known[at]])

    def _answer(
        self,
        at: Coordinates,
        group: AdvantagedGroup,
        member: GroupResponse,
        response: Response,
        events: list[Event | None],
    ) -> Finished:
        answer_id = response.response_id
        return Finished(
            at=at,
            answer_id=answer_id,
            task_id=group.task_id,
            purpose=group.purpose,
            task=next((event for event in events if isinstance(event, Task)), None),
            group=group,
            member=member,
            response=response,
            run=_run(answer_id, events),
            feedback=_feedback(events),
        )

    def _of_ends(self, records: list[Record]) -> Iterator[Finished]:
        ends: dict[Coordinates, TrajectoryEvent] = {}
        for at, event in self._decoded(records, TrajectoryEvent):
            if event.policy == self._wanted.policy and self._wanted.purpose in (None, event.purpose):
                ends[at] = event
        known = {at: self._taken(event.task_id) for at, event in ends.items()}
        found = self._fetched(place for places in known.values() for place in places)
        for at, event in ends.items():
            events = [found.get(place) for place in known[at]]
            if events:
                yield Finished(
                    at=at,
                    answer_id=event.trajectory_id,
                    task_id=event.task_id,
                    purpose=event.purpose,
                    run=_run(event.trajectory_id, events),
                    feedback=_feedback(events),
                )

    def _taken(self, task_id: str) -> list[Coordinates]:
        return self._places.pop(task_id.encode(), [])

    def _fetched(self, places: Iterable[Coordinates]) -> dict[Coordinates, Event]:
        """Return the events at these places; what retention has deleted is left out."""
        wanted = set(places)
        gone = {at for at in wanted if at.offset < self._low[at.topic, at.partition]}
        self.unusable += len(gone)
        found = self.history.fetch(wanted - gone)
        return {
            at: event
            for name, kind in self._kinds.items()
            for at, event in self._decoded((record for record in found.values() if record.at.topic == name), kind)
        }


def _run(trajectory_id: str, events: list[Event | None]) -> Trajectory | None:
    """Return what an agent did; None without a call of it."""
    turns = [event for event in events if isinstance(event, Turn) and event.trajectory_id == trajectory_id]
    ends = (
        event
        for event in events
        if isinstance(event, TrajectoryEvent) and event.kind == "ended" and event.trajectory_id == trajectory_id
    )
    return fold(turns, next(ends, None)) if turns else None


def _feedback(events: list[Event | None]) -> dict[str, list[Reward]]:
    once: dict[str, Reward] = {}
    for event in events:
        if isinstance(event, Reward) and event.source.startswith(FEEDBACK):
            once.setdefault(event.reward_id, event)
    found: defaultdict[str, list[Reward]] = defaultdict(list)
    for reward in once.values():
        found[reward.response_id].append(reward)
    return dict(found)
