"""Decide a group's fate as each event about its task is read.

    state, event, its coordinates and time ──► GroupReducer.reduce ──► state', effects: a group leaves, a dead letter
    one state per task_id                      no clock, no I/O

Order. Delivery is at least once and the four topics are read in parallel, so a reward may come before its response and
a response before its task. Ids say what a record is about; the first in its partition wins, a repetition is a no-op,
and another value under the same id is a contradiction. A task that was sampled twice is answered by the sampling whose
last slot comes first in the partition; the others are superseded.

An event that is read before its task waits for it, and enters as if it had been read after it; a reward also waits
until the task's deadline is known. A complete group consists of only the winning sampling and its rewards. An event
that is read after the group left is judged as it would have been before (`after_close.py`). So neither groups nor dead
letters depend on the order in which the topics are read. A rejected event that is repeated gives no second dead letter.
A group's memory is bounded by topic (`quota.py`).

Time. A response or reward recorded after the task's deadline never counts, whenever it is read; the group is closed
when the `expire` record is read. A `train` task that names no deadline may be held back for the trainer, so it has none
before its first response. From the timestamp of that record it has `advantages.deadline_s`, and so it ends even if the
agent died before it wrote the other slots. All this is in the log: a replay at any speed decides the same.

After `evict` the task is forgotten. An event about it then waits as an early one does, until it expires and is
dead-lettered; the task itself, if delivered again, begins a second group with the same id, which the batch stage drops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.conventions import ABSTAINED, FEEDBACK, UNRANKED
from schemas.events import Coordinates, GroupControl, LeftOut, Task
from streams import advantage_formulas
from streams.advantage_formulas import FormulaError
from streams.scorers.registry import compares_group
from streams.settings.model import Advantages
from streams.stages.advantages.after_close import after_close, closed_group
from streams.stages.advantages.checks import (
    changed_response,
    changed_task,
    other_sampling,
    reject,
    response_rejection,
    reward_rejection,
    unknown_response,
)
from streams.stages.advantages.group_event import without_responses
from streams.stages.advantages.incoming import Incoming
from streams.stages.advantages.quota import count_record
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
    complete_sampling,
    fullest_sampling,
    task_info,
)


@dataclass(frozen=True, slots=True)
class GroupReducer:
    """The reducer, under one rule and one set of topic names."""

    rule: Advantages
    responses_topic: str
    rewards_topic: str
    row_bytes: int
    """Maximum size of a table row with its key."""

    def reduce(
        self, state: GroupState, incoming: Incoming, coordinates: Coordinates, timestamp_ms: int, *, trace: str = ""
    ) -> tuple[GroupState, Sequence[Effect]]:
        """Return the state after an event, recorded at `coordinates` with this timestamp, and what must be done.

        `trace` is that of a task; it is passed to the group and affects no decision.
        """
        if isinstance(incoming.event, GroupControl):
            return self._control(state, incoming.event)
        event = (
            task_info(incoming.event, timestamp_ms, self.rule) if isinstance(incoming.event, Task) else incoming.event
        )
        if isinstance(event, RewardRef) and event.source.startswith(FEEDBACK):
            return state, ()
        group = state or OpenGroup(first_seen_ms=timestamp_ms)
        quota, refusal = count_record(group.quota, incoming.task_id, event, coordinates, self.row_bytes)
        if quota is not group.quota:
            state = group = group.with_quota(quota)
        if refusal is not None:
            return state, [DeadLetterEffect(coordinates, *refusal)]
        effects: list[Effect] = []
        if isinstance(group, ClosedGroup):
            return after_close(group, incoming.task_id, event, coordinates, effects), effects
        if isinstance(event, TaskInfo):
            if group.task is None:
                group = self._begin(group._replace(trace=trace), event, effects)
            elif (content := event.content_digest()) != group.task.content_digest():
                group = reject(group, content, DeadLetterEffect(coordinates, *changed_task(incoming.task_id)), effects)
        elif group.task is None:
            group = _wait(group, event)
        else:
            group = self._enter(group, group.task, event, effects)
        if group.task is None or not self._is_complete(group, group.task):
            return group, effects
        closed, closing = self._close(incoming.task_id, group, group.task, complete=True)
        return closed, [*effects, *closing]

    # --- entering -----------------------------------------------------------------------------------------------------

    def _begin(self, group: OpenGroup, task: TaskInfo, effects: list[Effect]) -> OpenGroup:
        """Return the group with its task as now known, and with everything that waited for the task."""
        early, group = group.early, group._replace(task=task, early=())
        for event in early:
            group = self._enter(group, group.task or task, event, effects)
        return group

    def _enter(
        self, group: OpenGroup, task: TaskInfo, event: ResponseCandidate | RewardRef, effects: list[Effect]
    ) -> OpenGroup:
        if isinstance(event, ResponseCandidate):
            return self._enter_response(group, task, event, effects)
        if task.deadline_ms is None and not group.samplings:
            return _wait(group, event)  # the first response may bring a deadline
        return self._enter_reward(group, task, event, effects)

    def _enter_response(
        self, group: OpenGroup, task: TaskInfo, response: ResponseCandidate, effects: list[Effect]
    ) -> OpenGroup:
        sampling = group.samplings.get(response.sampling_id)
        if sampling is None:
            sampling = SamplingState(response.adapter_version, response.group_size, response.shared_digest, {})
        elif (first := sampling.slots.get(response.slot)) is not None:
            if first.content_digest == response.ref.content_digest:
                return group
            changed = DeadLetterEffect(self._at(response), *changed_response(response.ref.response_id))
            return reject(group, response.content_digest(), changed, effects)
        if (rejection := response_rejection(task, sampling, response)) is not None:
            effect = DeadLetterEffect(self._at(response), *rejection)
            return reject(group, response.content_digest(), effect, effects)
        version, size, shared, slots = sampling
        slots = {**slots, response.slot: response.ref}
        with_it = SamplingState._make((version, size, shared or response.shared_digest, slots))
        entered = group.with_samplings({**group.samplings, response.sampling_id: with_it})
        return entered if group.samplings else self._begin(entered, self._with_deadline(task, response.ref), effects)

    def _with_deadline(self, task: TaskInfo, first: ResponseRef) -> TaskInfo:
        """Return the task with the deadline that its first response gives it.

        A response older than its task counts as recorded with it: the agent's clock is slow, and all rewards would be
        late.
        """
        if task.purpose != "train" or task.deadline_ms is not None or not self.rule.deadline_s:
            return task
        sampled_ms = max(task.timestamp_ms, first.timestamp_ms)
        return task._replace(deadline_ms=sampled_ms + int(self.rule.deadline_s * 1000))

    def _enter_reward(self, group: OpenGroup, task: TaskInfo, reward: RewardRef, effects: list[Effect]) -> OpenGroup:
        score, of_response = reward.score, group.scores.get(reward.response_id, {})
        first = of_response.get(reward.source)
        if first is not None and first[:3] == score[:3] and first.steps == score.steps:
            return group
        if (rejection := reward_rejection(task, first, reward, self.rewards_topic)) is not None:
            effect = DeadLetterEffect(self._at(reward), *rejection)
            return reject(group, reward.content_digest(), effect, effects)
        return group.with_scores({**group.scores, reward.response_id: {**of_response, reward.source: score}})

    def _at(self, event: ResponseCandidate | RewardRef) -> Coordinates:
        """Return the coordinates of an event's record."""
        topic = self.responses_topic if isinstance(event, ResponseCandidate) else self.rewards_topic
        return Coordinates(topic, event.ref.partition, event.ref.offset)

    # --- leaving ------------------------------------------------------------------------------------------------------

    def _control(self, state: GroupState, control: GroupControl) -> tuple[GroupState, Sequence[Effect]]:
        match control.kind, state:
            case "evict", ClosedGroup():
                return None, ()
            case "expire", OpenGroup(task=None):
                return None, list(self._without_task(control.task_id, state))
            case "expire", OpenGroup(task=TaskInfo() as task):
                effects: list[Effect] = []
                for event in state.early:  # of a task that was never sampled
                    if isinstance(event, RewardRef):
                        state = self._enter_reward(state, task, event, effects)
                closed, closing = self._close(control.task_id, state._replace(early=()), task, complete=False)
                return closed, [*effects, *closing]
            case _:
                return state, ()  # the group has closed meanwhile, or was forgotten long ago

    def _without_task(self, task_id: str, group: OpenGroup) -> Iterator[Effect]:
        """Yield a dead letter for each event of a task that never came."""
        error = f"task {task_id} is not in the tasks topic; events can only be joined to a task that was submitted"
        for event in group.early:
            yield DeadLetterEffect(self._at(event), "unknown_task", error)

    def _is_complete(self, group: OpenGroup, task: TaskInfo) -> bool:
        first = complete_sampling(group)
        if first is None:
            return False
        sources = {name for name, _ in task.sources}
        for ref in reversed(
            group.samplings[first].slots.values()
        ):  # the last to answer is mostly the last to be scored
            if not ref.failed and not sources <= group.scores.get(ref.response_id, {}).keys():
                return False
        return True

    def _close(
        self, task_id: str, group: OpenGroup, task: TaskInfo, *, complete: bool
    ) -> tuple[ClosedGroup, Sequence[Effect]]:
        chosen = complete_sampling(group) or fullest_sampling(group)
        sampling = group.samplings[chosen] if chosen else None
        content = group_content(group, task, sampling)
        members, rule = content.members, self.rule
        dropped = self._why_dropped(task, members, sampling, complete)
        rewards = [member.reward for member in members]
        mean, std = advantage_formulas.mean_and_std(rewards, rule.ddof) if rewards else (0.0, 0.0)
        if rewards:
            try:
                values = advantage_formulas.advantages(rule.formula, rewards, eps=rule.eps, ddof=rule.ddof)
            except FormulaError:
                values, dropped = [0.0] * len(rewards), dropped or "formula_failed"
            members = [GroupMember._make((*member[:-1], value)) for member, value in zip(members, values, strict=True)]
        emit = EmitGroup(
            task_id=task_id,
            task=task,
            rule=rule,
            sampling_id=chosen,
            adapter_version=sampling.adapter_version if sampling else -1,
            complete=complete,
            dropped_reason=None,
            created_at=content.newest_ms,
            reward_mean=mean,
            reward_std=std,
            members=tuple(members),
            left_out=tuple(content.left_out),
            trace=group.trace,
        )
        if dropped is not None:
            emit = without_responses(emit, dropped)
        closed = closed_group(group, task, chosen, content.newest_ms)
        return closed, [emit, *self._other_samplings(task_id, group, chosen), *self._strangers(task_id, group, chosen)]

    def _why_dropped(
        self, task: TaskInfo, members: Sequence[GroupMember], sampling: SamplingState | None, complete: bool
    ) -> str | None:
        """Return why this group is not for the trainer, or None."""
        if sampling is None:
            return "unanswered"
        if not members and (task.sources or not complete):
            return "unscored"
        if task.purpose == "train" and not complete and self.rule.partial == "drop":
            return "incomplete"
        if task.purpose == "train" and len(members) < self.rule.min_group:
            return "too_few_scored"
        return None

    def _other_samplings(self, task_id: str, group: OpenGroup, chosen: str | None) -> Iterator[DeadLetterEffect]:
        """Yield a dead letter for each response of the samplings that were not chosen."""
        for sampling_id, sampling in group.samplings.items():
            if sampling_id != chosen:
                for ref in sampling.slots.values():
                    coordinates = Coordinates(self.responses_topic, ref.partition, ref.offset)
                    yield DeadLetterEffect(coordinates, *other_sampling(task_id))

    def _strangers(self, task_id: str, group: OpenGroup, chosen: str | None) -> Iterator[DeadLetterEffect]:
        """Yield a dead letter for each reward that is not for the sampling that was chosen."""
        members = {ref.response_id for ref in group.samplings[chosen].slots.values()} if chosen else set()
        for response_id, scores in group.scores.items():
            if response_id in members:
                continue
            for score in scores.values():
                coordinates = Coordinates(self.rewards_topic, score.partition, score.offset)
                yield DeadLetterEffect(coordinates, *unknown_response(task_id, response_id))


def _wait(group: OpenGroup, new: ResponseCandidate | RewardRef) -> OpenGroup:
    """Return the group with one more event that waits; a repetition that is not even earlier in time cannot matter."""
    for old in group.early:
        about_the_same = old[:-1] == new[:-1] and old.ref.timestamp_ms <= new.ref.timestamp_ms
        if about_the_same and old.without_record() == new.without_record():
            return group
    return group._replace(early=(*group.early, new))


# --- what a group is made of ------------------------------------------------------------------------------------------


class GroupContent(NamedTuple):
    """The members of a group that leaves, and the responses left out."""

    newest_ms: int
    """The newest timestamp of everything that counted."""
    members: list[GroupMember]
    """The scored slots, in slot order; their advantages are still 0."""
    left_out: list[LeftOut]


def group_content(group: OpenGroup, task: TaskInfo, sampling: SamplingState | None) -> GroupContent:
    """Return the parts of a group of this sampling: the task, the sampling's responses and their scores. Nothing else
    counts. Which other samplings and rewards were read before the group left depends on how the topics were
    interleaved, and the same log must give the same record.
    """
    counted_ms, members, left_out = [task.timestamp_ms], [], []
    slots = sampling.slots if sampling else {}
    is_cut = any(slot not in slots for slot in range(task.group_size))
    for slot in range(task.group_size):
        ref = slots.get(slot)
        if ref is None:
            left_out.append(LeftOut(slot=slot, reason="unanswered"))
            continue
        scores = {} if ref.failed else group.scores.get(ref.response_id, {})
        counted_ms += (ref.timestamp_ms, *[score.timestamp_ms for score in scores.values()])
        if (reason := _why_left_out(task, ref.failed, scores, is_cut=is_cut)) is not None:
            left_out.append(LeftOut(slot=slot, response_id=ref.response_id, reason=reason))
            continue
        reward = sum([weight * (scores[name].value or 0.0) for name, weight in task.sources])
        place, components = (ref.partition, ref.offset), _components(task, scores)
        steps = _steps(task, scores)
        members.append(GroupMember(slot, ref.response_id, place, ref.finish_reason, reward, components, steps))
    return GroupContent(max(counted_ms), members, left_out)


def _why_left_out(task: TaskInfo, failed: bool, scores: Mapping[str, SourceScore], *, is_cut: bool) -> str | None:
    """Return why a slot has no reward; None if it has one. `is_cut`: a sibling never came."""
    if failed:
        return "response_failed"
    verdicts = [scores[name] for name, _ in task.sources if name in scores]
    if len(verdicts) < len(task.sources):
        missing = (name for name, _ in task.sources if name not in scores)
        return UNRANKED if is_cut and all(map(compares_group, missing)) else "unscored"
    if any(score.value is None and not score.abstained for score in verdicts):
        return "score_failed"
    return ABSTAINED if verdicts and all(score.abstained for score in verdicts) else None


def _steps(task: TaskInfo, scores: Mapping[str, SourceScore]) -> tuple[float, ...] | None:
    """Return the sources' score of each turn; () if none scores turns, None if their numbers of turns differ."""
    shares = [(weight, scores[name].steps) for name, weight in task.sources if scores[name].steps]
    if not shares:
        return ()
    turns = len(shares[0][1])
    if any(len(steps) != turns for _, steps in shares):
        return None
    return tuple(math.fsum(weight * steps[turn] for weight, steps in shares) for turn in range(turns))


def _components(task: TaskInfo, scores: Mapping[str, SourceScore]) -> dict[str, float]:
    components: dict[str, float] = {}
    for name, _ in task.sources:
        score = scores[name]
        if score.abstained:
            continue
        components[name] = score.value or 0.0
        for part, value in score.components.items():
            components[f"{name}.{part}"] = value
    return components
