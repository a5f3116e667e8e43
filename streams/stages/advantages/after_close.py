"""What a closed group remembers, and how it handles events that are read later.

    OpenGroup ── leaves ──► ClosedGroup ── task | response | reward ──► ClosedGroup', effects: dead letters

The four topics are read side by side, so the same record may be read before its group leaves or after. It must pass the
same checks in the same order (`checks.py`), and if it does, it is rejected for the reason that would have applied when
the group left: it belongs to another sampling, or is a reward for one. So a log has the same dead letters in whatever
order it is read. For that the closed group keeps short ids and digests, but no texts or tokens.
"""

from __future__ import annotations

from schemas.events import Coordinates, derive_id
from streams.stages.advantages.checks import (
    already_left,
    changed_response,
    changed_task,
    other_sampling,
    reject,
    response_rejection,
    reward_rejection,
    unknown_response,
)
from streams.stages.advantages.digests import short_id
from streams.stages.advantages.state import (
    ClosedGroup,
    DeadLetterEffect,
    Effect,
    OpenGroup,
    ResponseCandidate,
    RewardRef,
    SamplingState,
    ScoreDigest,
    SourceScore,
    TaskInfo,
)


def closed_group(group: OpenGroup, task: TaskInfo, sampling_id: str | None, closed_ms: int) -> ClosedGroup:
    """Return the closed form of a group that leaves, made from the sampling `sampling_id`."""
    refs = group.samplings[sampling_id].slots.values() if sampling_id else ()
    return ClosedGroup(
        closed_ms=closed_ms,
        sampling_id=sampling_id,
        task=task._replace(scenario="", tenant=None, traceparent=None, metadata=()),
        content_digest=task.content_digest(),
        samplings={
            name: (sampling.adapter_version, sampling.shared_digest) for name, sampling in group.samplings.items()
        },
        failed=frozenset([short_id(ref.response_id) for ref in refs if ref.failed]),
        responses={
            short_id(ref.response_id): ref.content_digest
            for sampling in group.samplings.values()
            for ref in sampling.slots.values()
        },
        scores={score.reward_id: _digest(score) for scores in group.scores.values() for score in scores.values()},
        quota=group.quota,
        rejected=group.rejected,
    )


def after_close(
    group: ClosedGroup,
    task_id: str,
    event: TaskInfo | ResponseCandidate | RewardRef,
    coordinates: Coordinates,
    effects: list[Effect],
) -> ClosedGroup:
    """Return the closed group after an event recorded at `coordinates`.

    Everything except a repetition or a score of a failed slot is rejected.
    """
    if isinstance(event, TaskInfo):
        return _task_after(group, task_id, event, coordinates, effects)
    if isinstance(event, ResponseCandidate):
        return _response_after(group, task_id, event, coordinates, effects)
    return _reward_after(group, task_id, event, coordinates, effects)


def _task_after(
    group: ClosedGroup, task_id: str, task: TaskInfo, coordinates: Coordinates, effects: list[Effect]
) -> ClosedGroup:
    content = task.content_digest()
    if content == group.content_digest:
        return group
    return reject(group, content, DeadLetterEffect(coordinates, *changed_task(task_id)), effects)


def _response_after(
    group: ClosedGroup, task_id: str, response: ResponseCandidate, coordinates: Coordinates, effects: list[Effect]
) -> ClosedGroup:
    response_id, sampling_id = short_id(response.ref.response_id), response.sampling_id
    if (first_digest := group.responses.get(response_id)) is not None:
        if first_digest == response.ref.content_digest:
            return group
        changed = changed_response(response.ref.response_id)
        return reject(group, response.content_digest(), DeadLetterEffect(coordinates, *changed), effects)
    version, shared = group.samplings.get(sampling_id, (response.adapter_version, response.shared_digest))
    sampling = SamplingState(version, response.group_size, shared, {})
    if (rejection := response_rejection(group.task, sampling, response)) is not None:
        return reject(group, response.content_digest(), DeadLetterEffect(coordinates, *rejection), effects)
    in_group = group.sampling_id in (None, sampling_id)
    effects.append(DeadLetterEffect(coordinates, *(already_left(task_id) if in_group else other_sampling(task_id))))
    return group._replace(
        samplings={**group.samplings, sampling_id: (version, shared or response.shared_digest)},
        responses={**group.responses, response_id: response.ref.content_digest},
    )


def _reward_after(
    group: ClosedGroup, task_id: str, reward: RewardRef, coordinates: Coordinates, effects: list[Effect]
) -> ClosedGroup:
    reward_id = reward.score.reward_id
    score, first = _digest(reward.score), group.scores.get(reward_id)
    if first is not None and (first.value, first.parts_digest) == (score.value, score.parts_digest):
        return group
    first_score = (
        None
        if first is None
        else SourceScore(first.value, {}, False, reward_id, coordinates.partition, first.offset, 0)
    )
    if (rejection := reward_rejection(group.task, first_score, reward, coordinates.topic)) is not None:
        return reject(group, reward.content_digest(), DeadLetterEffect(coordinates, *rejection), effects)
    if short_id(reward.response_id) not in group.failed:
        in_group = group.sampling_id is None or reward.response_id in {
            derive_id(group.sampling_id, slot) for slot in range(group.task.group_size)
        }
        rejection = already_left(task_id) if in_group else unknown_response(task_id, reward.response_id)
        effects.append(DeadLetterEffect(coordinates, *rejection))
    return group._replace(scores={**group.scores, reward_id: score})


def _digest(score: SourceScore) -> ScoreDigest:
    return ScoreDigest(score.offset, score.value, score.parts_digest())
