"""What agents were given, held against the log, counted by nothing that wrote it.

    answers that ended at clients ──► a turn each, the same text and logprobs
    trajectories ──► one end for each beginning, as many turns as the end says
    attempts at tasks ──► one response a slot, the same bytes as its turns come to when they are folded again

Not covered: the groups made of the responses; those are tests/chaos/verdict.py's, as in every other fault.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from schemas.events import Event, Response, Task, TrajectoryEvent, Turn
from schemas.serde import Poison, encode
from streams.kafka import admin
from streams.kafka.record import Record
from streams.kafka.topics import topic_of
from streams.settings.model import Settings
from streams.stages.agents.trajectories.fold import fold
from streams.stages.agents.trajectories.response import missing, response_of
from tests.chaos.agent_client import GivenAnswer

R = TypeVar("R", Task, Turn, TrajectoryEvent, Response)
Log = Callable[[type[Event]], Iterable[Record]]
"""The records of a kind of event, partition by partition, in order."""


class WrittenOnce(Generic[R]):
    """The events of a topic by id, in the order of the log; an id with different events is a complaint."""

    def __init__(self, log: Log, kind: type[R], name: str) -> None:
        self.events: dict[str, R] = {}
        self.differ: list[str] = []
        payloads: dict[str, bytes | None] = {}
        for record in log(kind):
            event = record.decode(kind)
            if isinstance(event, Poison):
                self.differ.append(f"{record.at} cannot be read: {event.error}")
                continue
            event_id = getattr(event, name)
            self.events.setdefault(event_id, event)
            if payloads.setdefault(event_id, record.payload) != record.payload:
                self.differ.append(f"{record.at} has the id of another {kind.__name__}: {event_id}")


def read_given(file: Path) -> list[GivenAnswer]:
    """Return what clients wrote down."""
    return [GivenAnswer(*json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def log_of(settings: Settings) -> Log:
    """Return the log on a broker."""

    def records(kind: type[Event]) -> list[Record]:
        label = topic_of(kind, settings.topics).label
        return sorted(admin.read_topic(settings, label), key=lambda record: record.at)

    return records


def open_runs(log: Log) -> int:
    """Return how many trajectories have begun and not ended."""
    events = WrittenOnce(log, TrajectoryEvent, "event_id").events.values()
    return len({event.trajectory_id for event in events}) - sum(event.kind == "ended" for event in events)


def recount(log: Log, given: list[GivenAnswer]) -> list[str]:
    """Return what is wrong with a log of agents that has come to rest."""
    turns = WrittenOnce(log, Turn, "turn_id")
    runs = WrittenOnce(log, TrajectoryEvent, "event_id")
    responses = WrittenOnce(log, Response, "response_id")
    tasks = WrittenOnce(log, Task, "task_id")
    return [
        *(problem for written in (turns, runs, responses) for problem in written.differ),
        *(problem for answer in given if (problem := _unlike(answer, turns.events))),
        *_ends(runs.events, turns.events),
        *_slots(tasks.events, runs.events, responses.events),
        *_folded(runs.events, turns.events, responses.events),
    ]


def _unlike(given: GivenAnswer, turns: dict[str, Turn]) -> str | None:
    """Return in what the log differs from an answer that ended at a client, or None."""
    turn = turns.get(given.answer_id.removeprefix("chatcmpl-"))
    if turn is None:
        return f"LOST: {given.answer_id} ended at a client, and is not in the log"
    if (turn.reply.content, list(turn.logprobs), turn.delivered) != (given.text, given.logprobs, True):
        said = turn.reply.content, list(turn.logprobs), turn.delivered
        return f"{given.answer_id} was {given.text!r} {given.logprobs} to its client, and the log has {said}"
    return None


def _ends(runs: dict[str, TrajectoryEvent], turns: dict[str, Turn]) -> Iterator[str]:
    """Find runs without one beginning, one end, and the turns that the end counts."""
    numbers: dict[str, list[int]] = defaultdict(list)
    kinds: dict[str, list[str]] = defaultdict(list)
    for turn in turns.values():
        numbers[turn.trajectory_id].append(turn.number)
    for event in runs.values():
        kinds[event.trajectory_id].append(event.kind)
    for name in sorted(numbers.keys() | kinds.keys()):
        if sorted(kinds[name]) != ["ended", "started"]:
            yield f"trajectory {name} has {kinds[name]}"
    for event in runs.values():
        if event.kind == "ended" and sorted(numbers[event.trajectory_id]) != list(range(event.turns or 0)):
            have = sorted(numbers[event.trajectory_id])
            yield f"trajectory {event.trajectory_id} ended with {event.turns} turns, and the log has {have}"


def _slots(tasks: dict[str, Task], runs: dict[str, TrajectoryEvent], responses: dict[str, Response]) -> Iterator[str]:
    """Find tasks whose attempt is not one, or has not one response a slot."""
    samplings: dict[str, set[str]] = defaultdict(set)
    slots: dict[str, list[int]] = defaultdict(list)
    for event in runs.values():
        if event.sampling_id is not None:
            samplings[event.task_id].add(event.sampling_id)
    for response in responses.values():
        samplings[response.task_id].add(response.sampling_id)
        slots[response.task_id].append(response.slot)
    for task in tasks.values():
        if len(samplings[task.task_id]) != 1 or sorted(slots[task.task_id]) != list(range(task.group_size)):
            attempts = len(samplings[task.task_id])
            yield f"task {task.task_id} has {attempts} attempts, and responses of slots {sorted(slots[task.task_id])}"
    if strangers := samplings.keys() - tasks.keys():
        yield f"{len(strangers)} tasks that nobody sent were run"


def _folded(runs: dict[str, TrajectoryEvent], turns: dict[str, Turn], responses: dict[str, Response]) -> Iterator[str]:
    """Find responses that are not what their turns come to."""
    ends = {event.trajectory_id: event for event in runs.values() if event.kind == "ended"}
    by_run: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns.values():
        by_run[turn.trajectory_id].append(turn)
    for name, response in responses.items():
        if name not in ends:
            yield f"response {name} is of a run without an end"
        elif not missing(trajectory := fold(by_run[name], ends[name]), ends[name]) and encode(
            response_of(trajectory, ends[name])
        ) != encode(response):
            yield f"response {name} is not what its turns come to"
