"""What the advantages stage remembers of a task: a group that is open, or a marker of one that is closed.

    OpenGroup ── events ──► OpenGroup ── complete, or expired ──► EmitGroup (effect) + ClosedGroup ── evict ──► nothing

The state is written to a table row at each event (`rows.py`), so it holds references, scalars and digests, and never
texts or tokens. Its parts are named tuples, which are cheap to create and to serialize. `reducer.py` handles events;
`group_event.py` makes the record of a group, from the responses that the state refers to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from schemas import sealing
from schemas.conventions import deadline_ms, task_time_ms
from schemas.events import Coordinates, LeftOut, Task
from streams.settings.model import Advantages
from streams.stages.advantages.digests import (
    digest_of,
    parts_digest,
    request_digest,
)

# --- references to events ---------------------------------------------------------------------------------------------


class TaskInfo(NamedTuple):
    """The task fields that the stage needs."""

    policy: str
    purpose: Any
    scenario: str
    tenant: str | None
    group_size: int
    adapter_version: int | None
    sources: tuple[tuple[str, float], ...]
    """Name and weight of each reward source."""
    deadline_ms: int | None
    """None: not set yet (a `train` task before its first response), or no deadline at all."""
    timestamp_ms: int
    traceparent: str | None
    metadata: tuple[tuple[str, str], ...]
    """The task's metadata, copied to its group: rollouts finds the suite of an eval task there."""
    request_digest: str
    """See digests.py."""
    subject: str | None = None
    """The person that it is of: its group is sealed for the same."""

    def content_digest(self) -> str:
        """Return a digest that is equal for records of the same task, whatever their times and traces."""
        sources = tuple((name, weight + 0.0) for name, weight in self.sources)  # -0.0 is 0.0
        *values, subject = self._replace(sources=sources, deadline_ms=None, timestamp_ms=0, traceparent=None)
        return digest_of(*values, *(() if subject is None else (subject,)))

    def is_late(self, timestamp_ms: int) -> bool:
        """Return whether a record of this time is after the task's deadline."""
        return self.deadline_ms is not None and timestamp_ms > self.deadline_ms


def task_info(task: Task, timestamp_ms: int, rule: Advantages) -> TaskInfo:
    """Return the fields of a task that the stage needs; its record has this timestamp.

    They are written to a table, so a task of a subject has none of its caller's metadata, and its digest is salted.
    """
    metadata, salt = task.metadata, tuple[str, ...]()
    if task.subject is not None:
        metadata, salt = sealing.clear_metadata(metadata), (sealing.salt(task.subject),)
    return TaskInfo(
        policy=task.policy,
        purpose=task.purpose,
        scenario=task.scenario,
        tenant=task.tenant,
        group_size=task.group_size,
        adapter_version=task.adapter_version,
        sources=tuple((source.name, source.weight) for source in task.reward_sources),
        deadline_ms=deadline_ms(task, timestamp_ms, rule.deadline_s),
        timestamp_ms=task_time_ms(task, timestamp_ms),
        traceparent=task.traceparent,
        metadata=tuple(sorted(metadata.items())),
        request_digest=request_digest(task.messages, task.sampling, task.verifier, task.reward_sources, *salt),
        subject=task.subject,
    )


class ResponseRef(NamedTuple):
    """An answered slot: where its response is in the log."""

    response_id: str
    partition: int
    offset: int
    timestamp_ms: int
    failed: bool
    finish_reason: Any
    content_digest: str
    """Tells a repetition from another response under the same id."""


class SourceScore(NamedTuple):
    """The score that one source gave one response."""

    value: float | None
    components: Mapping[str, float]
    abstained: bool
    """Whether the source has no opinion; without this, a missing value is a failed score."""
    reward_id: str
    """Short (digests.short_id)."""
    partition: int
    offset: int
    timestamp_ms: int
    steps: tuple[float, ...] = ()
    """Value of each turn of the response; empty: only the whole is scored."""

    def parts_digest(self) -> str:
        """Return a digest of the parts of the value."""
        return "abstained" if self.abstained else parts_digest(self.components, self.steps)


class ResponseCandidate(NamedTuple):
    """A response with the values that decide whether it may enter a group."""

    sampling_id: str
    slot: int
    adapter_version: int
    group_size: int
    policy: str
    shared_digest: str
    ref: ResponseRef

    def without_record(self) -> ResponseCandidate:
        """Return it without where and when it was recorded."""
        return self._replace(ref=self.ref._replace(partition=0, offset=0, timestamp_ms=0))

    def content_digest(self) -> str:
        """Return a digest of its content."""
        *scalars, ref = self.without_record()
        return digest_of(*scalars, *ref)


class RewardRef(NamedTuple):
    """A reward with the values that decide whether it may enter a group."""

    response_id: str
    source: str
    score: SourceScore

    @property
    def ref(self) -> SourceScore:
        """Where and when it was recorded, as a candidate's `ref`."""
        return self.score

    def without_record(self) -> RewardRef:
        """Return it without where and when it was recorded."""
        return self._replace(score=self.score._replace(partition=0, offset=0, timestamp_ms=0))

    def content_digest(self) -> str:
        """Return a digest of its content."""
        value = None if self.score.value is None else self.score.value + 0.0
        return digest_of(self.response_id, self.source, value, self.score.parts_digest())


# --- what a row may hold ----------------------------------------------------------------------------------------------


class ShareUse(NamedTuple):
    """How much of its share of a row a topic has used (quota.py)."""

    used_bytes: int = 0
    last_offset: int = -1
    """Offset of the newest record that was counted."""
    full_at: int | None = None
    """Offset of the first record that did not fit; None if all did."""


class QuotaUse(NamedTuple):
    """The use of each topic's share."""

    tasks: ShareUse = ShareUse()
    responses: ShareUse = ShareUse()
    rewards: ShareUse = ShareUse()


# --- an open group ----------------------------------------------------------------------------------------------------


class SamplingState(NamedTuple):
    """One sampling: the slots seen so far, and the values that its responses share."""

    adapter_version: int
    group_size: int
    shared_digest: str
    """Digest of the values that its responses share (digests.py); "" while only failed slots were seen."""
    slots: dict[int, ResponseRef]

    @property
    def is_complete(self) -> bool:
        """Whether every slot is answered."""
        return len(self.slots) == self.group_size

    @property
    def last_offset(self) -> int:
        """The offset of its last response in the log."""
        return max(ref.offset for ref in self.slots.values())


class OpenGroup(NamedTuple):
    """A group that waits for something."""

    task: TaskInfo | None = None
    early: tuple[ResponseCandidate | RewardRef, ...] = ()
    """Events read before the task, and rewards before the deadline was known. They enter by the same checks, in the
    order in which they were read."""
    samplings: Mapping[str, SamplingState] = {}
    scores: Mapping[str, Mapping[str, SourceScore]] = {}
    """response_id -> source -> score; a reward may come before its response."""
    first_seen_ms: int = 0
    rejected: frozenset[str] = frozenset()
    """Content digests of rejected events: the same content at other coordinates is only a repetition."""
    trace: str = ""
    """The task's trace, as in its header; "" without one."""
    quota: QuotaUse = QuotaUse()

    def with_quota(self, quota: QuotaUse) -> OpenGroup:
        """Return it with this use of its quota."""
        return OpenGroup._make((*self[:-1], quota))

    def with_samplings(self, samplings: Mapping[str, SamplingState]) -> OpenGroup:
        """Return it with these samplings; a `_replace` at every event would cost several times as much."""
        return OpenGroup._make((*self[:2], samplings, *self[3:]))

    def with_scores(self, scores: Mapping[str, Mapping[str, SourceScore]]) -> OpenGroup:
        """Return it with these scores."""
        return OpenGroup._make((*self[:3], scores, *self[4:]))


def complete_sampling(group: OpenGroup) -> str | None:
    """Return the complete sampling whose last slot comes first in the partition; None if none is complete."""
    samplings = group.samplings
    if len(samplings) == 1:  # the usual case, checked at every event
        ((sampling_id, sampling),) = samplings.items()
        return sampling_id if sampling.is_complete else None
    complete = [sampling_id for sampling_id, sampling in samplings.items() if sampling.is_complete]
    return min(complete, key=lambda sampling_id: samplings[sampling_id].last_offset, default=None)


def fullest_sampling(group: OpenGroup) -> str | None:
    """Return the sampling with the most scored slots, then the most slots, then the first; None without any."""

    def rank(sampling_id: str) -> tuple[int, int, int]:
        refs = group.samplings[sampling_id].slots.values()
        scored = sum(ref.response_id in group.scores for ref in refs)
        return (-scored, -len(refs), min(ref.offset for ref in refs))

    return min(group.samplings, key=rank, default=None)


# --- a closed group ---------------------------------------------------------------------------------------------------


class ScoreDigest(NamedTuple):
    """The part of a score that a closed group keeps."""

    offset: int
    value: float | None
    parts_digest: str


class ClosedGroup(NamedTuple):
    """A group that has left. It is remembered until `evict`, to judge what is read later as if read before.

    Ids are short (digests.short_id).
    """

    closed_ms: int
    sampling_id: str | None
    """The sampling from which the group was made; None if no answer came in time."""
    task: TaskInfo
    """The task, without the fields that only the group's record needed."""
    content_digest: str
    """Digest of the whole task: tells a repetition from a changed copy."""
    samplings: Mapping[str, tuple[int, str]]
    """sampling_id -> adapter version, and shared digest, of every sampling seen."""
    failed: frozenset[str]
    """Ids of the failed responses in its own sampling: a score of one changes nothing."""
    responses: Mapping[str, str]
    """response_id -> content digest, of every response seen, also after the group left."""
    scores: Mapping[str, ScoreDigest]
    """reward_id -> score, of every reward seen."""
    quota: QuotaUse
    rejected: frozenset[str] = frozenset()
    """As in OpenGroup."""

    def with_quota(self, quota: QuotaUse) -> ClosedGroup:
        """Return it with this use of its quota."""
        return self._replace(quota=quota)


GroupState = OpenGroup | ClosedGroup | None


# --- effects ----------------------------------------------------------------------------------------------------------


class GroupMember(NamedTuple):
    """A scored response in the group that leaves, still by reference."""

    slot: int
    response_id: str
    at: tuple[int, int]
    """Partition and offset in the responses topic."""
    finish_reason: Any
    reward: float
    components: Mapping[str, float]
    steps: tuple[float, ...] | None = ()
    """The sources' scores of each turn, weighted and summed; None if their numbers of turns differ."""
    advantage: float = 0.0
    """Known when all rewards are."""


@dataclass(frozen=True, slots=True)
class EmitGroup:
    """Effect: this group leaves. Its record is made by `group_event.py`, from the responses it refers to."""

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
