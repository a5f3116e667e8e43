"""Finished answers: responses in groups, and runs of agents, each with everything that the log has about it.

    groups ─────────────────────────► a task's responses, or the runs of agents that they are ─┐
    trajectories of a conversation ─► its runs together (conversation_runs.py) ────────────────┴─► Finished
    tasks, turns, rewards (feedback) ► found by their key

A group, and the end of a run, are written after all records that they refer to. So the ends of their topics are taken
first, and the other topics are read at least as far. Only the position of a record is kept until the group or the end
is read; then its content is fetched, some hundred records at a time.

With `unfit` selected, too, the result has every response of each group in the log, whatever its outcome. A conversation
comes again whenever a further run of it has ended, and as long as one of its runs is open it does not come.

Not covered: a response to an open task, or one that came after its group. The positions of chats stay in memory.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from schemas.conventions import FEEDBACK, THREAD
from schemas.events import (
    AdvantagedGroup,
    Coordinates,
    Event,
    GroupResponse,
    Message,
    Purpose,
    Response,
    Reward,
    Task,
    Tool,
    TrajectoryEvent,
    Turn,
)
from schemas.serde import Poison
from streams.errors import ContradictoryEvent
from streams.kafka.history import History
from streams.kafka.record import Record, TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.agents.trajectories.call_chains import SYSTEM_ROLES
from streams.stages.agents.trajectories.fold import Trajectory, fold
from streams.tools.query.conversation_runs import ConversationRuns, EndedRuns, join_runs, numbered_turns

BY_KEY = ("trajectories", "tasks", "turns", "rewards")
"""Topics with the id of the task as key."""
LABELS = ("groups", "responses", *BY_KEY)
"""The topics it reads."""
CHUNK = 256
"""Number of groups, or ends of runs, that are fetched at once."""
AnEvent = TypeVar("AnEvent", bound=Event)
log = logging.getLogger("streamward.export")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSelection:
    """Which answers to read; None: all."""

    policy: str | None = None
    purpose: Purpose | None = None
    unfit: bool = False
    """Also failed responses, those in dropped groups, and the scorers' reasons."""
    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""
    ends: Mapping[Coordinates, Mapping[str, Collection[str]]] | None = None
    """Only answers of the groups, and runs with the ends, that are here: by end the answers, each with the runs that it
    is of; without any, the one that ends there."""


class FirstPrompt(NamedTuple):
    """What an answer was asked at first."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A response or a run of an agent, and everything that the log has about it."""

    position: Coordinates
    """Of its group, or of the end of the run."""
    answer_id: str
    """Of the response, or of the conversation."""
    task_id: str
    """A conversation is its own task, and has the task, response and end of its last run, and the reward and scores of
    the last one with a reward."""
    purpose: Purpose
    task: Task | None = None
    group: AdvantagedGroup | None = None
    member: GroupResponse | None = None
    response: Response | None = None
    run: Trajectory | None = None
    """Of an agent's run: its calls."""
    began: TrajectoryEvent | None = None
    ended: TrajectoryEvent | None = None
    """Of an agent's run: how it began, and how it ended."""
    scores: dict[str, Reward] = field(default_factory=dict)
    """By scorer; empty if the selection leaves out what is unfit."""
    feedback: dict[str, list[Reward]] = field(default_factory=dict)
    """By what it is about: the answer_id, a run of it, or a turn."""
    runs: tuple[Finished, ...] = ()
    """Of a conversation: each of its runs, in order."""

    @property
    def subject(self) -> str | None:
        """The person that it is of; None: nothing of it is sealed."""
        parts = (self.response, self.ended, self.began, *(run.response or run.ended for run in self.runs))
        return next((part.subject for part in parts if part is not None and part.subject), None)

    @property
    def traceparent(self) -> str | None:
        """The trace that its task was submitted in; None: in none."""
        parts = (self.task, self.began, self.response, *(run.began or run.response for run in self.runs))
        return next((part.traceparent for part in parts if part is not None and part.traceparent), None)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs that it is, in order."""
        return tuple(run.answer_id for run in self.runs) or (self.answer_id,)

    @property
    def turns(self) -> Sequence[Turn]:
        """Every call as it was recorded, for figures; those of a conversation are numbered on."""
        return tuple(numbered_turns([run.run for run in self.runs or (self,) if run.run is not None]))

    @property
    def mean_feedback(self) -> float | None:
        """The mean of the feedback on it, its runs and its calls; None: there is none."""
        return self.opinion(*dict.fromkeys((self.answer_id, *self.run_ids)), *(turn.turn_id for turn in self.turns))

    @property
    def reward(self) -> float | None:
        """The reward of its scorers; None if the task had none."""
        if self.group is None or self.member is None:
            return None
        return self.member.reward if self.group.purpose != "serve" or self.member.components else None

    @property
    def thread(self) -> str | None:
        """The thread of its task, or of the run that it is; None if not found."""
        if self.task is not None:
            return self.task.thread
        steps = () if self.run is None else self.run.steps
        return next((step.turn.metadata[THREAD] for step in steps if THREAD in step.turn.metadata), None)

    @property
    def prompt(self) -> FirstPrompt:
        """What it was asked at first."""
        if self.run is not None and self.run.chains:
            return FirstPrompt(self.run.chains[0].turns[0].messages, self.run.chains[0].turns[0].tools)
        return FirstPrompt((), ()) if self.task is None else FirstPrompt(self.task.messages, self.task.tools)

    @property
    def question(self) -> str:
        """What it was asked at first, without the system's instructions, which all runs of an agent share."""
        return "\n".join(message.content for message in self.prompt.messages if message.role not in SYSTEM_ROLES)

    def opinion(self, *about: str) -> float | None:
        """Return the mean of the feedback on these, or None."""
        values = [reward.value or 0.0 for name in about for reward in self.feedback.get(name, ())]
        return sum(values) / len(values) if values else None


class FinishedReader:
    """Reads on from where the last round ended; within a round, in an order that never changes. Raises as `History`."""

    def __init__(self, settings: Settings, history: History, selection: FinishedSelection) -> None:
        self.history = history
        """May be replaced between two rounds."""
        self.unusable = 0
        """Records that are no events, or deleted; the answers that they are about are left out."""
        self._selection = selection
        self._names = {label: topics(settings.topics)[label] for label in LABELS}
        self._kinds = {topic.name: topic.event for topic in self._names.values()}
        self._partitions: dict[Any, int] = {topic.event: topic.partitions for topic in self._names.values()}
        self._low: dict[TopicPartition, int] = {}
        self._high: dict[TopicPartition, int] = {}
        self._next: dict[TopicPartition, int] = {}
        self._first: dict[TopicPartition, int] = {}
        self._places: defaultdict[bytes, list[Coordinates]] = defaultdict(list)
        """The positions of a task's records, by their key."""
        self._chats = ConversationRuns()

    def ranges(self) -> list[dict[str, Any]]:
        """Return what was read, for a manifest."""
        return [
            {"topic": name, "partition": partition, "first": self._first[name, partition], "next": end}
            for (name, partition), end in sorted(self._next.items())
        ]

    def round(self) -> Iterator[Finished]:
        """Yield what is finished now and was not when the last round began, each group and each end once."""
        ends = {label: self._end(label) for label in LABELS}  # in this order: causes are read at least as far
        starts = {label: self._begin(ends[label]) for label in LABELS}
        for label in (*BY_KEY, *(("responses",) if self._selection.unfit else ())):
            for record in self.history.read(starts[label], ends[label]):
                self._remember(label, record)
        for tp, start in sorted(starts["groups"].items()):  # each alone, so that the order is that of the log
            end = ends["groups"][tp]
            groups = self._lone_groups(self.history.read({tp: start}, {tp: end}) if start < end else ())
            while chunk := list(islice(groups, CHUNK)):
                yield from self._group_answers(chunk)
        ended = (
            self._chats.newly_complete() if self._selection.ends is None else self._chats.runs_at(self._selection.ends)
        )
        for begin in range(0, len(ended), CHUNK):
            yield from self._conversations(ended[begin : begin + CHUNK])

    # --- reading further ----------------------------------------------------------------------------------------------

    def _end(self, label: str) -> dict[TopicPartition, int]:
        bounds = self.history.bounds([label])
        self._low |= {tp: low for tp, (low, _) in bounds.items()}
        ends = {tp: high for tp, (_, high) in bounds.items()}
        self._high |= ends
        return ends

    def _begin(self, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets to continue from."""
        starts = {tp: self._next.get(tp, self._low[tp]) for tp in ends}
        self._first = starts | self._first
        self._next |= ends
        return starts

    def _remember(self, label: str, record: Record) -> None:
        if record.key is None or (label == "rewards" and not self._takes_reward(record)):
            return
        self._places[record.key].append(record.at)
        if label == "trajectories":
            event = record.decode(TrajectoryEvent)
            if not isinstance(event, Poison) and self._is_selected(event):
                self._chats.take(event, record.at, self._is_in_place(record))

    def _takes_reward(self, record: Record) -> bool:
        return self._selection.unfit or FEEDBACK.encode() in (record.payload or b"")

    def _lone_groups(self, records: Iterable[Record]) -> Iterator[tuple[Coordinates, AdvantagedGroup]]:
        """Yield the groups in place of no conversation; the others end its runs."""
        for record in records:
            is_in_place = self._is_in_place(record)
            if is_in_place or self._chats.has_tasks:
                for position, group in self._decode([record], AdvantagedGroup):
                    if not self._chats.take_group(group.task_id, position, is_in_place) and is_in_place:
                        yield position, group

    def _is_in_place(self, record: Record) -> bool:
        since, until, ends = self._selection.since_ms, self._selection.until_ms, self._selection.ends
        return (
            (ends is None or record.at in ends)
            and (since is None or record.timestamp_ms >= since)
            and (until is None or record.timestamp_ms < until)
        )

    def _is_selected(self, event: AdvantagedGroup | TrajectoryEvent) -> bool:
        policy, purpose = self._selection.policy, self._selection.purpose
        return policy in (None, event.policy) and purpose in (None, event.purpose)

    def _decode(self, records: Iterable[Record], kind: type[AnEvent]) -> Iterator[tuple[Coordinates, AnEvent]]:
        for record in records:
            event = record.decode_placed(kind, self._partitions[kind])
            if isinstance(event, Poison):
                self.unusable += 1
                log.warning("left out: %s", event.error, extra=record.log_extra)
            else:
                yield record.at, event

    # --- what is finished ---------------------------------------------------------------------------------------------

    def _group_answers(
        self, placed: Iterable[tuple[Coordinates, AdvantagedGroup]], *, keep: bool = False
    ) -> Iterator[Finished]:
        """Yield the answers of groups; `keep`: as those of a conversation, which comes again."""
        groups = {position: group for position, group in placed if self._is_selected(group)}
        # the second copy of a group is skipped: the records it is about were forgotten with the first
        take = self._places.get if keep else self._places.pop
        places_by_group = {position: take(group.task_id.encode(), []) for position, group in groups.items()}
        members = {
            (position, member.slot): self._place_of(position, group, member)
            for position, group in groups.items()
            if places_by_group[position]
            for member in group.responses
        }
        events = self._fetch([*members.values(), *(place for places in places_by_group.values() for place in places)])
        for position, group in groups.items():
            about = [events.get(place) for place in places_by_group[position]]
            responses = [events.get(members.get((position, member.slot), position)) for member in group.responses]
            yield from _answers(position, group, about, responses)

    def _place_of(self, position: Coordinates, group: AdvantagedGroup, member: GroupResponse) -> Coordinates:
        """Return where a group says that a response is. Raises ContradictoryEvent if the topic has no such record."""
        place = Coordinates(self._names["responses"].name, member.partition, member.offset)
        end = self._high.get(place[:2], 0)
        if place.offset >= end:
            raise ContradictoryEvent(
                f"{position}: group {group.group_id} of task {group.task_id} says that response {member.response_id} "
                f"is at {place}, expected an offset below {end}, where that partition ends; check who wrote the group, "
                "and leave it out by time (--since, --until)"
            )
        return place

    def _conversations(self, ended: list[EndedRuns]) -> Iterator[Finished]:
        places = {run.task_id: self._places[run.task_id.encode()] for runs in ended for run in runs.runs}
        events = self._fetch(place for of_task in places.values() for place in of_task)
        name = self._names["groups"].name
        groups = {run.end for runs in ended for run in runs.runs if run.end is not None and run.end.topic == name}
        of_tasks = self._group_answers(self._decode(self._read_stored(groups), AdvantagedGroup), keep=True)
        answers = {answer.answer_id: answer for answer in of_tasks}
        for conversation in ended:
            runs: list[Finished] = []
            for run in conversation.runs:
                if run.end in groups:
                    runs += [answers[run.trajectory_id]] if run.trajectory_id in answers else []
                    continue
                fields = _of_answer(run.trajectory_id, [events.get(place) for place in places[run.task_id]])
                if run.end is not None and fields["ended"] is not None:
                    whole = {"answer_id": run.trajectory_id, "task_id": run.task_id, "purpose": fields["ended"].purpose}
                    runs.append(Finished(position=run.end, **whole, **fields))
            if runs:
                yield _conversation(conversation.name, runs)

    def _fetch(self, places: Iterable[Coordinates]) -> dict[Coordinates, Event]:
        """Return the events at these places; what retention has deleted is left out."""
        records = self._read_stored(set(places))
        events: dict[Coordinates, Event] = {}
        for name, kind in self._kinds.items():
            events |= self._decode([record for record in records if record.at.topic == name], kind)
        return events

    def _read_stored(self, places: set[Coordinates]) -> Collection[Record]:
        stored = {place for place in places if place.offset >= self._low[place.topic, place.partition]}
        self.unusable += len(places - stored)
        return self.history.fetch(stored).values()


def _answers(
    position: Coordinates, group: AdvantagedGroup, about: list[Event | None], in_group: list[Event | None]
) -> Iterator[Finished]:
    """Yield the answers of a group, and those that it has not, if their responses are among what is about the task."""
    members = {member.response_id: member for member in group.responses}
    responses: dict[str, Response] = {}
    for event in (*in_group, *about):
        if isinstance(event, Response):
            responses.setdefault(event.response_id, event)
    for answer_id, response in responses.items():
        yield Finished(
            position=position,
            answer_id=answer_id,
            task_id=group.task_id,
            purpose=group.purpose,
            task=next((event for event in about if isinstance(event, Task)), None),
            group=group,
            member=members.get(answer_id),
            response=response,
            **_of_answer(answer_id, about),
        )


def _conversation(name: str, runs: Sequence[Finished]) -> Finished:
    """Return runs that follow each other as one."""
    first, last = runs[0], runs[-1]
    if [run.answer_id for run in runs] == [name]:
        return first
    trajectories = [run.run for run in runs if run.run is not None]
    scored = max(reversed(runs), key=lambda run: (run.reward is not None, bool(run.scores)))
    return replace(
        last,
        answer_id=name,
        task_id=name,
        run=join_runs(trajectories, last.ended) if trajectories else None,
        began=first.began,
        group=scored.group,
        member=scored.member,
        scores=scored.scores,
        feedback={name: rewards for run in runs for name, rewards in run.feedback.items()},
        runs=tuple(runs),
    )


def _of_answer(answer_id: str, events: list[Event | None]) -> dict[str, Any]:
    """Return the fields of a finished answer from its own records."""
    turns = [event for event in events if isinstance(event, Turn) and event.trajectory_id == answer_id]
    steps = [event for event in events if isinstance(event, TrajectoryEvent) and event.trajectory_id == answer_id]
    began, ended = (next((event for event in steps if event.kind == kind), None) for kind in ("started", "ended"))
    return {
        "run": fold(turns, ended) if turns else None,
        "began": began,
        "ended": ended,
        "scores": _scores(answer_id, events),
        "feedback": _feedback(events),
    }


def _scores(answer_id: str, events: list[Event | None]) -> dict[str, Reward]:
    by_source: dict[str, Reward] = {}
    for event in events:
        if isinstance(event, Reward) and event.response_id == answer_id and not event.source.startswith(FEEDBACK):
            by_source.setdefault(event.source, event)
    return by_source


def _feedback(events: list[Event | None]) -> dict[str, list[Reward]]:
    by_id: dict[str, Reward] = {}
    for event in events:
        if isinstance(event, Reward) and event.source.startswith(FEEDBACK):
            by_id.setdefault(event.reward_id, event)
    by_subject: defaultdict[str, list[Reward]] = defaultdict(list)
    for reward in by_id.values():
        by_subject[reward.response_id].append(reward)
    return dict(by_subject)
