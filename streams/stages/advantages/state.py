"""What a group is while it waits, and what it becomes when it leaves.

    Open ── events ──► Open ── whole, or expired ──► Close (effect) + Closed (marker) ── evict ──► nothing
    references and scalars, never texts                │
                                                       └─ assemble, given the responses referred to ──► AdvantagedGroup

The state is written to a table row at each event (`streams/stages/advantages/rows.py`), so it holds where a response
lies and not what it says. Its parts are tuples, which cost little to make and to write down. What to do when an event
comes is `streams/stages/advantages/reducer.py`.

Not covered: whether the responses referred to are still in the log. Who assembles a group has fetched them, or failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from schemas.conventions import deadline_ms
from schemas.events import AdvantagedGroup, Coordinates, GroupResponse, LeftOut, Response, Sampling, Task, derive_id
from streams import advantage_formulas
from streams.settings.model import Advantages

# --- state: references and scalars, never texts -----------------------------------------------------------------------


class TaskInfo(NamedTuple):
    """What the stage needs of a task."""

    policy: str
    purpose: Any
    scenario: str
    tenant: str | None
    group_size: int
    adapter_version: int | None
    sources: tuple[tuple[str, float], ...]
    deadline_ms: int | None
    timestamp_ms: int
    traceparent: str | None
    metadata: tuple[tuple[str, str], ...] = ()
    """The task's own, carried on to its group: rollouts finds the suite of an eval task there."""
    asked: str = ""
    """Digest of what was asked, of whom, how; "" in a row of the first release."""


def task_info(task: Task, timestamp_ms: int, rule: Advantages) -> TaskInfo:
    """Return what the stage needs of a task whose record has this timestamp."""
    return TaskInfo(
        policy=task.policy,
        purpose=task.purpose,
        scenario=task.scenario,
        tenant=task.tenant,
        group_size=task.group_size,
        adapter_version=task.adapter_version,
        sources=tuple((source.name, source.weight) for source in task.reward_sources),
        deadline_ms=deadline_ms(task, timestamp_ms, rule.deadline_s),
        timestamp_ms=timestamp_ms,
        traceparent=task.traceparent,
        metadata=tuple(sorted(task.metadata.items())),
        asked=_short_digest(task.messages, task.sampling, task.verifier, task.reward_sources),
    )


class ResponseRef(NamedTuple):
    """An answered slot: where the response lies."""

    response_id: str
    partition: int
    offset: int
    timestamp_ms: int
    failed: bool
    finish_reason: Any
    said: str = ""
    """Digest of what it says, to tell a repetition from another answer; "" in a row of the first release."""


class SamplingState(NamedTuple):
    """One sampling: the slots seen so far, and what its responses agree on."""

    adapter_version: int
    group_size: int
    shared: str
    """Digest of what they must share besides (`refusals.shared_digest`); "" while only failed slots were seen."""
    slots: Mapping[int, ResponseRef]

    @property
    def last_at(self) -> int:
        """The offset of its last response in the log."""
        return max(slot.offset for slot in self.slots.values())


class SourceScore(NamedTuple):
    """One source's verdict."""

    value: float | None
    components: Mapping[str, float]
    partition: int
    offset: int
    timestamp_ms: int


class ResponseCandidate(NamedTuple):
    """A response, with what decides whether it may enter."""

    sampling_id: str
    number: int
    adapter_version: int
    group_size: int
    policy: str
    shared: str
    slot: ResponseRef


class RewardRef(NamedTuple):
    """A reward, with what decides whether it may enter."""

    response_id: str
    source: str
    score: SourceScore


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that waits for something."""

    task: TaskInfo | None = None
    early: tuple[ResponseCandidate | RewardRef, ...] = ()
    """What was read before its task. It enters with the task, through the same door, in the order it was read."""
    attempts: Mapping[str, SamplingState] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, SourceScore]] = field(default_factory=dict)
    """response_id -> source -> score; a reward may come before its response."""
    first_seen_ms: int = 0
    refused: frozenset[str] = frozenset()
    """Digests of what was refused: the same again, under other coordinates, is a repetition as any other."""
    trace: str = ""  # of its task, as a header says it; "" without one


class ScoreDigest(NamedTuple):
    """A score of a closed group, in short."""

    offset: int
    value: float | None
    components: str
    """Their digest."""


class ClosedGroupDigest(NamedTuple):
    """What a closed group keeps, beside the ids, to judge what is read later as it would have been judged before."""

    task: TaskInfo
    """Without what only the group's record needed."""
    content: str
    """Digest of the task's content, to tell a repetition from a changed copy."""
    drawn: Mapping[str, tuple[int, str]]
    """sampling_id -> adapter version, and the digest of what its responses share."""
    failed: frozenset[str]
    """Short ids of the failed slots of the sampling it was made of: a score of one changes nothing."""
    said: Mapping[str, ScoreDigest]
    """Short reward_id -> what it said."""
    answers: Mapping[str, str]
    """Short response_id -> digest of what it said."""


@dataclass(frozen=True, slots=True)
class ClosedGroup:
    """A group that has left. It stays known until `evict`, so that a repetition is told from a latecomer."""

    closed_ms: int
    seen: frozenset[str]
    """Short ids of every response and reward that the group knows, those that were read after it left included."""
    sampling_id: str | None
    """The sampling it was made of; None if nobody answered in time."""
    memory: ClosedGroupDigest | None = None
    """None in a row of the first release, which had none: what is read later is then judged by ids alone."""
    refused: frozenset[str] = frozenset()
    """As in Open."""


GroupState = OpenGroup | ClosedGroup | None


class GroupMember(NamedTuple):
    """A response in the group that leaves, still by reference."""

    slot: int
    response_id: str
    at: tuple[int, int]
    """Partition and offset in the responses topic."""
    finish_reason: Any
    reward: float
    advantage: float
    components: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EmitGroup:
    """Effect: this group leaves. `assemble` makes the record of it, given the responses it refers to."""

    task_id: str
    task: TaskInfo
    rule: Advantages
    sampling_id: str | None
    adapter_version: int
    complete: bool
    dropped_reason: str | None
    created_at: int
    reward_mean: float
    reward_std: float
    members: tuple[GroupMember, ...]
    left_out: tuple[LeftOut, ...]
    trace: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetterEffect:
    """Effect: the record at these coordinates goes to dead letters."""

    at: Coordinates
    reason: str
    error: str


Effect = EmitGroup | DeadLetterEffect


def without_responses(close: EmitGroup, reason: str) -> EmitGroup:
    """Return `close` as the record of a group that is not for the trainer, with `reason` for each member's slot."""
    members = (LeftOut(slot=m.slot, response_id=m.response_id, reason=reason) for m in close.members)
    return replace(
        close, dropped_reason=reason, members=(), left_out=tuple(sorted((*close.left_out, *members), key=_by_slot))
    )


def _by_slot(left: LeftOut) -> tuple[int, str]:
    return left.slot, left.response_id or ""


# --- who is in --------------------------------------------------------------------------------------------------------


def winner(state: OpenGroup) -> str | None:
    """Return the sampling whose last slot stands first in the partition, among those that are whole."""
    attempts = state.attempts
    if len(attempts) == 1:  # the usual case, asked at every event
        ((sampling_id, attempt),) = attempts.items()
        return sampling_id if len(attempt.slots) == attempt.group_size else None
    whole = [sampling_id for sampling_id, attempt in attempts.items() if len(attempt.slots) == attempt.group_size]
    if len(whole) < 2:
        return whole[0] if whole else None
    return min(whole, key=lambda sampling_id: attempts[sampling_id].last_at)


def fullest(state: OpenGroup) -> str | None:
    """Return the sampling with the most scored slots, then the most slots, then the first; None without any."""

    def rank(sampling_id: str) -> tuple[int, int, int]:
        slots = state.attempts[sampling_id].slots.values()
        scored = sum(slot.response_id in state.scores for slot in slots)
        return (-scored, -len(slots), min(slot.offset for slot in slots))

    return min(state.attempts, key=rank, default=None)


def weigh(state: OpenGroup, task: TaskInfo, chosen: str | None) -> tuple[list[GroupMember], list[LeftOut], list[int]]:
    """Return the scored slots in slot order, those left out, and the timestamps of everything that counted.

    Nothing else that happens to be there counts: which other samplings and rewards were read before the group left
    depends on how the topics were read side by side, and the same log must give the same record.
    """
    members: list[GroupMember] = []
    left_out: list[LeftOut] = []
    stamps = [task.timestamp_ms]
    slots = state.attempts[chosen].slots if chosen else {}
    for number in range(task.group_size):
        slot = slots.get(number)
        if slot is None:
            left_out.append(LeftOut(slot=number, reason="unanswered"))
            continue
        stamps.append(slot.timestamp_ms)
        if slot.failed:
            left_out.append(LeftOut(slot=number, response_id=slot.response_id, reason="response_failed"))
            continue
        scores = state.scores.get(slot.response_id, {})
        stamps += [score.timestamp_ms for score in scores.values()]
        if (reason := _why_unscored(task, scores)) is not None:
            left_out.append(LeftOut(slot=number, response_id=slot.response_id, reason=reason))
            continue
        members.append(
            GroupMember(
                slot=number,
                response_id=slot.response_id,
                at=(slot.partition, slot.offset),
                finish_reason=slot.finish_reason,
                reward=sum([weight * (scores[name].value or 0.0) for name, weight in task.sources]),
                advantage=0.0,
                components=_components(task, scores),
            )
        )
    return members, left_out, stamps


def _why_unscored(task: TaskInfo, scores: Mapping[str, SourceScore]) -> str | None:
    values = [scores[name].value for name, _ in task.sources if name in scores]
    if len(values) < len(task.sources):
        return "unscored"
    return "score_failed" if None in values else None


def _components(task: TaskInfo, scores: Mapping[str, SourceScore]) -> dict[str, float]:
    components: dict[str, float] = {}
    for name, _ in task.sources:
        score = scores[name]
        components[name] = score.value or 0.0
        for part, value in score.components.items():
            components[f"{name}.{part}"] = value
    return components


def is_late(task: TaskInfo, timestamp_ms: int) -> bool:
    """Return whether a record of this time stands behind the task's deadline."""
    return task.deadline_ms is not None and timestamp_ms > task.deadline_ms


def _short_digest(*asked: object) -> str:
    return derive_id(*map(repr, asked))[:8]


def short_id(event_id: str) -> str:
    """Return the first 48 bits of an id: enough to tell the few dozen events of one task apart."""
    return event_id[:13]


# --- from references to the record ------------------------------------------------------------------------------------


def assemble(close: EmitGroup, responses: Mapping[tuple[int, int], Response]) -> AdvantagedGroup:
    """Return the group's record; `responses` holds what `close.members` refer to, by partition and offset."""
    bodies = [responses[member.at] for member in close.members]
    first = bodies[0] if bodies else None
    return AdvantagedGroup(
        group_id=derive_id(close.task_id, "group", advantage_formulas.FORMULA_VERSION),
        task_id=close.task_id,
        created_at=close.created_at,
        traceparent=close.task.traceparent,
        metadata=_metadata(close.task),
        policy=close.task.policy,
        purpose=close.task.purpose,
        scenario=close.task.scenario,
        tenant=close.task.tenant,
        sampling_id=close.sampling_id,
        group_size=close.task.group_size,
        adapter_version=close.adapter_version,
        base_digest=first.base_digest if first else "",
        tokenizer_digest=first.tokenizer_digest if first else "",
        complete=close.complete,
        dropped_reason=close.dropped_reason,
        formula=close.rule.formula,
        formula_version=advantage_formulas.FORMULA_VERSION,
        formula_eps=close.rule.eps,
        formula_ddof=close.rule.ddof,
        reward_mean=close.reward_mean,
        reward_std=close.reward_std,
        sampling=first.sampling if first else Sampling(),
        prompt_token_ids=first.prompt_token_ids if first else (),
        responses=tuple(
            GroupResponse(
                slot=member.slot,
                response_id=member.response_id,
                partition=member.at[0],
                offset=member.at[1],
                finish_reason=member.finish_reason,
                latency_ms=body.latency_ms,
                reward=member.reward,
                advantage=member.advantage,
                components=dict(member.components),
                completion_token_ids=body.completion_token_ids,
                logprobs=body.logprobs,
                loss_mask=body.loss_mask,
            )
            for member, body in zip(close.members, bodies, strict=True)
        ),
        left_out=close.left_out,
    )


def _metadata(task: TaskInfo) -> dict[str, str]:
    """Return the task's metadata, with the version it was pinned to: nothing else tells it if nobody answered."""
    pinned = {} if task.adapter_version is None else {"pinned_version": str(task.adapter_version)}
    return dict(task.metadata) | pinned
