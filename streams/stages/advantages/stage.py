"""Score each response against its siblings.

    tasks, responses, rewards, group-control ──► hold until the group is complete ──► groups
    key task_id                                  table open-groups                    key policy

GRPO compares the responses to one task only with each other, so nothing leaves here until every slot is answered (or
has failed) and every required source has scored. Every task leaves exactly one record: its group, or why there is none.
`reducer.py` decides; this file adds what the live worker and a replay need: decoding, the responses of open groups, the
records of groups and dead letters. The live wiring is `live.py` for Faust and `loop.py` for the batched worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from schemas import key_source
from schemas.events import Coordinates, DeadLetter, Event, Task
from schemas.serde import Poison
from streams.kafka.record import Record, dead_letter
from streams.kafka.topics import KEYED_BY_TASK, row_bytes, topics
from streams.observability import trace_context
from streams.observability.tracing.tracer import OFF as NO_TRACER, Tracer
from streams.settings.model import Settings
from streams.stages.advantages.credit import source_digests
from streams.stages.advantages.group_event import GroupRecord, group_record, without_responses
from streams.stages.advantages.incoming import Columns, Incoming, ResponseBody, columns_of, incoming
from streams.stages.advantages.reducer import GroupReducer
from streams.stages.advantages.state import ClosedGroup, DeadLetterEffect, Effect, EmitGroup, GroupState

STAGE = "advantages"

Place = tuple[int, int]
"""Partition and offset in the responses topic."""


class GroupDecision(NamedTuple):
    """The results of one record."""

    record: Record
    before: GroupState
    effects: Sequence[Effect]


class AdvantageStage:
    """The reducer with the log data that it needs, for the live worker and for a replay."""

    def __init__(self, settings: Settings, tracer: Tracer = NO_TRACER, *, partitions: int | None = None) -> None:
        """`partitions` is how many each of the four topics has; None: records may be in any.

        Raises SettingsError if a formula or credit rule of the user's own cannot be imported.
        """
        source_digests(settings.advantages.formula, settings.advantages.credit)
        named = topics(settings.topics)
        self._tracer, self._partitions = tracer, partitions
        self._topics = {topic.name: topic for topic in named.values() if topic.label in KEYED_BY_TASK}
        self._responses, self._groups = named["responses"].name, named["groups"]
        rewards, most_bytes = named["rewards"].name, row_bytes(settings.topics)
        self._reducer = GroupReducer(settings.advantages, self._responses, rewards, most_bytes)
        self.cache = ResponseCache()

    def decode(self, record: Record) -> Incoming | DeadLetter:
        """Return the join's view of `record`, or its dead letter."""
        event = record.decode(self.event_type(record.at.topic))
        if isinstance(event, Poison):
            return _dead_letter_of(record, event)
        (result,) = self.incoming([record], columns_of(event))
        return result

    def event_type(self, topic: str) -> type[Event]:
        """Return the type of the events in one of the four topics."""
        return self._topics[topic].event

    def incoming(
        self, records: Sequence[Record], columns: Columns, wrong: Mapping[int, Poison] = {}
    ) -> list[Incoming | DeadLetter]:
        """Return the join's view of each of these records of one topic, or its dead letter. `wrong` has the records
        without an event, by place, and `columns` the values of the others, as `columns_of` returns them. A record in
        another partition than its task's records also has a dead letter.
        """
        sound = [record for place, record in enumerate(records) if place not in wrong] if wrong else records
        events = incoming(self.event_type(records[0].at.topic), columns, sound)
        sources = {
            (event.task_id, record.key, record.at.partition): record
            for event, record in zip(events, sound, strict=True)
        }
        astray = {
            source: poison
            for source, record in sources.items()
            if (poison := record.misplaced(source[0], self._partitions))
        }
        results: list[Incoming | DeadLetter] = list(events)
        if astray:
            for place, (event, record) in enumerate(zip(events, sound, strict=True)):
                if (poison := astray.get((event.task_id, record.key, record.at.partition))) is not None:
                    results[place] = _dead_letter_of(record, poison)
        if not wrong:
            return results
        of_sound = iter(results)
        return [
            _dead_letter_of(record, wrong[place]) if place in wrong else next(of_sound)
            for place, record in enumerate(records)
        ]

    def reduce(self, state: GroupState, incoming: Incoming, record: Record) -> tuple[GroupState, Sequence[Effect]]:
        """Return the reducer's decision; the response fields that a group copies are cached until it leaves."""
        if incoming.body is not None and not isinstance(state, ClosedGroup):
            self.cache.keep(record, incoming.task_id, incoming.body)
        header = ""
        if isinstance(incoming.event, Task):
            trace = self._tracer.of_task(incoming.event, trace_context.of_headers(record.headers))
            header = "" if trace is None else trace.context.traceparent
        return self._reducer.reduce(state, incoming, record.at, record.timestamp_ms, trace=header)

    def missing(self, effects: Sequence[Effect], record: Record) -> list[Coordinates]:
        """Return the coordinates of all records that `effects` refer to and `outputs` needs."""
        coordinates: list[Coordinates] = []
        for effect in effects:
            if isinstance(effect, EmitGroup):
                places = self.cache.reserve([member.at for member in effect.members])
                coordinates += [Coordinates(self._responses, *place) for place in places]
            elif effect.at != record.at:
                coordinates.append(effect.at)
        return coordinates

    def outputs(
        self, effects: Sequence[Effect], record: Record, fetched: Mapping[Coordinates, Record]
    ) -> list[GroupRecord | DeadLetter]:
        """Return the records that `effects` ask for, in order; `fetched` holds what `missing` named."""
        return [
            self._dead_letter(effect, record, fetched)
            if isinstance(effect, DeadLetterEffect)
            else self._group(effect, record, fetched)
            for effect in effects
        ]

    def _dead_letter(
        self, effect: DeadLetterEffect, record: Record, fetched: Mapping[Coordinates, Record]
    ) -> DeadLetter:
        if effect.at.topic == self._responses:
            self.cache.forget(effect.at[1:])
        source = record if effect.at == record.at else fetched[effect.at]
        return dead_letter(source, stage=STAGE, reason=effect.reason, error=effect.error)

    def _group(
        self, effect: EmitGroup, record: Record, fetched: Mapping[Coordinates, Record]
    ) -> GroupRecord | DeadLetter:
        bodies: dict[Place, ResponseBody] = {}
        if effect.members and effect.task.purpose == "train" and not key_source.may_train(effect.task.subject):
            for member in effect.members:
                self.cache.take(member.at)
            effect = without_responses(effect, key_source.NO_TRAINING)
        for member in effect.members:
            body = self.cache.take(member.at) or self._read(member.at, fetched)
            if body is None:
                effect, bodies = without_responses(effect, "erased"), {}
                break
            bodies[member.at] = body
        group = group_record(effect, bodies, self._groups)
        if group is not None:
            return group
        error = (
            f"the group of task {effect.task_id} is complete, but not even its record without responses fits into "
            f"{self._groups.name}, which takes {self._groups.max_bytes} bytes: shorten the names of policy, scenario "
            "and tenant, or raise topics.max_record_bytes"
        )
        return dead_letter(record, stage=STAGE, reason="too_large", error=error)

    def _read(self, place: Place, fetched: Mapping[Coordinates, Record]) -> ResponseBody | None:
        """Return a response again; None if its subject was erased since."""
        response = self.decode(fetched[Coordinates(self._responses, *place)])
        if isinstance(response, DeadLetter) and response.reason == "erased":
            return None
        assert isinstance(response, Incoming) and response.body is not None  # noqa: S101 - as when it was counted
        return response.body


def _dead_letter_of(record: Record, poison: Poison) -> DeadLetter:
    return dead_letter(record, stage=STAGE, reason=poison.reason, error=poison.error)


class ResponseCache:
    """Cache of responses of open groups, by their place in the log. Missing ones (after a restart, or when more than
    MAX_BYTES are open) are read again from the log.
    """

    MAX_BYTES = 256 * 1024 * 1024
    OBJECT_BYTES = 2048
    """Memory of a response beyond the bytes of its record."""

    def __init__(self) -> None:
        self._responses: dict[Place, tuple[ResponseBody, str, int]] = {}
        """Each response with its task and its size in bytes."""
        self._reserved: dict[Place, ResponseBody] = {}
        """Responses of the groups that are leaving: kept while the others are fetched, whatever else is evicted."""
        self.size_bytes = 0

    def keep(self, record: Record, task_id: str, body: ResponseBody) -> None:
        """Cache a response to this task; the oldest make room for it."""
        place = record.at[1:]
        if place in self._responses:
            self.forget(place)  # it is read again
        size = self.OBJECT_BYTES + len(record.payload or b"")
        while self._responses and self.size_bytes + size > self.MAX_BYTES:
            self.forget(next(iter(self._responses)))
        self._responses[place] = (body, task_id, size)
        self.size_bytes += size

    def reserve(self, places: Sequence[Place]) -> list[Place]:
        """Reserve the responses at these places for `take`; return the places of the missing ones."""
        missing = []
        for place in places:
            if (entry := self._responses.pop(place, None)) is not None:
                self._reserved[place], _, size = entry
                self.size_bytes -= size
            elif place not in self._reserved:
                missing.append(place)
        return missing

    def take(self, place: Place) -> ResponseBody | None:
        """Return a reserved response, and forget it; None if it is not cached."""
        return self._reserved.pop(place, None)

    def forget(self, place: Place) -> None:
        """Forget a response, if it is cached."""
        if (entry := self._responses.pop(place, None)) is not None:
            self.size_bytes -= entry[2]

    def forget_closed(self, is_open: Callable[[int, str], bool]) -> None:
        """Forget responses to tasks that `is_open` (partition, task_id) denies: another worker has emitted them."""
        for place in [place for place, (_, task_id, _) in self._responses.items() if not is_open(place[0], task_id)]:
            self.forget(place)
