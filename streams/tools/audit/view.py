"""The recounts' view of the loop, and of the progress of each stage and of this reading.

Ledger ──► LoopFacts: tasks, policies, dead letters ──┬──► AuditView ──► every recount
commits, begins, ends ──► Reach ──────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from schemas.conventions import POLICY_LAG
from schemas.events import Coordinates
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.audit.facts import (
    AdapterFact,
    BatchFact,
    ControlFact,
    GroupFact,
    LetterFact,
    Reach,
    RecountOutcome,
    ResponseFact,
    RewardFact,
    TaskFact,
)


@dataclass(slots=True)
class AuditedTask:
    """Everything the log says about one task, each list in the order of its partition."""

    partition: int
    task_id: str
    tasks: list[TaskFact] = field(default_factory=list)
    responses: list[ResponseFact] = field(default_factory=list)
    rewards: list[RewardFact] = field(default_factory=list)
    controls: list[ControlFact] = field(default_factory=list)
    groups: list[GroupFact] = field(default_factory=list)
    misplaced: list[Coordinates] = field(default_factory=list)
    """Records of the task in other partitions than its own, where no stage reads it."""
    settled: RecountOutcome | None = None
    """The last result, if only a new record about this task can change it."""

    @property
    def policy(self) -> str | None:
        """The policy of the task; None if unknown."""
        known = self.tasks or self.groups or self.responses or self.rewards
        return known[0].policy if known else None


@dataclass(slots=True)
class PolicyLedger:
    """Everything the log says about one policy beyond its tasks, each list in the order of its partition."""

    policy: str
    groups: list[GroupFact] = field(default_factory=list)
    batches: list[BatchFact] = field(default_factory=list)
    adapters: list[AdapterFact] = field(default_factory=list)


@dataclass(slots=True)
class LoopFacts:
    """Everything the log says about tasks and policies."""

    tasks: dict[tuple[int, str], AuditedTask] = field(default_factory=dict)
    """By partition and id."""
    policies: dict[str, PolicyLedger] = field(default_factory=dict)
    letters: dict[Coordinates, list[LetterFact]] = field(default_factory=dict)
    """Dead letters by the record that they are about."""


class AuditView:
    """The facts and positions that recounts look up, next to their own facts."""

    def __init__(
        self,
        settings: Settings,
        reach: Reach,
        loop: LoopFacts,
        exists: Callable[[Coordinates], bool],
    ) -> None:
        """Show the facts of the loop; `exists` says whether a record was read."""
        self.settings, self.reach, self.loop, self.exists = settings, reach, loop, exists
        self.names = {label: topic.name for label, topic in topics(settings.topics).items()}
        self._letters = loop.letters

    @cached_property
    def _answered(self) -> set[str]:
        """The policies that have answered anything."""
        return {response.policy for task in self.loop.tasks.values() for response in task.responses}

    def versions(self, policy: str | None) -> dict[int, AdapterFact]:
        """Return the first `trained` of each version of a policy."""
        ledger = self.loop.policies.get(policy or "")
        events = () if ledger is None else reversed(ledger.adapters)
        return {event.version: event for event in events if event.kind == "trained"}

    def is_cut(self, label: str, partition: int | None = None) -> bool:
        """Return whether records of a topic, or of one of its partitions, are before the first that was read."""
        if partition is not None:
            return self.reach.cut(self.names[label], partition)
        return any(begin > 0 for (name, _), begin in self.reach.begins.items() if name == self.names[label])

    def has_passed(self, task: TaskFact) -> str | None:
        """Return the process that skipped a task it should have answered by then; None if it may still answer.

        A policy without its own process is answered by a fleet. If there are several, the log does not tell which one,
        so all of them have to be past it. A policy that was never answered may wait for a fleet of its base model.
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
        """Return the reason in this stage's dead letter about the record at `at`."""
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
