"""Decide what becomes of a group as each event about its task is read.

    state, event, where and when it lies ──► Join.reduce ──► state', effects: Close a group, Reject a record
    one state per task_id                    no clock, no I/O

Order. Delivery is at least once and the four topics are read side by side, so a reward may come before its response and
a response before its task. Ids say what a record is about; the first in its partition wins, a repetition is a no-op,
and another value under the same id is a contradiction. A task that was sampled twice is answered by the sampling whose
last slot stands first in the partition; the rest are superseded.

What is read before its task waits, and enters with it as if it had been read after it; a whole group is made of the
winning sampling and its rewards and of nothing else; and what is read after the group left is judged as it would have
been before (`streams/stages/advantages/after_close.py`). So the order in which the topics are read shows neither in
the groups nor in the dead letters. What was refused once is refused silently when it is said again.

Time. An answer or reward recorded after the task's deadline never counts, whenever it is read; the group is closed when
the `expire` record is read. Both are in the log, so a replay at any speed decides the same.

Not covered: what comes after `evict`. The task is then forgotten; an event for it waits, as an early one does, until it
expires, and ends as a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from schemas.events import Coordinates, GroupControl, Response, Reward, Task
from streams import advantage_formulas
from streams.settings.model import Advantages
from streams.stages.advantages.after_close import answer_after, by_id_alone, marker, task_after, verdict_after
from streams.stages.advantages.checks import (
    about_another,
    answer_of,
    by_another,
    by_reference,
    changed_answer,
    changed_task,
    content_digest,
    refusal_of_answer,
    refusal_of_verdict,
    refuse,
    said_digest,
    verdict_of,
)
from streams.stages.advantages.state import (
    ClosedGroup,
    DeadLetterEffect,
    Effect,
    EmitGroup,
    GroupMember,
    GroupState,
    OpenGroup,
    ResponseCandidate,
    ResponseRef,
    RewardRef,
    SamplingState,
    SourceScore,
    TaskInfo,
    fullest,
    task_info,
    weigh,
    winner,
    without_responses,
)

GroupEvent = Task | Response | Reward | GroupControl


@dataclass(frozen=True, slots=True)
class Join:
    """The reducer, under one rule and one set of topic names. It has no clock and no I/O."""

    rule: Advantages
    responses_topic: str
    rewards_topic: str

    def reduce(
        self, state: GroupState, event: GroupEvent, at: Coordinates, timestamp_ms: int, *, trace: str = ""
    ) -> tuple[GroupState, Sequence[Effect]]:
        """Return the state after `event`, which lies at `at` with this record timestamp, and what must be done.

        `trace` is that of a task; its group gets it, and nothing is decided by it.
        """
        if isinstance(event, GroupControl):
            return self._control(state, event)
        effects: list[Effect] = []
        if isinstance(state, ClosedGroup):
            return self._after_close(state, event, at, timestamp_ms, effects), effects
        state = state or OpenGroup(first_seen_ms=timestamp_ms)
        if isinstance(event, Task):
            state = self._task(state, event, at, timestamp_ms, effects, trace)
        elif state.task is None:
            state = _wait(state, by_reference(event, at, timestamp_ms))
        else:
            state = self._enter(state, state.task, by_reference(event, at, timestamp_ms), effects)
        if not self._is_complete(state):
            return state, effects
        closed, more = self._close(event.task_id, state, complete=True)
        return closed, [*effects, *more]

    def deadline_ms(self, state: OpenGroup) -> int | None:
        """Return when this group must be closed, in ms since the epoch, or None if it may wait for ever."""
        if state.task is not None:
            return state.task.deadline_ms
        wait_ms = int(self.rule.deadline_s * 1000)
        return state.first_seen_ms + wait_ms if wait_ms else None

    def _task(
        self, state: OpenGroup, task: Task, at: Coordinates, timestamp_ms: int, effects: list[Effect], trace: str
    ) -> OpenGroup:
        facts = task_info(task, timestamp_ms, self.rule)
        if state.task is not None:
            known = state.task if state.task.asked else state.task._replace(asked=facts.asked)  # a row of old
            changed = content_digest(facts)
            if changed == content_digest(known):
                return state
            return refuse(state, changed, DeadLetterEffect(at, *changed_task(task.task_id)), effects)
        waiting, state = state.early, replace(state, task=facts, early=(), trace=trace)
        for early in waiting:
            state = self._enter(state, facts, early, effects)
        return state

    def _after_close(
        self,
        state: ClosedGroup,
        event: Task | Response | Reward,
        at: Coordinates,
        timestamp_ms: int,
        effects: list[Effect],
    ) -> ClosedGroup:
        """Return the marker after `event`: what becomes of that is what would have become of it before."""
        memory = state.memory
        if memory is None:
            effects += by_id_alone(state, event, at)
            return state
        if isinstance(event, Task):
            return task_after(state, memory, event.task_id, task_info(event, timestamp_ms, self.rule), at, effects)
        if isinstance(event, Response):
            return answer_after(state, memory, event.task_id, answer_of(event, at, timestamp_ms), at, effects)
        return verdict_after(state, memory, event.task_id, verdict_of(event, at, timestamp_ms), at, effects)

    def _enter(
        self, state: OpenGroup, task: TaskInfo, early: ResponseCandidate | RewardRef, effects: list[Effect]
    ) -> OpenGroup:
        if isinstance(early, ResponseCandidate):
            return self._answer(state, task, early, effects)
        return self._verdict(state, task, early, effects)

    def _answer(self, state: OpenGroup, task: TaskInfo, answer: ResponseCandidate, effects: list[Effect]) -> OpenGroup:
        attempt = state.attempts.get(answer.sampling_id)
        if attempt is None:
            attempt = SamplingState(answer.adapter_version, answer.group_size, answer.shared, {})
        elif (known := attempt.slots.get(answer.number)) is not None:
            if known.said in ("", answer.slot.said):  # a row of old says nothing
                return state
            changed = changed_answer(answer.slot.response_id)
            return refuse(state, said_digest(answer), DeadLetterEffect(self._where(answer), *changed), effects)
        if (refusal := refusal_of_answer(task, attempt, answer)) is not None:
            return refuse(state, said_digest(answer), DeadLetterEffect(self._where(answer), *refusal), effects)
        slots = {**attempt.slots, answer.number: answer.slot}
        attempt = SamplingState(attempt.adapter_version, attempt.group_size, attempt.shared or answer.shared, slots)
        attempts = {**state.attempts, answer.sampling_id: attempt}
        return OpenGroup(
            state.task, state.early, attempts, state.scores, state.first_seen_ms, state.refused, state.trace
        )

    def _verdict(self, state: OpenGroup, task: TaskInfo, verdict: RewardRef, effects: list[Effect]) -> OpenGroup:
        score, of_response = verdict.score, state.scores.get(verdict.response_id, {})
        known = of_response.get(verdict.source)
        if known is not None and (known.value, known.components) == (score.value, score.components):
            return state
        if (refusal := refusal_of_verdict(task, known, verdict, self.rewards_topic)) is not None:
            return refuse(state, said_digest(verdict), DeadLetterEffect(self._where(verdict), *refusal), effects)
        scores = {**state.scores, verdict.response_id: {**of_response, verdict.source: score}}
        return OpenGroup(
            state.task, state.early, state.attempts, scores, state.first_seen_ms, state.refused, state.trace
        )

    def _where(self, early: ResponseCandidate | RewardRef) -> Coordinates:
        """Return where the record of this event lies."""
        if isinstance(early, ResponseCandidate):
            return Coordinates(self.responses_topic, early.slot.partition, early.slot.offset)
        return Coordinates(self.rewards_topic, early.score.partition, early.score.offset)

    def _control(self, state: GroupState, control: GroupControl) -> tuple[GroupState, Sequence[Effect]]:
        match control.kind, state:
            case "evict", ClosedGroup():
                return None, ()
            case "expire", OpenGroup(task=None):
                return None, list(self._orphans(control.task_id, state))
            case "expire", OpenGroup():
                return self._close(control.task_id, state, complete=False)
            case _:
                return state, ()  # it closed by itself meanwhile, or is long forgotten

    def _orphans(self, task_id: str, state: OpenGroup) -> Iterator[Effect]:
        """Yield a rejection for each event of a task that never came."""
        why = f"task {task_id} is not in the tasks topic; events can only be joined to a task that was submitted"
        for early in state.early:
            yield DeadLetterEffect(self._where(early), "unknown_task", why)

    def _is_complete(self, state: OpenGroup) -> bool:
        first = winner(state)
        if first is None or state.task is None:
            return False
        wanted = {name for name, _ in state.task.sources}
        slots = state.attempts[first].slots.values()
        if wanted and len(state.scores) < len([slot for slot in slots if not slot.failed]):
            return False  # the usual case, told by counting
        return all(slot.failed or wanted <= state.scores.get(slot.response_id, {}).keys() for slot in slots)

    def _close(self, task_id: str, state: OpenGroup, *, complete: bool) -> tuple[ClosedGroup, Sequence[Effect]]:
        task = state.task
        assert task is not None  # noqa: S101 - both callers have looked
        chosen = winner(state) or fullest(state)
        attempt = state.attempts[chosen] if chosen else None
        members, left_out, stamps = weigh(state, task, chosen)
        dropped = self._why_dropped(task, members, attempt, complete)
        rewards = [member.reward for member in members]
        mean, std = advantage_formulas.mean_and_std(rewards, self.rule.ddof) if rewards else (0.0, 0.0)
        if rewards:
            scale = advantage_formulas.advantages(self.rule.formula, rewards, eps=self.rule.eps, ddof=self.rule.ddof)
            members = [member._replace(advantage=value) for member, value in zip(members, scale, strict=True)]
        close = EmitGroup(
            task_id=task_id,
            task=task,
            rule=self.rule,
            sampling_id=chosen,
            adapter_version=attempt.adapter_version if attempt else -1,
            complete=complete,
            dropped_reason=None,
            created_at=max(stamps),
            reward_mean=mean,
            reward_std=std,
            members=tuple(members),
            left_out=tuple(left_out),
            trace=state.trace,
        )
        if dropped is not None:
            close = without_responses(close, dropped)
        closed = marker(state, task, chosen, max(stamps))
        return closed, [close, *self._superseded(task_id, state, chosen), *self._strangers(task_id, state, chosen)]

    def _why_dropped(
        self, task: TaskInfo, members: Sequence[GroupMember], attempt: SamplingState | None, complete: bool
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

    def _superseded(self, task_id: str, state: OpenGroup, chosen: str | None) -> Iterator[DeadLetterEffect]:
        """Yield a rejection for each response of the samplings that were not chosen."""
        for sampling_id, attempt in state.attempts.items():
            if sampling_id != chosen:
                for slot in attempt.slots.values():
                    at = Coordinates(self.responses_topic, slot.partition, slot.offset)
                    yield DeadLetterEffect(at, *by_another(task_id))

    def _strangers(self, task_id: str, state: OpenGroup, chosen: str | None) -> Iterator[DeadLetterEffect]:
        """Yield a rejection for each reward that is not about the sampling that was chosen."""
        known = {slot.response_id for slot in state.attempts[chosen].slots.values()} if chosen else set()
        for response_id, scores in state.scores.items():
            if response_id in known:
                continue
            for score in scores.values():
                at = Coordinates(self.rewards_topic, score.partition, score.offset)
                yield DeadLetterEffect(at, *about_another(task_id, response_id))


def _wait(state: OpenGroup, new: ResponseCandidate | RewardRef) -> OpenGroup:
    """Return the state with one more that waits; a repetition that is not even earlier in time cannot matter."""
    for old in state.early:
        if _said(old) == _said(new) and _where(old).timestamp_ms <= _where(new).timestamp_ms:
            return state
    return replace(state, early=(*state.early, new))


def _where(early: ResponseCandidate | RewardRef) -> ResponseRef | SourceScore:
    return early.slot if isinstance(early, ResponseCandidate) else early.score


def _said(early: ResponseCandidate | RewardRef) -> ResponseCandidate | RewardRef:
    """Return it without where and when it was written."""
    if isinstance(early, ResponseCandidate):
        return early._replace(slot=early.slot._replace(partition=0, offset=0, timestamp_ms=0))
    return early._replace(score=early.score._replace(partition=0, offset=0, timestamp_ms=0))
