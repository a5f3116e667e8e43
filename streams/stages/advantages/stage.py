"""Score each response against its siblings.

    tasks, responses, rewards, group-control ──► hold until the group is whole ──► groups
    key task_id                                  table open-groups                 key policy

GRPO compares the responses to one task only with each other, so nothing leaves here until every slot is answered (or
has failed) and every required source has spoken. Every task leaves exactly one record: its group, or why there is none.
What decides is `streams/stages/advantages/reducer.py`; here are the records it needs, the timers that let time act,
and the wiring.

A group that is larger than its topic takes leaves without its responses, as `too_large`: raise topics.max_record_bytes,
or ask for smaller groups.

Not covered: time while a backlog is read. No control record is written then, since what was answered in time may still
be unread; so a group can leave later than its deadline and grace say. Nor a limit so small that not even the record of
a group without responses fits (some 60 bytes a slot): its last event is then dead-lettered, and the group stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from schemas.events import AdvantagedGroup, Coordinates, DeadLetter, GroupControl, Response, Reward, Task, derive_id
from schemas.serde import Poison, encode
from streams.errors import EventError
from streams.kafka import times
from streams.kafka.reader import fetch
from streams.kafka.record import Record, check_size, dead_letter, key_of, partition_of
from streams.kafka.topics import KEYED_BY_TASK, Topic, topics
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.observability.tracing import context
from streams.observability.tracing.tracer import OFF as NO_TRACER, Trace, Tracer
from streams.settings.model import Settings
from streams.stages.advantages.reducer import GroupEvent, Join
from streams.stages.advantages.rows import GroupRows, load
from streams.stages.advantages.state import (
    ClosedGroup,
    DeadLetterEffect,
    Effect,
    EmitGroup,
    GroupState,
    OpenGroup,
    assemble,
    without_responses,
)

if TYPE_CHECKING:
    from streams.worker.app import App

STAGE = "advantages"


# --- what both drivers share -----------------------------------------------------------------------------------------


class AdvantageStage:
    """The reducer with what it needs of the log: decoding, the responses of open groups, the records of rejections.

    Responses are kept by coordinates while there is room, and read again from the log when they are not here: after a
    restart, or when more than `KEPT_BYTES` are open. It is a cache, never a fact.
    """

    KEPT_BYTES = 256 * 1024 * 1024

    def __init__(self, settings: Settings, tracer: Tracer = NO_TRACER) -> None:
        self._tracer = tracer
        self._topics = {topic.name: topic for topic in topics(settings.topics).values() if topic.label in KEYED_BY_TASK}
        self._responses = topics(settings.topics)["responses"].name
        self._groups = topics(settings.topics)["groups"]
        self.join = Join(settings.advantages, self._responses, topics(settings.topics)["rewards"].name)
        self._kept: dict[tuple[int, int], tuple[Response, int]] = {}
        self._kept_bytes = 0
        self._taken: dict[tuple[int, int], Response] = {}
        """Out of `_kept`, for the groups that leave just now."""

    def decode(self, record: Record) -> GroupEvent | DeadLetter:
        """Return the event in `record`, or its dead letter."""
        event = record.decode(self._topics[record.at.topic].event)
        if isinstance(event, Poison):
            return dead_letter(record, stage=STAGE, reason=event.reason, error=event.error)
        assert isinstance(event, (Task, Response, Reward, GroupControl))  # noqa: S101 - the topic's own type
        if record.key != event.task_id.encode():
            error = f"the record key is {record.key!r}, expected the task_id {event.task_id!r}; key records by task_id"
            return dead_letter(record, stage=STAGE, reason="wrong_key", error=error)
        return event

    def reduce(self, state: GroupState, event: GroupEvent, record: Record) -> tuple[GroupState, Sequence[Effect]]:
        """Return the reducer's answer, and keep a response at hand for when its group leaves."""
        if isinstance(event, Response) and event.error is None and not isinstance(state, ClosedGroup):
            self._keep(record, event)
        trace = None
        if isinstance(event, Task):
            trace = self._tracer.of_task(event, context.of_headers(record.headers))
        header = "" if trace is None else trace.context.traceparent
        return self.join.reduce(state, event, record.at, record.timestamp_ms, trace=header)

    def missing(self, effects: Sequence[Effect], record: Record) -> list[Coordinates]:
        """Return the coordinates of every record that `effects` refer to and that is not at hand.

        What is at hand is put aside for `outputs`, whatever is forgotten while the others are fetched.
        """
        wanted: list[Coordinates] = []
        for effect in effects:
            if isinstance(effect, EmitGroup):
                places = [member.at for member in effect.members]
                self._taken |= {at: self._forget(at) for at in places if at in self._kept}
                wanted += [Coordinates(self._responses, *at) for at in places if at not in self._taken]
            elif effect.at != record.at:
                wanted.append(effect.at)
        return wanted

    def outputs(
        self, effects: Sequence[Effect], record: Record, fetched: Mapping[Coordinates, Record]
    ) -> list[AdvantagedGroup | DeadLetter]:
        """Return the records that `effects` ask for, in order."""
        made: list[AdvantagedGroup | DeadLetter] = []
        for effect in effects:
            if isinstance(effect, DeadLetterEffect):
                if effect.at.topic == self._responses and effect.at[1:] in self._kept:
                    self._forget(effect.at[1:])
                source = record if effect.at == record.at else fetched[effect.at]
                made.append(dead_letter(source, stage=STAGE, reason=effect.reason, error=effect.error))
                continue
            bodies = {member.at: self._take(member.at, fetched) for member in effect.members}
            made.append(fitting(effect, bodies, self._groups))
        return made

    def let_go(self, is_open: Callable[[int, str], bool]) -> None:
        """Forget responses to tasks that `is_open` (partition, task_id) denies: another worker has let them leave."""
        for at in [at for at, (response, _) in self._kept.items() if not is_open(at[0], response.task_id)]:
            self._forget(at)

    def _keep(self, record: Record, response: Response) -> None:
        if record.at[1:] in self._kept:  # read again
            self._forget(record.at[1:])
        size = 8 * len(record.payload or b"")  # as Python objects, not as varints
        while self._kept and self._kept_bytes + size > self.KEPT_BYTES:
            self._forget(next(iter(self._kept)))
        self._kept[record.at.partition, record.at.offset] = (response, size)
        self._kept_bytes += size

    def _take(self, at: tuple[int, int], fetched: Mapping[Coordinates, Record]) -> Response:
        if at in self._taken:
            return self._taken.pop(at)
        response = fetched[Coordinates(self._responses, *at)].decode(Response)
        assert isinstance(response, Response)  # noqa: S101 - it was decoded once already, when it was counted
        return response

    def _forget(self, at: tuple[int, int]) -> Response:
        response, size = self._kept.pop(at)
        self._kept_bytes -= size
        return response


def fitting(close: EmitGroup, bodies: Mapping[tuple[int, int], Response], topic: Topic) -> AdvantagedGroup:
    """Return the group's record, as `assemble` does, such that `topic` takes it.

    One that is too large leaves without its responses, each of which is left out as `too_large`; if the task's metadata
    alone is too much, without that, too.
    """
    group = assemble(close, bodies)
    if _fits(group, topic):
        return group
    group = assemble(without_responses(close, "too_large"), {})
    return group if _fits(group, topic) else replace(group, metadata={})


def _fits(group: AdvantagedGroup, topic: Topic) -> bool:
    if _at_most(group) <= topic.max_bytes:  # nearly always, and told without writing it
        return True
    try:
        check_size(topic, key_of(group, topic), encode(group))
    except EventError:
        return False
    return True


def _at_most(group: AdvantagedGroup) -> int:
    """Return a size in bytes that the record of `group`, with its key, does not exceed."""
    tokens = len(group.prompt_token_ids) + sum(len(response.completion_token_ids) for response in group.responses)
    names = [name for response in group.responses for name in response.components]
    texts = [
        *(group.policy, group.policy, group.task_id, group.scenario, group.tenant or "", group.traceparent or ""),
        *(group.sampling_id or "", group.base_digest, group.tokenizer_digest, *group.sampling.stop),
        *(part for item in group.metadata.items() for part in item),
        *(left.reason for left in group.left_out),
        *names,
    ]
    # a token: its id in 5 bytes, a logprob in 4, a mask in 1. A text: 4 bytes a character, 5 for its length
    rows = len(group.responses) + len(group.left_out)
    return 4096 + 10 * tokens + 256 * rows + sum(4 * len(text) + 5 for text in texts) + 8 * len(names)


# --- the live wiring -------------------------------------------------------------------------------------------------


def register(app: App) -> None:
    """Drive the reducer from the four topics, and write the control records that let time act.

    The four agents share one state per task, so events of one partition number take turns. Results are acknowledged
    before the closed marker is written: a kill in between emits the same bytes again, and never nothing.
    """
    import asyncio

    from streams.worker.agent import agent
    from streams.worker.app import Outlet, owned_partitions, record_of, table

    settings = app.settings
    sources = {label: topic for label, topic in topics(settings.topics).items() if label in KEYED_BY_TASK}
    stage, rows, outlet, timers = (
        AdvantageStage(settings, app.traces),
        GroupRows(),
        Outlet(app, STAGE),
        DeadlineTimers(settings),
    )
    states = table(app, "open-groups", settings.topics.partitions)
    turns = [asyncio.Lock() for _ in range(settings.topics.partitions)]
    generation = app.consumer_generation_id

    def is_open(key: bytes) -> bool:
        return isinstance(rows.load(key, states.get(key)), OpenGroup)

    async def handle(faust_event: Any) -> None:
        record = record_of(faust_event)
        timers.saw(record.timestamp_ms, times.now_ms())
        event = stage.decode(record)
        if isinstance(event, DeadLetter):
            await outlet.emit(event)
            return
        async with turns[record.at.partition]:
            key = event.task_id.encode()
            before = rows.load(key, states.get(key))
            after, effects = stage.reduce(before, event, record)
            if effects:
                elsewhere = stage.missing(effects, record)
                fetched = await asyncio.to_thread(fetch, settings, elsewhere) if elsewhere else {}
                for effect, output in zip(effects, stage.outputs(effects, record, fetched), strict=True):
                    if isinstance(output, AdvantagedGroup):
                        await outlet.emit_traced(output, _trace(app.traces, effect, output), began_ms=_first_ms(before))
                        _report(app.meter, output, before)
                    else:
                        await outlet.emit(output)
            if after is before:
                return
            if after is None:
                del states[key]
            else:
                states[key] = rows.dump(key, after)
            timers.note(event.task_id, after, stage.join)

    for topic in sources.values():
        # time acts when everything that was written before it is read
        after = [other for other in sources.values() if other is not topic] if topic.label == "group-control" else ()
        agent(app, topic, handle, outlet.dead_letters(), name=f"{STAGE}.{topic.label}", after=after)

    @app.timer(1.0)  # type: ignore[untyped-decorator]  # faust is not typed
    async def tick() -> None:
        nonlocal generation
        owned = owned_partitions(app, sources["tasks"].name)
        if generation != app.consumer_generation_id and not app.rebalancing:
            generation = app.consumer_generation_id
            rows.let_go(states)
            stage.let_go(lambda partition, task_id: partition in owned and is_open(task_id.encode()))
        if timers.owned != owned:
            known = ((key.decode(), load(row)) for key, row in states.items())
            timers.rebuild(owned, known, stage.join, times.now_ms())
        for control in timers.due(times.now_ms()):
            await outlet.emit(control)


def _trace(tracer: Tracer, effect: Effect, group: AdvantagedGroup) -> Trace | None:
    """Return the trace of a group: its task's, with links to the rewards that it was made of."""
    if not isinstance(effect, EmitGroup) or not effect.trace:
        return None
    trace = tracer.follows(context.parse(effect.trace), group.group_id)
    if trace is None or not tracer.on:
        return trace
    ids = [
        derive_id(member.response_id, source) if source else member.response_id
        for member in effect.members
        for source in [name for name, _ in effect.task.sources] or [""]
    ]
    return trace._replace(links=tuple(context.child(trace.context, one) for one in ids))


def _first_ms(state: GroupState) -> int | None:
    return state.first_seen_ms or None if isinstance(state, OpenGroup) else None


def _report(meter: Meter, group: AdvantagedGroup, before: GroupState) -> None:
    """Count a group that left."""
    flat = not any(response.advantage for response in group.responses)
    meter.add(catalog.GROUPS, group.policy, group.dropped_reason or ("flat" if flat else "varied"))
    if isinstance(before, OpenGroup) and before.first_seen_ms:
        meter.observe(catalog.GROUP_SECONDS, max(0, group.created_at - before.first_seen_ms) / 1000, group.policy)


class DeadlineTimers:
    """When to write which control record. Held in memory and rebuilt from the table, so it is never a fact.

    No time passes while there is a backlog: after an hour's outage the answers that came in time are in the log, and
    closing their groups before they are read would throw them away. A backlog is known by records older than BACKLOG_S;
    it is over when none came for QUIET_S.
    """

    BACKLOG_S = 30
    QUIET_S = 5

    def __init__(self, settings: Settings) -> None:
        self._rule = settings.advantages
        self._partitions = settings.topics.partitions
        self.owned: set[int] = set()
        self._due: dict[str, tuple[int, Literal["expire", "evict"]]] = {}
        self._quiet_from_ms = 0

    def saw(self, timestamp_ms: int, now_ms: int) -> None:
        """Take note that a record of this time is read now."""
        if timestamp_ms < now_ms - self.BACKLOG_S * 1000:
            self._quiet_from_ms = now_ms + self.QUIET_S * 1000

    def rebuild(self, owned: set[int], rows: Iterable[tuple[str, GroupState]], join: Join, now_ms: int) -> None:
        """Start over from the rows of the partitions that are owned now."""
        self.owned, self._due = owned, {}
        self._quiet_from_ms = now_ms + self.QUIET_S * 1000
        for task_id, state in rows:
            if partition_of(task_id, self._partitions) in owned:
                self.note(task_id, state, join)

    def note(self, task_id: str, state: GroupState, join: Join) -> None:
        """Remember when this state wants a control record, if ever."""
        self._due.pop(task_id, None)
        if isinstance(state, OpenGroup) and (deadline_ms := join.deadline_ms(state)) is not None:
            self._due[task_id] = (deadline_ms + int(self._rule.grace_s * 1000), "expire")
        elif isinstance(state, ClosedGroup) and self._rule.evict_after_s:
            self._due[task_id] = (state.closed_ms + int(self._rule.evict_after_s * 1000), "evict")

    def due(self, now_ms: int) -> list[GroupControl]:
        """Return the control records whose time has come; each is returned once. None while there is a backlog."""
        if now_ms < self._quiet_from_ms:
            return []
        ready = [(task_id, kind) for task_id, (when_ms, kind) in self._due.items() if when_ms <= now_ms]
        for task_id, _ in ready:
            del self._due[task_id]
        return [
            GroupControl(
                control_id=derive_id(task_id, kind),
                task_id=task_id,
                created_at=now_ms,
                kind=kind,
                reason="deadline passed" if kind == "expire" else "remembered long enough",
            )
            for task_id, kind in ready
        ]
