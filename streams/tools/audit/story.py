"""What the recount of a task starts from, and what it ends with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from schemas.events import Coordinates
from streams.tools.audit.facts import AuditFinding, ControlFact, GroupFact, ResponseFact, RewardFact, TaskFact


@dataclass(slots=True)
class Story:
    """Everything the log says about one task, each list in the order of its partition."""

    partition: int
    task_id: str
    tasks: list[TaskFact] = field(default_factory=list)
    responses: list[ResponseFact] = field(default_factory=list)
    rewards: list[RewardFact] = field(default_factory=list)
    controls: list[ControlFact] = field(default_factory=list)
    groups: list[GroupFact] = field(default_factory=list)
    misplaced: list[Coordinates] = field(default_factory=list)
    """Records of the task in other partitions than its own, where nobody looks for it."""
    settled: TaskOutcome | None = None
    """The last result, if only a new record about this task can change it."""

    @property
    def policy(self) -> str | None:
        """Whose task it is; None if unknown."""
        known = self.tasks or self.groups or self.responses or self.rewards
        return known[0].policy if known else None


@dataclass(slots=True)
class TaskOutcome:
    """The result of recounting one task or one policy."""

    findings: list[AuditFinding] = field(default_factory=list)
    in_flight: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    """What the equations add up."""
