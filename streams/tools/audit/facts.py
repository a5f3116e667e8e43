"""The vocabulary of the audit: what it keeps of a record, how far it reads, and what it finds.

    Record ──► a fact: ids, coordinates, numbers and digests, never texts        (streams/tools/audit/records.py)
    commits, begins, ends ──► Reach: how far each stage has come, and how much of the log was read
    facts, Reach ──► Finding: a record by its coordinates, and one sentence

A record has two digests: `mark` over its bytes finds copies, `content` over its meaning finds repetitions, which a
stage may write at another time. Digests have 64 bits: two of a million records collide in about one of 10^7 logs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from schemas.conventions import POLICY_LAG
from schemas.events import Coordinates, SourceRange
from streams.kafka import group_names
from streams.kafka.record import TopicPartition
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.audit.thread_facts import MemoryFact, ThreadFact, ThreadTurn

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
    """A response: who gave it, and digests of what it shares with its siblings and of its own tokens."""

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
    calls: int | None
    """How many model calls it says it is made of."""
    turns: tuple[tuple[int, int, str | None], ...]
    """Of each of them: its number, its tokens, and what had been shown before."""


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
    """Whether an outside model wrote it, whose tokens are not in the log."""


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


class TurnFact(NamedTuple):
    """One model call of an agent."""

    at: Coordinates
    event_id: str
    content: int
    policy: str
    number: int
    parent_id: str | None
    prompt_tokens: int
    sent: int
    """Tokens of its prompt behind its parent's."""
    said: int
    """Tokens of its completion."""
    shown: str | None
    """Digest of what its environment had shown before."""
    of_thread: ThreadTurn | None
    """Of the run that it answers; None: of no thread's."""


class RunFact(NamedTuple):
    """That a trajectory began or ended."""

    at: Coordinates
    event_id: str
    content: int
    policy: str
    kind: str
    turns: int | None
    of_task: bool
    answer: str | None
    """The turn that its end says is its answer."""


class JobFact(NamedTuple):
    """An event of a job."""

    at: Coordinates
    event_id: str
    content: int
    kind: str
    sequence: int
    iteration: int | None
    version: int | None
    created_at: int
    tenant: str
    cost_usd: float | None
    """Of the job until then."""
    job_id: str
    trigger: str | None
    """created: the id of the crossing that it names; None: a person ordered it."""


class MonthFact(NamedTuple):
    """A month of a tenant that was closed."""

    at: Coordinates
    tenant: str
    month: str
    cost_usd: float
    counted: tuple[int, ...]
    """By partition: records below this offset are in it."""


class TriggerFact(NamedTuple):
    """That a rule's time had come, or that it had a reason."""

    at: Coordinates
    event_id: str
    kind: str
    sequence: int
    created_at: int
    due_at: int
    """-1: it is of no time."""
    job_id: str | None
    has_own_id: bool
    tasks: int | None = None
    """How many tasks a run of self-play asks; None: it is another event, or does not say."""


class CallFact(NamedTuple):
    """A training call."""

    at: Coordinates
    call_id: str
    place: int | None
    """In the order of its model's; None: it has none."""
    is_answered: bool
    """Whether it gets a result."""


class CallResultFact(NamedTuple):
    """What became of a training call."""

    at: Coordinates
    call_id: str
    source_offset: int
    """Of its call."""
    version: int | None
    content: int
    """A digest over what two results of one call must agree in."""


class AgreementFact(NamedTuple):
    """What a judge's promotion says that it rests on."""

    runs: int
    kappa: float
    low: float
    window: int
    counted: tuple[int, ...]
    """By partition: verdicts before this offset were counted."""

    def end_of(self, at: Coordinates) -> int:
        """Return the offset up to which the partition of a record was counted."""
        return self.counted[at.partition] if at.partition < len(self.counted) else 0


class ToolFact(NamedTuple):
    """An event of an entry of the registry of tools."""

    at: Coordinates
    kind: str
    sequence: int
    has_own_id: bool
    content: int
    digest: str
    """Empty of one that was removed."""
    endpoint: str
    """The kind of its endpoint; empty of an event that has none."""
    offered: int
    """How many tools it offers."""


class PromptFact(NamedTuple):
    """An event of a prompt."""

    at: Coordinates
    kind: str
    sequence: int
    has_own_id: bool
    content: int
    digest: str
    """Of the text of one that was created; empty of others."""
    versions: tuple[int, ...]
    """That it names."""
    alias: str = ""
    """That it moves."""


class CurationFact(NamedTuple):
    """A verdict on a run."""

    at: Coordinates
    event_id: str
    has_own_id: bool
    task_id: str
    answer_id: str
    created_at: int
    policy: str
    source: Coordinates
    verdict: str
    labeller: str
    measure: tuple[str, str]
    """Digests of rubric and transcript."""
    supersedes: str | None
    gates: tuple[tuple[str, float | None, float, bool], ...]
    """Name, value, bound, and whether it was passed."""
    judge: tuple[str, str, str] | None
    """Endpoint, model and prompt digest."""
    judge_policy: str | None
    judge_verdict: str | None
    """The judge's own."""
    agreement: AgreementFact | None


class DatasetFact(NamedTuple):
    """That a data set was built, or sent elsewhere."""

    at: Coordinates
    event_id: str
    kind: str
    policy: str
    digest: str
    rows: int
    """In both splits."""
    judged: int
    """Rows, and runs that were left out."""
    by_scenario: int
    by_labeller: dict[str, int]
    ranges: tuple[SourceRange, ...]
    job: str | None
    """Elsewhere."""
    has_own_id: bool
    has_own_digest: bool


class QueueFact(NamedTuple):
    """That a queue of samples was opened, restored or saved."""

    at: Coordinates
    event_id: str
    has_own_id: bool
    kind: str
    epoch: int
    samples: int
    digest: str | None
    counts: Mapping[str, int]
    checkpoint: str | None
    ends: tuple[int, ...]


class SampleFact(NamedTuple):
    """A record of a sample, without the bytes of its fields. The digest of its queue is over its tags, too."""

    at: Coordinates
    content: int
    has_own_id: bool
    kind: str
    epoch: int
    sample_id: str
    identity: tuple[str, str, int]
    """Sample, writer and sequence."""
    part: int
    parts: int
    partition: str
    key: str | None
    tags: str | None
    names: tuple[str, ...]
    """Of its fields."""


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


Fact = (
    TaskFact
    | ResponseFact
    | RewardFact
    | ControlFact
    | GroupFact
    | BatchFact
    | AdapterFact
    | TurnFact
    | RunFact
    | JobFact
    | MonthFact
    | TriggerFact
    | CallFact
    | CallResultFact
    | ToolFact
    | PromptFact
    | MemoryFact
    | ThreadFact
    | CurationFact
    | DatasetFact
    | QueueFact
    | SampleFact
    | LetterFact
    | Unusable
)


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
    """Offsets of markers and of aborted records: transactions of other programs, whose records are for nobody."""
    retained: frozenset[TopicPartition] = frozenset()
    """Partitions whose first records retention has deleted."""
    since_ms: int | None = None
    """Only tasks recorded from here on are recounted, ms since the epoch."""
    now_ms: int = 0
    """When the commits were read: a task whose deadline is over by then may have been skipped."""
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


class AuditView:
    """What the recounts look up beside their own facts."""

    def __init__(
        self,
        settings: Settings,
        reach: Reach,
        letters: Mapping[Coordinates, list[LetterFact]],
        exists: Callable[[Coordinates], bool],
        answered: Collection[str] = (),
    ) -> None:
        """`answered`: the policies that have answered anything."""
        self.settings, self.reach, self.exists = settings, reach, exists
        self._answered = answered
        self.names = {label: topic.name for label, topic in topics(settings.topics).items()}
        self._letters = letters

    def has_passed(self, task: TaskFact) -> str | None:
        """Return the process that skipped a task it should have answered by then; None if that is still to come.

        Without a process of its own a policy is answered by a fleet. Which one, if there are several, the log does not
        say, so all of them have to be behind it. One that never answered may wait for a fleet of its base model.
        """
        own, reach = task.answered_by + task.policy, self.reach
        groups = {name for name, topic, _ in reach.committed if topic == self.names["tasks"]}
        fleets = sorted(name for name in groups if name.startswith(f"{task.answered_by}@"))
        if reach.settled or own in groups or not fleets:
            return own if reach.passed(own, task.at) else None
        is_theirs = self.settings.fleet.serves(task.policy) and task.policy in self._answered
        return ", ".join(fleets) if is_theirs and all(reach.passed(name, task.at) for name in fleets) else None

    def lettered(self, at: Coordinates, *stages: str) -> bool:
        """Return whether one of these stages, or any if none is named, wrote a dead letter about the record at `at`."""
        return any(letter.stage in (stages or (letter.stage,)) for letter in self._letters.get(at, ()))

    def reason(self, at: Coordinates, stage: str) -> str | None:
        """Return the reason in this stage's letter about the record at `at`."""
        return next((letter.reason for letter in self._letters.get(at, ()) if letter.stage == stage), None)

    def lag(self, group: GroupFact, sequence: int) -> int:
        """Return how many batches before batch `sequence` this group was sampled; below 0 if that cannot be."""
        if not self.settings.trainer.off_policy:
            return sequence - group.batches
        recorded = group.metadata.get(POLICY_LAG, "")
        return int(recorded) if recorded.isdecimal() else -1

    def gone(self, label: str, partition: int, offset: int) -> bool:
        """Return whether this record is before the first that was read."""
        return offset < self.reach.begins.get((self.names[label], partition), 0)

    def never(self, label: str, partition: int, offset: int) -> bool:
        """Return whether this record is after the end: it was not lost, it never existed."""
        return offset >= self.reach.ends.get((self.names[label], partition), 0)
