"""Why an event may not enter its group, in words.

    Answer | Verdict, what is known of its siblings ──► refusal_of_… ──► None: it may, or (reason, sentence)

The same questions are asked while a group is open and after it has left (`streams/stages/advantages/reducer.py`), so
that a record is judged alike however late it is read. Digests are for that, too: they say in a few bytes what was
read, when a closed group keeps no more of it.

Not covered: events without their task. They wait for it, and nothing is asked before.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from schemas.events import Coordinates, Response, Reward, derive_id
from streams.stages.advantages.state import (
    ClosedGroup,
    DeadLetterEffect,
    Effect,
    OpenGroup,
    ResponseCandidate,
    ResponseRef,
    RewardRef,
    SamplingState,
    SourceScore,
    TaskInfo,
    is_late,
)

Refusal = tuple[str, str]
"""The short word dead letters are grouped by, and the sentence."""
Known = TypeVar("Known", OpenGroup, ClosedGroup)


def refuse(state: Known, said: str, reject: DeadLetterEffect, effects: list[Effect]) -> Known:
    """Add `reject` to the effects, unless the same was refused before, and return the state that remembers it.

    `said` is the digest of what is refused. A repetition of a refusal is a no-op, as that of anything else: whether it
    was read before its task or after it must not show.
    """
    if said in state.refused:
        return state
    effects.append(reject)
    return replace(state, refused=state.refused | {said})


def by_reference(event: Response | Reward, at: Coordinates, timestamp_ms: int) -> ResponseCandidate | RewardRef:
    """Return what the state keeps of an event."""
    if isinstance(event, Reward):
        return verdict_of(event, at, timestamp_ms)
    return answer_of(event, at, timestamp_ms)


def answer_of(event: Response, at: Coordinates, timestamp_ms: int) -> ResponseCandidate:
    """Return what the state keeps of a response."""
    failed, shared = event.error is not None, shared_digest(event)
    return ResponseCandidate(
        sampling_id=event.sampling_id,
        number=event.slot,
        adapter_version=event.adapter_version,
        group_size=event.group_size,
        policy=event.policy,
        shared=shared,
        slot=ResponseRef(
            event.response_id,
            at.partition,
            at.offset,
            timestamp_ms,
            failed,
            event.finish_reason,
            answer_digest(event, shared),
        ),
    )


def verdict_of(event: Reward, at: Coordinates, timestamp_ms: int) -> RewardRef:
    """Return what the state keeps of a reward."""
    score = SourceScore(event.value, event.components, at.partition, at.offset, timestamp_ms)
    return RewardRef(event.response_id, event.source, score)


# --- the doors --------------------------------------------------------------------------------------------------------


def refusal_of_answer(task: TaskInfo, attempt: SamplingState, answer: ResponseCandidate) -> Refusal | None:
    """Return why this answer may not enter its sampling, or None."""
    if (wrong := _disagreement(task, answer)) is not None:
        return "contradictory", f"the task has {wrong}"
    if is_late(task, answer.slot.timestamp_ms):
        return "late", _late(task, answer.slot.timestamp_ms)
    if answer.adapter_version != attempt.adapter_version:
        return "contradictory", (
            f"sampling {answer.sampling_id} began with adapter version {attempt.adapter_version}, but slot "
            f"{answer.number} has {answer.adapter_version}. One sampling is one version's attempt at all "
            "slots; check the policy agent"
        )
    if answer.shared and attempt.shared and answer.shared != attempt.shared:
        return "contradictory", (
            f"slot {answer.number} of sampling {answer.sampling_id} has another base model, tokenizer, "
            "temperature, top_p or prompt tokens than the slots before it; one sampling shares them all. "
            "Check the policy agent"
        )
    return None


def refusal_of_verdict(task: TaskInfo, known: SourceScore | None, verdict: RewardRef, topic: str) -> Refusal | None:
    """Return why this reward may not enter, or None; `known` is another of its source, which lies in `topic`."""
    score, source = verdict.score, verdict.source
    if known is not None:
        return "contradictory", (
            f"source {source!r} gives response {verdict.response_id} the value {score.value}, but "
            f"{topic}[{known.partition}]@{known.offset} already said {known.value}; the first "
            "wins. A new opinion needs a new source name"
        )
    asked = [name for name, _ in task.sources]
    if source not in asked:
        return "unasked", f"the task asks {', '.join(asked) or 'nobody'}, not {source!r}"
    if is_late(task, score.timestamp_ms):
        return "late", _late(task, score.timestamp_ms)
    return None


def _disagreement(task: TaskInfo, answer: ResponseCandidate) -> str | None:
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


def _late(task: TaskInfo, timestamp_ms: int) -> str:
    over = timestamp_ms - (task.deadline_ms or 0)
    return f"recorded {over} ms after the deadline of its task; raise deadline_at if such answers should count"


# --- sentences said in two places -------------------------------------------------------------------------------------


def changed_task(task_id: str) -> Refusal:
    """Return the refusal of a task that differs from the one of its id."""
    return "contradictory", (
        f"task {task_id} was already read with other content; the first in its partition wins. "
        "Give a changed task a new task_id"
    )


def changed_answer(response_id: str) -> Refusal:
    """Return the refusal of a response that differs from the one of its id."""
    return "contradictory", (
        f"response {response_id} was already read with other content; the first in its partition wins. One slot of one "
        "sampling is one answer: check the policy agent"
    )


def by_another(task_id: str) -> Refusal:
    """Return the refusal of a response whose sampling was not chosen."""
    return "superseded", f"task {task_id} was answered by another sampling, whose last slot stands before this one's"


def about_another(task_id: str, response_id: str) -> Refusal:
    """Return the refusal of a reward on a response that is not in the group."""
    return "unknown_response", (
        f"response {response_id} is not in the sampling that the group of task {task_id} was made of: it never came, "
        "or another sampling was whole before its own; in the first case check the scorer's ids"
    )


def already_left(task_id: str) -> Refusal:
    """Return the refusal of what would have belonged to a group that left without it."""
    return "late", f"the group of task {task_id} has already left; nothing can be added to it"


# --- digests: the same for what is the same, in any process and any year ----------------------------------------------


def answer_digest(response: Response, shared: str) -> str:
    """Return a digest of what a response says: another time, latency or trace makes no other answer of it.

    `shared` is its `shared_digest`.
    """
    said = hashlib.blake2b(digest_size=4)
    said.update(array("q", response.completion_token_ids).tobytes())
    said.update(array("d", response.logprobs).tobytes())
    said.update(bytes(response.loss_mask))
    texts = (response.text, response.engine, response.finish_reason, shared, _text_of(response.sampling))
    said.update("\x1f".join(texts).encode())
    return said.hexdigest()


class _Text:
    """`repr`, and again for the same object: the responses of a sampling share how they were drawn."""

    def __init__(self) -> None:
        self._last: tuple[object, str] = (None, "")

    def __call__(self, value: object) -> str:
        known, text = self._last
        if value is not known:
            self._last = value, text = value, repr(value)
        return text


_text_of = _Text()


def content_digest(task: TaskInfo) -> str:
    """Return a digest of what makes two records the same task: not when they were written, nor under which trace."""
    sources = tuple((name, weight + 0.0) for name, weight in task.sources)  # -0.0 is 0.0
    timeless = task._replace(sources=sources, deadline_ms=None, timestamp_ms=0, traceparent=None)
    return derive_id(*map(repr, timeless))[:13]


def components_digest(components: Mapping[str, float]) -> str:
    """Return a digest of what a reward is made of; "" for nothing."""
    if not components:
        return ""
    return _components_digest(*sorted((name, value + 0.0) for name, value in components.items()))


@lru_cache(maxsize=1024)  # most scorers know a few verdicts
def _components_digest(*components: tuple[str, float]) -> str:
    return derive_id(*(f"{name!r} {value!r}" for name, value in components))[:8]


def shared_digest(response: Response) -> str:
    """Return a digest of what the responses of one sampling must share, since their group says it once; "" if failed.

    A seed may differ from slot to slot, and a failed slot may not have got as far as its prompt.
    """
    if response.error is not None:
        return ""
    # + 0.0 makes of -0.0 what equals it, since the cache takes them for the same
    drawn = (response.sampling.temperature + 0.0, response.sampling.top_p)
    return _digest(response.base_digest, response.tokenizer_digest, drawn, response.prompt_token_ids)


@lru_cache(maxsize=256)  # the slots of a sampling come one after the other, each with the whole prompt
def _digest(*shared: object) -> str:
    return derive_id(*shared)[:13]


def said_digest(early: ResponseCandidate | RewardRef) -> str:
    """Return a digest of what an event says, without where and when it was written."""
    if isinstance(early, ResponseCandidate):
        slot = early.slot._replace(partition=0, offset=0, timestamp_ms=0)
        return derive_id(*map(repr, (*early[:-1], *slot)))[:13]
    value = None if early.score.value is None else early.score.value + 0.0
    return derive_id(early.response_id, early.source, value, components_digest(early.score.components))[:13]
