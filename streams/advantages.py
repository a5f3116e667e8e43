"""Score each response against its siblings.

    tasks, responses, rewards, group-control ──► hold until the group is whole ──► groups
    key task_id                                  one state per task                key policy

GRPO compares the responses to one task only with each other, so nothing leaves here until every slot is answered (or
has failed) and every required source has spoken. Every task leaves exactly one record: its group, or why there is none.

Order. Delivery is at least once and the four topics are read side by side, so a reward may come before its response and
a response before its task. Ids say what a record is about; the first in its partition wins, a repetition is a no-op,
and another value under the same id is a contradiction. A task that was sampled twice is answered by the sampling whose
last slot stands first in the partition; the rest are superseded.

What is read before its task waits, and enters with it as if it had been read after it; a whole group is made of the
winning sampling and its rewards and of nothing else. So the order in which the topics are read does not show in it.

Time. An answer or reward recorded after the task's deadline never counts, whenever it is read; the group is closed when
the `expire` record is read. Both are in the log, so a replay at any speed decides the same.

Not covered: what comes after `evict`. The stage has then forgotten the task; an event for it waits, as an early one
does, until it expires, and ends as a dead letter.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from schemas.events import (
    AdvantagedGroup,
    Coordinates,
    DeadLetter,
    GroupControl,
    LeftOut,
    Response,
    Reward,
    Task,
    derive_id,
)
from schemas.serde import Poison
from streams import formulas
from streams.groups import (
    Answer,
    Attempt,
    Close,
    Closed,
    Effect,
    Facts,
    Member,
    Open,
    Reject,
    Rows,
    Score,
    Slot,
    State,
    Verdict,
    assemble,
    fullest,
    is_late,
    load,
    seen_ids,
    shared_digest,
    short_id,
    weigh,
    winner,
)
from streams.log import Record, dead_letter, fetch, partition_of
from streams.settings import Advantages, Settings
from streams.topics import KEYED_BY_TASK, topics

if TYPE_CHECKING:
    from streams.app import App

STAGE = "advantages"
GroupEvent = Task | Response | Reward | GroupControl


# --- the reducer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """The reducer, under one rule and one set of topic names. It has no clock and no I/O."""

    rule: Advantages
    responses_topic: str
    rewards_topic: str

    def reduce(
        self, state: State, event: GroupEvent, at: Coordinates, timestamp_ms: int
    ) -> tuple[State, Sequence[Effect]]:
        """Return the state after `event`, which lies at `at` with this record timestamp, and what must be done."""
        if isinstance(event, GroupControl):
            return self._control(state, event)
        if isinstance(state, Closed):
            return state, _after_close(state, event, at)
        state = state or Open(first_seen_ms=timestamp_ms)
        effects: list[Effect] = []
        if isinstance(event, Task):
            state = self._task(state, event, at, timestamp_ms, effects)
        elif state.task is None:
            state = _wait(state, _by_reference(event, at, timestamp_ms))
        else:
            state = self._enter(state, state.task, _by_reference(event, at, timestamp_ms), effects)
        if not self._is_complete(state):
            return state, effects
        closed, more = self._close(event.task_id, state, complete=True)
        return closed, [*effects, *more]

    def deadline_ms(self, state: Open) -> int | None:
        """Return when this group must be closed, in ms since the epoch, or None if it may wait for ever."""
        if state.task is not None:
            return state.task.deadline_ms
        wait_ms = int(self.rule.deadline_s * 1000)
        return state.first_seen_ms + wait_ms if wait_ms else None

    def _task(self, state: Open, task: Task, at: Coordinates, timestamp_ms: int, effects: list[Effect]) -> Open:
        deadline = task.deadline_at
        if deadline is None and self.rule.deadline_s:
            deadline = timestamp_ms + int(self.rule.deadline_s * 1000)
        facts = Facts(
            policy=task.policy,
            purpose=task.purpose,
            scenario=task.scenario,
            tenant=task.tenant,
            group_size=task.group_size,
            adapter_version=task.adapter_version,
            sources=tuple((source.name, source.weight) for source in task.reward_sources),
            deadline_ms=deadline,
            timestamp_ms=timestamp_ms,
            traceparent=task.traceparent,
            metadata=tuple(sorted(task.metadata.items())),
        )
        if state.task is not None:
            if _content(facts) != _content(state.task):
                effects.append(
                    Reject(
                        at,
                        "contradictory",
                        f"task {task.task_id} was already read with other content; the first in its partition wins. "
                        "Give a changed task a new task_id",
                    )
                )
            return state
        waiting, state = state.early, replace(state, task=facts, early=())
        for early in waiting:
            state = self._enter(state, facts, early, effects)
        return state

    def _enter(self, state: Open, task: Facts, early: Answer | Verdict, effects: list[Effect]) -> Open:
        if isinstance(early, Answer):
            return self._answer(state, task, early, effects)
        return self._verdict(state, task, early, effects)

    def _answer(self, state: Open, task: Facts, answer: Answer, effects: list[Effect]) -> Open:
        new = Attempt(answer.adapter_version, answer.group_size, answer.shared, {})
        attempt = state.attempts.get(answer.sampling_id, new)
        if answer.number in attempt.slots:
            return state  # the same record again: response_id is a function of sampling and slot
        at = Coordinates(self.responses_topic, answer.slot.partition, answer.slot.offset)
        if (wrong := _disagreement(task, answer)) is not None:
            effects.append(Reject(at, "contradictory", f"the task has {wrong}"))
        elif is_late(task, answer.slot.timestamp_ms):
            effects.append(Reject(at, "late", _late(task, answer.slot.timestamp_ms)))
        elif answer.adapter_version != attempt.adapter_version:
            effects.append(
                Reject(
                    at,
                    "contradictory",
                    f"sampling {answer.sampling_id} began with adapter version {attempt.adapter_version}, but slot "
                    f"{answer.number} has {answer.adapter_version}. One sampling is one version's attempt at all "
                    "slots; check the policy agent",
                )
            )
        elif answer.shared and attempt.shared and answer.shared != attempt.shared:
            effects.append(
                Reject(
                    at,
                    "contradictory",
                    f"slot {answer.number} of sampling {answer.sampling_id} has another base model, tokenizer, "
                    "temperature, top_p or prompt tokens than the slots before it; one sampling shares them all. "
                    "Check the policy agent",
                )
            )
        else:
            slots = {**attempt.slots, answer.number: answer.slot}
            shared = attempt.shared or answer.shared
            attempt = Attempt(attempt.adapter_version, attempt.group_size, shared, slots)
            attempts = {**state.attempts, answer.sampling_id: attempt}
            return Open(state.task, state.early, attempts, state.scores, state.first_seen_ms)
        return state

    def _verdict(self, state: Open, task: Facts, verdict: Verdict, effects: list[Effect]) -> Open:
        score, of_response = verdict.score, state.scores.get(verdict.response_id, {})
        at = Coordinates(self.rewards_topic, score.partition, score.offset)
        known = of_response.get(verdict.source)
        if known is not None:
            if (known.value, known.components) != (score.value, score.components):
                effects.append(
                    Reject(
                        at,
                        "contradictory",
                        f"source {verdict.source!r} gives response {verdict.response_id} the value {score.value}, but "
                        f"{self.rewards_topic}[{known.partition}]@{known.offset} already said {known.value}; the first "
                        "wins. A new opinion needs a new source name",
                    )
                )
        elif all(verdict.source != name for name, _ in task.sources):
            asked = ", ".join(name for name, _ in task.sources)
            effects.append(Reject(at, "unasked", f"the task asks {asked or 'nobody'}, not {verdict.source!r}"))
        elif is_late(task, score.timestamp_ms):
            effects.append(Reject(at, "late", _late(task, score.timestamp_ms)))
        else:
            scores = {**state.scores, verdict.response_id: {**of_response, verdict.source: score}}
            return Open(state.task, state.early, state.attempts, scores, state.first_seen_ms)
        return state

    def _control(self, state: State, control: GroupControl) -> tuple[State, Sequence[Effect]]:
        match control.kind, state:
            case "evict", Closed():
                return None, ()
            case "expire", Open(task=None):
                return None, list(self._orphans(control.task_id, state))
            case "expire", Open():
                return self._close(control.task_id, state, complete=False)
            case _:
                return state, ()  # it closed by itself meanwhile, or is long forgotten

    def _orphans(self, task_id: str, state: Open) -> Iterator[Effect]:
        """Yield a rejection for each event of a task that never came."""
        why = f"task {task_id} is not in the tasks topic; events can only be joined to a task that was submitted"
        for early in state.early:
            topic = self.responses_topic if isinstance(early, Answer) else self.rewards_topic
            yield Reject(Coordinates(topic, _where(early).partition, _where(early).offset), "unknown_task", why)

    def _is_complete(self, state: Open) -> bool:
        first = winner(state)
        if first is None or state.task is None:
            return False
        wanted = {name for name, _ in state.task.sources}
        slots = state.attempts[first].slots.values()
        if len(state.scores) + sum(slot.failed for slot in slots) < len(slots) and wanted:
            return False
        return all(slot.failed or wanted <= state.scores.get(slot.response_id, {}).keys() for slot in slots)

    def _close(self, task_id: str, state: Open, *, complete: bool) -> tuple[Closed, Sequence[Effect]]:
        task = state.task
        assert task is not None  # noqa: S101 - both callers have looked
        chosen = winner(state) or fullest(state)
        attempt = state.attempts[chosen] if chosen else None
        members, left_out, stamps = weigh(state, task, chosen)
        dropped = self._why_dropped(task, members, attempt, complete)
        rewards = [member.reward for member in members]
        mean, std = formulas.mean_and_std(rewards, self.rule.ddof) if rewards else (0.0, 0.0)
        if rewards:
            scale = formulas.advantages(self.rule.formula, rewards, eps=self.rule.eps, ddof=self.rule.ddof)
            members = [replace(member, advantage=value) for member, value in zip(members, scale, strict=True)]
        if dropped is not None:
            left_out = [
                *left_out,
                *(LeftOut(slot=m.slot, response_id=m.response_id, reason=dropped) for m in members),
            ]
            members = []
        close = Close(
            task_id=task_id,
            task=task,
            rule=self.rule,
            sampling_id=chosen,
            adapter_version=attempt.adapter_version if attempt else -1,
            complete=complete,
            dropped_reason=dropped,
            created_at=max(stamps),
            reward_mean=mean,
            reward_std=std,
            members=tuple(members),
            left_out=tuple(sorted(left_out, key=lambda left: (left.slot, left.response_id or ""))),
        )
        closed = Closed(max(stamps), frozenset(seen_ids(state)), chosen)
        return closed, [close, *self._superseded(task_id, state, chosen), *self._strangers(task_id, state, chosen)]

    def _why_dropped(
        self, task: Facts, members: Sequence[Member], attempt: Attempt | None, complete: bool
    ) -> str | None:
        """Return why this group is not for the trainer, or None."""
        if attempt is None:
            return "unanswered"
        if not members and (task.sources or not complete):
            return "unscored"
        if task.purpose == "train" and not complete and self.rule.partial == "drop":
            return "incomplete"
        if task.purpose == "train" and len(members) < self.rule.min_group:
            return "too_few_scored"
        return None

    def _superseded(self, task_id: str, state: Open, chosen: str | None) -> Iterator[Reject]:
        """Yield a rejection for each response of the samplings that were not chosen."""
        for sampling_id, attempt in state.attempts.items():
            if sampling_id != chosen:
                for slot in attempt.slots.values():
                    at = Coordinates(self.responses_topic, slot.partition, slot.offset)
                    yield Reject(at, "superseded", _by_another(task_id))

    def _strangers(self, task_id: str, state: Open, chosen: str | None) -> Iterator[Reject]:
        """Yield a rejection for each reward that is not about the sampling that was chosen."""
        known = {slot.response_id for slot in state.attempts[chosen].slots.values()} if chosen else set()
        for response_id, scores in state.scores.items():
            if response_id in known:
                continue
            for score in scores.values():
                at = Coordinates(self.rewards_topic, score.partition, score.offset)
                yield Reject(at, "unknown_response", _about_another(task_id, response_id))


def _by_reference(event: Response | Reward, at: Coordinates, timestamp_ms: int) -> Answer | Verdict:
    """Return what the state keeps of an event."""
    if isinstance(event, Reward):
        score = Score(event.value, event.components, at.partition, at.offset, timestamp_ms)
        return Verdict(event.response_id, event.source, score)
    failed = event.error is not None
    return Answer(
        sampling_id=event.sampling_id,
        number=event.slot,
        adapter_version=event.adapter_version,
        group_size=event.group_size,
        policy=event.policy,
        shared=shared_digest(event),
        slot=Slot(event.response_id, at.partition, at.offset, timestamp_ms, failed, event.finish_reason),
    )


def _wait(state: Open, new: Answer | Verdict) -> Open:
    """Return the state with one more that waits; a repetition that is not even earlier in time cannot matter."""
    for old in state.early:
        if _said(old) == _said(new) and _where(old).timestamp_ms <= _where(new).timestamp_ms:
            return state
    return replace(state, early=(*state.early, new))


def _where(early: Answer | Verdict) -> Slot | Score:
    return early.slot if isinstance(early, Answer) else early.score


def _said(early: Answer | Verdict) -> Answer | Verdict:
    """Return it without where and when it was written."""
    if isinstance(early, Answer):
        return replace(early, slot=replace(early.slot, partition=0, offset=0, timestamp_ms=0))
    return replace(early, score=replace(early.score, partition=0, offset=0, timestamp_ms=0))


def _content(task: Facts) -> Facts:
    """Return what makes two records the same task: not when they were written, nor under which trace."""
    return replace(task, deadline_ms=None, timestamp_ms=0, traceparent=None)


def _disagreement(task: Facts, answer: Answer) -> str | None:
    """Return what task and response disagree on, or None."""
    if answer.group_size != task.group_size:
        return (
            f"group_size {task.group_size}, but this response says {answer.group_size}. Group size is fixed when the "
            "task is written; check the policy agent"
        )
    if answer.policy != task.policy:
        return f"policy {task.policy!r}, but this response is of {answer.policy!r}. Only the named policy may answer"
    if task.adapter_version is not None and answer.adapter_version != task.adapter_version:
        return f"adapter version {task.adapter_version} pinned, but version {answer.adapter_version} answered"
    return None


def _late(task: Facts, timestamp_ms: int) -> str:
    over = timestamp_ms - (task.deadline_ms or 0)
    return f"recorded {over} ms after the deadline of its task; raise deadline_at if such answers should count"


def _by_another(task_id: str) -> str:
    return f"task {task_id} was answered by another sampling, whose last slot stands before this one's"


def _about_another(task_id: str, response_id: str) -> str:
    return (
        f"response {response_id} is not in the sampling that the group of task {task_id} was made of: it never came, "
        "or another sampling was whole before its own; in the first case check the scorer's ids"
    )


def _after_close(state: Closed, event: Task | Response | Reward, at: Coordinates) -> Sequence[Effect]:
    """Return what becomes of `event`: as far as can be told, what would have become of it before."""
    if isinstance(event, Task):
        return ()
    own_id = event.response_id if isinstance(event, Response) else event.reward_id
    if short_id(own_id) in state.seen:
        return ()
    if state.sampling_id is not None:
        if isinstance(event, Response) and event.sampling_id != state.sampling_id:
            return [Reject(at, "superseded", _by_another(event.task_id))]
        if isinstance(event, Reward) and event.response_id != derive_id(state.sampling_id, event.slot):
            return [Reject(at, "unknown_response", _about_another(event.task_id, event.response_id))]
    return [Reject(at, "late", f"the group of task {event.task_id} has already left; nothing can be added to it")]


# --- what both drivers share -----------------------------------------------------------------------------------------


class Stage:
    """The reducer with what it needs of the log: decoding, the responses of open groups, the records of rejections.

    Responses are kept by coordinates while there is room, and read again from the log when they are not here: after a
    restart, or when more than `KEPT_BYTES` are open. It is a cache, never a fact.
    """

    KEPT_BYTES = 256 * 1024 * 1024

    def __init__(self, settings: Settings) -> None:
        self._topics = {topic.name: topic for topic in topics(settings.topics).values() if topic.label in KEYED_BY_TASK}
        self._responses = topics(settings.topics)["responses"].name
        self.join = Join(settings.advantages, self._responses, topics(settings.topics)["rewards"].name)
        self._kept: dict[tuple[int, int], tuple[Response, int]] = {}
        self._kept_bytes = 0

    def decode(self, record: Record) -> GroupEvent | DeadLetter:
        """Return the event in `record`, or its dead letter."""
        event = record.decode(self._topics[record.at.topic].event)
        if isinstance(event, Poison):
            return dead_letter(record, stage=STAGE, reason=event.reason, error=event.error)
        assert isinstance(event, Task | Response | Reward | GroupControl)  # noqa: S101 - the topic's own type
        if record.key != event.task_id.encode():
            error = f"the record key is {record.key!r}, expected the task_id {event.task_id!r}; key records by task_id"
            return dead_letter(record, stage=STAGE, reason="wrong_key", error=error)
        return event

    def reduce(self, state: State, event: GroupEvent, record: Record) -> tuple[State, Sequence[Effect]]:
        """Return the reducer's answer, and keep a response at hand for when its group leaves."""
        if isinstance(event, Response) and event.error is None and not isinstance(state, Closed):
            self._keep(record, event)
        return self.join.reduce(state, event, record.at, record.timestamp_ms)

    def missing(self, effects: Sequence[Effect], record: Record) -> list[Coordinates]:
        """Return the coordinates of every record that `effects` refer to and that is not at hand."""
        wanted: list[Coordinates] = []
        for effect in effects:
            if isinstance(effect, Close):
                wanted += [
                    Coordinates(self._responses, *member.at) for member in effect.members if member.at not in self._kept
                ]
            elif effect.at != record.at:
                wanted.append(effect.at)
        return wanted

    def outputs(
        self, effects: Sequence[Effect], record: Record, fetched: Mapping[Coordinates, Record]
    ) -> list[AdvantagedGroup | DeadLetter]:
        """Return the records that `effects` ask for, in order."""
        made: list[AdvantagedGroup | DeadLetter] = []
        for effect in effects:
            if isinstance(effect, Reject):
                if effect.at.topic == self._responses and effect.at[1:] in self._kept:
                    self._forget(effect.at[1:])
                source = record if effect.at == record.at else fetched[effect.at]
                made.append(dead_letter(source, stage=STAGE, reason=effect.reason, error=effect.error))
                continue
            made.append(assemble(effect, {member.at: self._take(member.at, fetched) for member in effect.members}))
        return made

    def _keep(self, record: Record, response: Response) -> None:
        size = 8 * len(record.payload or b"")  # as Python objects, not as varints
        while self._kept and self._kept_bytes + size > self.KEPT_BYTES:
            self._forget(next(iter(self._kept)))
        self._kept[record.at.partition, record.at.offset] = (response, size)
        self._kept_bytes += size

    def _take(self, at: tuple[int, int], fetched: Mapping[Coordinates, Record]) -> Response:
        if at in self._kept:
            return self._forget(at)
        response = fetched[Coordinates(self._responses, *at)].decode(Response)
        assert isinstance(response, Response)  # noqa: S101 - it was decoded once already, when it was counted
        return response

    def _forget(self, at: tuple[int, int]) -> Response:
        response, size = self._kept.pop(at)
        self._kept_bytes -= size
        return response


# --- the live wiring -------------------------------------------------------------------------------------------------


def register(app: App) -> None:
    """Drive the reducer from the four topics, and write the control records that let time act.

    The four agents share one state per task, so events of one partition number take turns. Results are acknowledged
    before the closed marker is written: a kill in between emits the same bytes again, and never nothing.
    """
    import asyncio

    from streams.app import Outlet, agent, owned_partitions, record_of, table

    settings = app.settings
    names = {label: topic for label, topic in topics(settings.topics).items() if label in KEYED_BY_TASK}
    stage, rows, outlet, timers = Stage(settings), Rows(), Outlet(app), Timers(settings)
    states = table(app, "open-groups", settings.topics.partitions)
    turns = [asyncio.Lock() for _ in range(settings.topics.partitions)]

    async def handle(faust_event: Any) -> None:
        record = record_of(faust_event)
        timers.saw(record.timestamp_ms, _now_ms())
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
                for output in stage.outputs(effects, record, fetched):
                    await outlet.emit(output)
            if after is before:
                return
            if after is None:
                del states[key]
            else:
                states[key] = rows.dump(key, after)
            timers.note(event.task_id, after, stage.join)

    for topic in names.values():
        agent(app, topic, handle, outlet.dead_letters(STAGE), name=f"{STAGE}.{topic.label}")

    @app.timer(1.0)  # type: ignore[untyped-decorator]  # faust is not typed
    async def tick() -> None:
        owned = owned_partitions(app, names["tasks"].name)
        if timers.owned != owned:
            known = ((key.decode(), load(row)) for key, row in states.items())
            timers.rebuild(owned, known, stage.join, _now_ms())
        for control in timers.due(_now_ms()):
            await outlet.emit(control)


def _now_ms() -> int:
    return int(time.time() * 1000)


class Timers:
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

    def rebuild(self, owned: set[int], rows: Iterable[tuple[str, State]], join: Join, now_ms: int) -> None:
        """Start over from the rows of the partitions that are owned now."""
        self.owned, self._due = owned, {}
        self._quiet_from_ms = now_ms + self.QUIET_S * 1000
        for task_id, state in rows:
            if partition_of(task_id, self._partitions) in owned:
                self.note(task_id, state, join)

    def note(self, task_id: str, state: State, join: Join) -> None:
        """Remember when this state wants a control record, if ever."""
        self._due.pop(task_id, None)
        if isinstance(state, Open) and (deadline_ms := join.deadline_ms(state)) is not None:
            self._due[task_id] = (deadline_ms + int(self._rule.grace_s * 1000), "expire")
        elif isinstance(state, Closed) and self._rule.evict_after_s:
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
