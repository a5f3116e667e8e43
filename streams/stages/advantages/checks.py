"""Reasons why an event may not enter its group.

    candidate or reward, state of its siblings ──► response_rejection, reward_rejection ──► None: it may
                                                                                               └─► (reason, sentence)

The same checks apply while a group is open and after it has left, so that a record is judged the same however late it
is read. An event without its task is not checked: it waits for the task.
"""

from __future__ import annotations

from typing import TypeVar

from streams.stages.advantages.state import (
    ClosedGroup,
    DeadLetterEffect,
    Effect,
    OpenGroup,
    ResponseCandidate,
    RewardRef,
    SamplingState,
    SourceScore,
    TaskInfo,
)

Rejection = tuple[str, str]
"""The keyword by which dead letters are grouped, and the sentence."""
Group = TypeVar("Group", OpenGroup, ClosedGroup)


def reject(group: Group, digest: str, effect: DeadLetterEffect, effects: list[Effect]) -> Group:
    """Add `effect` to the effects and return the group that remembers it; a repetition changes nothing.

    `digest` is that of the rejected content. A repetition must look the same whether it was read before or after its
    task.
    """
    if digest in group.rejected:
        return group
    effects.append(effect)
    return group._replace(rejected=group.rejected | {digest})


def response_rejection(task: TaskInfo, sampling: SamplingState, response: ResponseCandidate) -> Rejection | None:
    """Return why this response may not enter its sampling, or None."""
    if (wrong := _disagreement(task, response)) is not None:
        return "contradictory", f"the task has {wrong}"
    if task.is_late(response.ref.timestamp_ms):
        return "late", _late(task, response.ref.timestamp_ms)
    if response.adapter_version != sampling.adapter_version:
        return "contradictory", (
            f"sampling {response.sampling_id} began with adapter version {sampling.adapter_version}, but slot "
            f"{response.slot} has {response.adapter_version}. One sampling is one version's attempt at all slots; "
            "check the policy agent"
        )
    if response.shared_digest and sampling.shared_digest and response.shared_digest != sampling.shared_digest:
        return "contradictory", (
            f"slot {response.slot} of sampling {response.sampling_id} has another base model, tokenizer, "
            "temperature, top_p, trained_batches, prompt version or prompt tokens than the slots before it; one "
            "sampling shares them all (runs of an agent may begin with other messages). Check the policy agent"
        )
    return None


def reward_rejection(task: TaskInfo, first: SourceScore | None, reward: RewardRef, topic: str) -> Rejection | None:
    """Return why this reward may not enter, or None; `first` is another score by its source, recorded in `topic`."""
    score, source = reward.score, reward.source
    if first is not None:
        return "contradictory", (
            f"source {source!r} gives response {reward.response_id} the value {score.value}, but "
            f"{topic}[{first.partition}]@{first.offset} already has {first.value}; the first "
            "wins. A new opinion needs a new source name"
        )
    expected = [name for name, _ in task.sources]
    if source not in expected:
        return "unasked", f"the task names the sources {', '.join(expected) or '(none)'}, not {source!r}"
    if task.is_late(score.timestamp_ms):
        return "late", _late(task, score.timestamp_ms)
    return None


def _disagreement(task: TaskInfo, response: ResponseCandidate) -> str | None:
    """Return how task and response contradict each other, or None."""
    if response.group_size != task.group_size:
        return (
            f"group_size {task.group_size}, but this response says {response.group_size}. Group size is fixed when the "
            "task is written; check the policy agent"
        )
    if response.policy != task.policy:
        return f"policy {task.policy!r}, but this response is of {response.policy!r}. Only the named policy may answer"
    if task.adapter_version is not None and response.adapter_version != task.adapter_version:
        return f"adapter version {task.adapter_version} pinned, but version {response.adapter_version} answered"
    return None


def _late(task: TaskInfo, timestamp_ms: int) -> str:
    late_ms = timestamp_ms - (task.deadline_ms or 0)
    return f"recorded {late_ms} ms after the deadline of its task; raise deadline_at if such records should count"


# --- rejections that an open and a closed group share -----------------------------------------------------------------


def changed_task(task_id: str) -> Rejection:
    """Return the rejection of a task that differs from the first one with its id."""
    return "contradictory", (
        f"task {task_id} was already read with other content; the first in its partition wins. "
        "Give a changed task a new task_id"
    )


def changed_response(response_id: str) -> Rejection:
    """Return the rejection of a response that differs from the first one with its id."""
    return "contradictory", (
        f"response {response_id} was already read with other content; the first in its partition wins. One slot of one "
        "sampling is one response: check the policy agent"
    )


def other_sampling(task_id: str) -> Rejection:
    """Return the rejection of a response whose sampling was not chosen."""
    return "superseded", f"the group of task {task_id} is made of another sampling; each task has one group"


def unknown_response(task_id: str, response_id: str) -> Rejection:
    """Return the rejection of a reward for a response that is not in the group."""
    return "unknown_response", (
        f"response {response_id} is not in the sampling that the group of task {task_id} was made of: it never came, "
        "or another sampling was complete first; in the first case check the scorer's ids"
    )


def already_left(task_id: str) -> Rejection:
    """Return the rejection of an event that came after its group had left."""
    return "late", f"the group of task {task_id} has already left; nothing can be added to it"
