"""The types of the audit: facts about the loop's records, how far it has read, and findings.

    Record ──► a fact: ids, coordinates, numbers and digests, never texts        (streams/tools/audit/records.py)
    commits, begins, ends ──► Reach: how far each stage has come, and how much of the log was read
    facts, Reach ──► Finding: a record by its coordinates, and one sentence

Facts about other subjects are in the files that recount them.

A record has two digests: `mark` over its bytes finds copies, `content` over its meaning finds repetitions, which a
stage may write at another time. Digests have 64 bits: two of a million records collide in about one of 10^7 logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from schemas.events import Coordinates
from streams.kafka import group_names
from streams.kafka.record import TopicPartition

Components = tuple[tuple[str, float], ...]


class TaskFact(NamedTuple):
    """A task as it is in the log."""

    at: Coordinates
    ms: int
    mark: int
    content: int
    policy: str
    purpose: str
    scenario: str
    tenant: str | None
    agent: str | None
    group_size: int
    pinned: int | None
    deadline_at: int | None
    sources: tuple[tuple[str, float], ...]
    traceparent: str | None
    metadata: Mapping[str, str]

    @property
    def answered_by(self) -> str:
        """How the names of the groups that answer it begin: its policy follows, or @ and a fleet."""
        return group_names.begin("policy") if self.agent is None else group_names.begin("agents", self.agent)


class ResponseFact(NamedTuple):
    """A response: its author, and digests of what it shares with its siblings and of its own tokens."""

    at: Coordinates
    ms: int
    mark: int
    content: int
    response_id: str
    sampling_id: str
    slot: int
    group_size: int
    policy: str
    version: int
    began_ms: int
    """When its sampling began, by the clock of its agent."""
    failed: bool
    finish_reason: str
    shared: int
    """Base model, tokenizer, temperature, top_p, batches, prompt unless an agent decides it; 0 for a failed slot."""
    head: int
    """Base model, tokenizer, the whole of `sampling`, and how many batches its version's line had taken."""
    tokens: int
    """Those of the prompt and of every chain, with logprobs and masks."""
    counted: tuple[int, int]
    """Tokens behind the prompt in all chains, and how many of them bear loss."""


class RewardFact(NamedTuple):
    """One source's verdict on one response."""

    at: Coordinates
    ms: int
    mark: int
    response_id: str
    source: str
    policy: str
    value: float | None
    components: Components
    abstained: bool

    @property
    def is_failure(self) -> bool:
        """Whether the source gave up."""
        return self.value is None and not self.abstained

    @property
    def content(self) -> tuple[float | None, Components, bool]:
        """What counts: a repeated score has another time and the same content."""
        return self.value, self.components, self.abstained


class ControlFact(NamedTuple):
    """An expire or evict."""

    at: Coordinates
    ms: int
    kind: str


class MemberFact(NamedTuple):
    """A response as its group repeats it."""

    slot: int
    response_id: str
    partition: int
    offset: int
    finish_reason: str
    reward: float
    advantage: float
    components: Components
    tokens: int
    elsewhere: tuple[int, int] | None
    """What the group says of tokens that it has not, as ResponseFact.counted; None: it has them."""
    is_outside: bool = False
    """Whether an outside model wrote it; its tokens are not in the log."""


class GroupFact(NamedTuple):
    """A group."""

    at: Coordinates
    mark: int
    group_id: str
    task_id: str
    created_at: int
    about: tuple[str, str, str, str | None, int, str | None]
    """Policy, purpose, scenario, tenant, group size, trace, all of its task."""
    metadata: Mapping[str, str]
    sampling_id: str | None
    version: int
    batches: int
    """How many batches the line of its policy had taken by that version, as it says."""
    complete: bool
    dropped_reason: str | None
    formula: str
    credit: str
    formula_version: int
    eps: float
    ddof: int
    mean: float
    std: float
    head: int
    members: tuple[MemberFact, ...]
    left_out: tuple[tuple[int, str | None, str], ...]
    loss_tokens: int

    @property
    def policy(self) -> str:
        """Whose it is."""
        return self.about[0]

    @property
    def is_train(self) -> bool:
        """Whether it is meant for a batch."""
        return self.about[1] == "train"

    @property
    def is_outside(self) -> bool:
        """Whether an outside model answered."""
        return any(member.is_outside for member in self.members)

    @property
    def is_flat(self) -> bool:
        """Whether it teaches nothing."""
        return all(member.advantage == 0 for member in self.members)


class BatchFact(NamedTuple):
    """A batch."""

    at: Coordinates
    mark: int
    batch_id: str
    sequence: int
    created_at: int
    max_policy_lag: int
    counted: tuple[int, int, int]
    """Groups, responses and loss tokens, as it records them."""
    partition: int
    offsets: tuple[int, ...]
    lags: Mapping[int, int]
    dropped: tuple[tuple[str, int, str], ...]
    """Group id, offset, reason."""
    unnamed: int


class AdapterFact(NamedTuple):
    """An adapter event."""

    at: Coordinates
    ms: int
    mark: int
    event_id: str
    version: int
    kind: str
    expected: int | None
    share: float | None
    parent: int | None
    batches: tuple[int | None, int | None]
    files: int
    tuned_on: tuple[int, tuple[int, ...]] | None = None
    """Of a tuned version: the partition and the offsets of its groups, none for a file; None: it was not tuned."""
    is_outside: bool = False
    """Whether the version is a model that another server answers for."""
    origin: str | None = None
    """The training call that saved the version."""

    @property
    def takes_batch(self) -> bool:
        """Whether a batch made it, or it took the place of one."""
        return self.tuned_on is None and not self.is_outside and self.origin is None


class LetterFact(NamedTuple):
    """A dead letter: the record it is about, and a digest of its copy of that record."""

    at: Coordinates
    mark: int
    stage: str
    reason: str
    source: Coordinates
    source_mark: int
    has_own_id: bool


class Unusable(NamedTuple):
    """A record that no stage can use as it is."""

    at: Coordinates
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far each stage has come, and what was read. Commits must be older than ends, and ends of causes the newest.

    Then a record below a commit has its effects below the ends, and every effect that was read has its cause.
    """

    committed: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    """Consumer group without prefix, topic, partition: the next offset it reads."""
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)
    """First offset that was read; 0 where not named."""
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offset after the last that was read; where not named, after the last record."""
    unread: Mapping[TopicPartition, Collection[int]] = field(default_factory=dict)
    """Offsets of markers and aborted records, from transactions of other programs."""
    retained: frozenset[TopicPartition] = frozenset()
    """Partitions whose first records retention has deleted."""
    since_ms: int | None = None
    """Only tasks recorded from here on are recounted, ms since the epoch."""
    now_ms: int = 0
    """When the commits were read: a task past its deadline by then may have been skipped."""
    settled: bool = False
    """Nothing is in flight: all work that could be done is done."""

    def passed(self, group: str, at: Coordinates) -> bool:
        """Return whether `group` is done with the record at `at`."""
        return self.settled or at.offset < self.committed.get((group, at.topic, at.partition), 0)

    def cut(self, topic: str, partition: int) -> bool:
        """Return whether there are, or were, records before the first that was read."""
        return self.begins.get((topic, partition), 0) > 0


# --- what is found ----------------------------------------------------------------------------------------------------

Category = Literal[
    "lost", "doubled", "phantom", "misplaced", "contradictory", "late", "superseded", "out_of_order", "repeated"
]


class AuditFinding(NamedTuple):
    """One record that is not what it should be."""

    category: Category
    at: Coordinates
    what: str
    accounted: bool = False
    """The log is right: the record has its dead letter, or a repetition changed nothing."""


@dataclass(slots=True)
class RecountOutcome:
    """What a recount of one thing, or of all of its kind, found."""

    findings: list[AuditFinding] = field(default_factory=list)
    in_flight: Counter[str] = field(default_factory=Counter)
    """What is still to come."""
    counts: Counter[str] = field(default_factory=Counter)
    """What the equations add up."""

    def find(self, category: Category, at: Coordinates, what: str, *, accounted: bool = False) -> None:
        """Name the record at `at` as one that is not what it should be."""
        self.findings.append(AuditFinding(category, at, what, accounted))

    def add(self, part: RecountOutcome) -> None:
        """Add what a part of the recount found."""
        self.findings += part.findings
        self.counts.update(part.counts)
        self.in_flight.update(part.in_flight)
