"""What a group keeps when it has left, and what becomes of what is read after that.

    Open ── leaves ──► marker: Closed, with a Memory ── Task | Answer | Verdict ──► Closed', effects: Reject

The four topics are read side by side, so the same record may be read before its group leaves or after it. It is asked
the same questions in the same order (`streams/stages/advantages/checks.py`), and what passes is refused for the reason
it would have been refused when the group left: it is of another sampling, or about one. So a log has the same dead
letters however it was read. The memory is for that; it holds digests and short ids, and the group's texts and tokens
never.

Not covered: rows of the first release, which have no memory. What comes to them is judged by ids alone; a changed copy
of a task, and another value under the same reward_id, then leave no dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from schemas.events import Coordinates, Response, Reward, Task, derive_id
from streams.stages.advantages.checks import (
    about_another,
    already_left,
    by_another,
    changed_answer,
    changed_task,
    components_digest,
    content_digest,
    refusal_of_answer,
    refusal_of_verdict,
    refuse,
    said_digest,
)
from streams.stages.advantages.state import (
    ClosedGroup,
    ClosedGroupDigest,
    DeadLetterEffect,
    Effect,
    OpenGroup,
    ResponseCandidate,
    RewardRef,
    SamplingState,
    ScoreDigest,
    SourceScore,
    TaskInfo,
    short_id,
)


def marker(state: OpenGroup, task: TaskInfo, chosen: str | None, closed_ms: int) -> ClosedGroup:
    """Return what stays of a group that leaves, made of the sampling `chosen`."""
    slots = state.attempts[chosen].slots.values() if chosen else ()
    said = {
        short_id(derive_id(response_id, source)): _in_short(score)
        for response_id, scores in state.scores.items()
        for source, score in scores.items()
    }
    answers = {
        short_id(slot.response_id): slot.said for attempt in state.attempts.values() for slot in attempt.slots.values()
    }
    memory = ClosedGroupDigest(
        task=task._replace(scenario="", tenant=None, traceparent=None, metadata=()),
        content=content_digest(task),
        drawn={name: (attempt.adapter_version, attempt.shared) for name, attempt in state.attempts.items()},
        failed=frozenset(short_id(slot.response_id) for slot in slots if slot.failed),
        said=said,
        answers=answers,
    )
    return ClosedGroup(closed_ms, frozenset((*answers, *said)), chosen, memory, state.refused)


def task_after(
    state: ClosedGroup, memory: ClosedGroupDigest, task_id: str, task: TaskInfo, at: Coordinates, effects: list[Effect]
) -> ClosedGroup:
    """Return the marker after another copy of the task, which lies at `at`; a changed one is refused."""
    content = content_digest(task)
    if content == memory.content:
        return state
    return refuse(state, content, DeadLetterEffect(at, *changed_task(task_id)), effects)


def answer_after(
    state: ClosedGroup,
    memory: ClosedGroupDigest,
    task_id: str,
    answer: ResponseCandidate,
    at: Coordinates,
    effects: list[Effect],
) -> ClosedGroup:
    """Return the marker after a response; what is not a repetition is refused."""
    own = short_id(answer.slot.response_id)
    if own in state.seen:
        if memory.answers.get(own) in (None, "", answer.slot.said):
            return state
        changed = changed_answer(answer.slot.response_id)
        return refuse(state, said_digest(answer), DeadLetterEffect(at, *changed), effects)
    version, shared = memory.drawn.get(answer.sampling_id, (answer.adapter_version, answer.shared))
    attempt = SamplingState(version, answer.group_size, shared, {})
    if (refusal := refusal_of_answer(memory.task, attempt, answer)) is not None:
        return refuse(state, said_digest(answer), DeadLetterEffect(at, *refusal), effects)
    of_the_group = state.sampling_id in (None, answer.sampling_id)
    effects.append(DeadLetterEffect(at, *(already_left(task_id) if of_the_group else by_another(task_id))))
    drawn = {**memory.drawn, answer.sampling_id: (version, shared or answer.shared)}
    memory = memory._replace(drawn=drawn, answers={**memory.answers, own: answer.slot.said})
    return replace(state, seen=state.seen | {own}, memory=memory)


def verdict_after(
    state: ClosedGroup,
    memory: ClosedGroupDigest,
    task_id: str,
    verdict: RewardRef,
    at: Coordinates,
    effects: list[Effect],
) -> ClosedGroup:
    """Return the marker after a reward; what is not a repetition, or about a failed slot, is refused."""
    own = short_id(derive_id(verdict.response_id, verdict.source))
    said, before = _in_short(verdict.score), memory.said.get(own)
    if before is not None and (before.value, before.components) == (said.value, said.components):
        return state
    known = None if before is None else SourceScore(before.value, {}, at.partition, before.offset, 0)
    if (refusal := refusal_of_verdict(memory.task, known, verdict, at.topic)) is not None:
        return refuse(state, said_digest(verdict), DeadLetterEffect(at, *refusal), effects)
    if short_id(verdict.response_id) not in memory.failed:
        of_the_group = state.sampling_id is None or verdict.response_id in {
            derive_id(state.sampling_id, slot) for slot in range(memory.task.group_size)
        }
        why = already_left(task_id) if of_the_group else about_another(task_id, verdict.response_id)
        effects.append(DeadLetterEffect(at, *why))
    return replace(state, seen=state.seen | {own}, memory=memory._replace(said={**memory.said, own: said}))


def by_id_alone(state: ClosedGroup, event: Task | Response | Reward, at: Coordinates) -> Sequence[Effect]:
    """Return what becomes of `event` as far as a marker without memory can tell."""
    if isinstance(event, Task):
        return ()
    own_id = event.response_id if isinstance(event, Response) else event.reward_id
    if short_id(own_id) in state.seen:
        return ()
    if state.sampling_id is not None:
        if isinstance(event, Response) and event.sampling_id != state.sampling_id:
            return [DeadLetterEffect(at, *by_another(event.task_id))]
        if isinstance(event, Reward) and event.response_id != derive_id(state.sampling_id, event.slot):
            return [DeadLetterEffect(at, *about_another(event.task_id, event.response_id))]
    return [DeadLetterEffect(at, *already_left(event.task_id))]


def _in_short(score: SourceScore) -> ScoreDigest:
    return ScoreDigest(score.offset, score.value, components_digest(score.components))
