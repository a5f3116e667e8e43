"""Score each response against its siblings.

    tasks, responses, rewards, group-control ──► hold until the group is whole ──► groups
    key task_id                                  one state per task                key policy

GRPO compares the responses to one task only with each other, so nothing leaves here until every slot is answered (or
has failed) and every required source has spoken. Every task leaves exactly one record: its group, or why there is none.

Order. Delivery is at least once and the four topics are read side by side, so a reward may come before its response and
a response before its task. Ids say what a record is about; the first in its partition wins, a repetition is a no-op,
and another value under the same id is a contradiction. A task that was sampled twice is answered by the sampling whose
last slot stands first in the partition; the rest are superseded.

Time. An answer or reward recorded after the task's deadline never counts, whenever it is read; the group is closed when
the `expire` record is read. Both are in the log, so a replay at any speed decides the same.

Not covered: what comes after `evict`. The stage has then forgotten the task; an event for it waits, as an early one
does, until it expires, and ends as a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from schemas.events import Coordinates, GroupControl, LeftOut, Response, Reward, Task
from streams import formulas
from streams.groups import (
    Attempt,
    Close,
    Closed,
    Effect,
    Facts,
    Member,
    Open,
    Reject,
    Score,
    Slot,
    State,
    fullest,
    is_late,
    seen_ids,
    short_id,
    weigh,
    winner,
)
from streams.settings import Advantages

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
        elif isinstance(event, Response):
            state = self._response(state, event, at, timestamp_ms, effects)
        else:
            state = self._reward(state, event, at, timestamp_ms, effects)
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
        )
        if state.task is not None:
            known = replace(state.task, deadline_ms=None, timestamp_ms=0)
            if replace(facts, deadline_ms=None, timestamp_ms=0) != known:
                effects.append(
                    Reject(
                        at,
                        "contradictory",
                        f"task {task.task_id} was already read with other content; the first in its partition wins. "
                        "Give a changed task a new task_id",
                    )
                )
            return state
        attempts = {}
        for sampling_id, attempt in state.attempts.items():
            wrong = _disagreement(facts, attempt)
            if wrong is None:
                attempts[sampling_id] = attempt
                continue
            for slot in attempt.slots.values():
                where = Coordinates(self.responses_topic, slot.partition, slot.offset)
                effects.append(Reject(where, "contradictory", f"task {task.task_id} has {wrong}"))
        return replace(state, task=facts, attempts=attempts)

    def _response(
        self, state: Open, response: Response, at: Coordinates, timestamp_ms: int, effects: list[Effect]
    ) -> Open:
        attempt = state.attempts.get(response.sampling_id)
        if attempt is None:
            attempt = Attempt(response.adapter_version, response.group_size, response.policy, {})
        elif response.slot in attempt.slots:
            return state  # the same record again: response_id is a function of sampling and slot
        if state.task is not None:
            if (wrong := _disagreement(state.task, attempt)) is not None:
                effects.append(Reject(at, "contradictory", f"task {response.task_id} has {wrong}"))
                return state
            if is_late(state.task, timestamp_ms):
                effects.append(Reject(at, "late", _late(response.task_id, state.task, timestamp_ms)))
                return state
        if (response.adapter_version, response.group_size) != (attempt.adapter_version, attempt.group_size):
            effects.append(
                Reject(
                    at,
                    "contradictory",
                    f"sampling {response.sampling_id} began with adapter version {attempt.adapter_version} and "
                    f"group_size {attempt.group_size}, but slot {response.slot} has {response.adapter_version} and "
                    f"{response.group_size}. One sampling is one version's attempt at all slots; check the agent",
                )
            )
            return state
        slot = Slot(
            response.response_id,
            at.partition,
            at.offset,
            timestamp_ms,
            response.error is not None,
            response.finish_reason,
        )
        attempt = replace(attempt, slots={**attempt.slots, response.slot: slot})
        return replace(state, attempts={**state.attempts, response.sampling_id: attempt})

    def _reward(self, state: Open, reward: Reward, at: Coordinates, timestamp_ms: int, effects: list[Effect]) -> Open:
        of_response = state.scores.get(reward.response_id, {})
        known = of_response.get(reward.source)
        if known is not None:
            if (known.value, known.components) != (reward.value, reward.components):
                effects.append(
                    Reject(
                        at,
                        "contradictory",
                        f"reward {reward.reward_id} has value {reward.value}, but "
                        f"{self.rewards_topic}[{known.partition}]@{known.offset} already said {known.value}; the first "
                        "wins. A new opinion needs a new source name",
                    )
                )
            return state
        if state.task is not None:
            if reward.source not in {name for name, _ in state.task.sources}:
                asked = ", ".join(name for name, _ in state.task.sources)
                effects.append(
                    Reject(at, "unasked", f"task {reward.task_id} asks {asked or 'nobody'}, not {reward.source!r}")
                )
                return state
            if is_late(state.task, timestamp_ms):
                effects.append(Reject(at, "late", _late(reward.task_id, state.task, timestamp_ms)))
                return state
        score = Score(reward.value, reward.components, at.partition, at.offset, timestamp_ms)
        return replace(state, scores={**state.scores, reward.response_id: {**of_response, reward.source: score}})

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
        for attempt in state.attempts.values():
            for slot in attempt.slots.values():
                yield Reject(Coordinates(self.responses_topic, slot.partition, slot.offset), "unknown_task", why)
        for scores in state.scores.values():
            for score in scores.values():
                yield Reject(Coordinates(self.rewards_topic, score.partition, score.offset), "unknown_task", why)

    def _is_complete(self, state: Open) -> bool:
        first = winner(state)
        if first is None or state.task is None:
            return False
        wanted = {name for name, _ in state.task.sources}
        return all(
            slot.failed or wanted <= state.scores.get(slot.response_id, {}).keys()
            for slot in state.attempts[first].slots.values()
        )

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
        closed = Closed(max(stamps), frozenset(seen_ids(state)), frozenset(state.attempts))
        return closed, [close, *self._strangers(task_id, state)]

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

    def _strangers(self, task_id: str, state: Open) -> Iterator[Reject]:
        """Yield a rejection for each reward whose response never came."""
        known = {slot.response_id for attempt in state.attempts.values() for slot in attempt.slots.values()}
        for response_id, scores in state.scores.items():
            if response_id in known:
                continue
            for score in scores.values():
                yield Reject(
                    Coordinates(self.rewards_topic, score.partition, score.offset),
                    "unknown_response",
                    f"response {response_id} is not among the responses to task {task_id}; check the scorer's ids",
                )


def _disagreement(task: Facts, attempt: Attempt) -> str | None:
    """Return what task and sampling disagree on, or None."""
    if attempt.group_size != task.group_size:
        return (
            f"group_size {task.group_size}, but this response says {attempt.group_size}. Group size is fixed when the "
            "task is written; check the policy agent"
        )
    if attempt.policy != task.policy:
        return f"policy {task.policy!r}, but this response is of {attempt.policy!r}. Only the named policy may answer"
    if task.adapter_version is not None and attempt.adapter_version != task.adapter_version:
        return f"adapter version {task.adapter_version} pinned, but version {attempt.adapter_version} answered"
    return None


def _late(task_id: str, task: Facts, timestamp_ms: int) -> str:
    over = timestamp_ms - (task.deadline_ms or 0)
    return f"recorded {over} ms after the deadline of task {task_id}; raise deadline_at if such answers should count"


def _after_close(state: Closed, event: Task | Response | Reward, at: Coordinates) -> Sequence[Effect]:
    if isinstance(event, Task):
        return ()
    own_id = event.response_id if isinstance(event, Response) else event.reward_id
    if short_id(own_id) in state.seen:
        return ()
    if isinstance(event, Response) and event.sampling_id not in state.samplings:
        return [Reject(at, "superseded", f"task {event.task_id} was already answered by another sampling")]
    return [Reject(at, "late", f"the group of task {event.task_id} has already left; nothing can be added to it")]
