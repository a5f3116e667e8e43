"""What the rest of the loop makes of a job's tasks: groups, batches cut by the real rule, versions, results of suites.

Task ──► answer ──► its group ──► Cutter ──► a batch is full ──► trained
                        └──► suite_results.count ──► the suite is complete ──► evaluated
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from schemas.events import AdapterEvent, AdvantagedGroup, Coordinates, Event, Task
from streams.adapters.learning import GroupFacts, facts_of, learning_of
from streams.adapters.versions import AdapterState, empty, fold
from streams.evaluation import results
from streams.evaluation.results import SuiteResults
from streams.settings.model import Batches
from streams.stages.batches import BatchWindow, Cutter
from tests.support.factories import group, member, promoted, trained


@dataclass
class RestOfLoop:
    """Stages, trainer and rollouts of one policy. `rule` is the batches' rule."""

    rule: Batches
    policy: str = "default"
    flat: Callable[[Task], bool] = lambda task: False
    """Whether all answers to a train task are equally good."""
    right: Callable[[int, int], bool] = lambda version, index: version > index
    """Whether a version answers a held-out question."""
    step_s: float = 1.0
    adapters: AdapterState = field(init=False)
    window: BatchWindow = field(default_factory=BatchWindow)
    suites: dict[bytes, SuiteResults] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    facts: list[GroupFacts] = field(default_factory=list)
    """Of every group, by offset."""

    def __post_init__(self) -> None:
        self.adapters = empty(self.policy)

    def answer(self, task: Task) -> list[Event]:
        """Return what is written because of a task; nothing for one that was answered."""
        if task.task_id in self.answered:
            return []
        self.answered.add(task.task_id)
        made = self._group(task)
        offset = len(self.facts)
        self.facts.append(facts_of(made))
        self.window, batches = Cutter(self.rule).reduce(
            self.window, made, Coordinates("groups", 0, offset), doubled=False
        )
        events: list[AdapterEvent] = []
        for batch in batches:
            at = made.created_at + 1
            version = batch.sequence + 1
            learning = learning_of(self.facts[offset] for offset in batch.groups_offsets)
            metrics = {"step_s": self.step_s, "reward": 0.5, "loss": 0.25, "skipped": 0.0, **learning.metrics()}
            metrics |= {"groups": float(batch.groups), "responses": float(batch.responses)}
            events.append(trained(version, policy=self.policy, created_at=at, metrics=metrics))
            events.append(promoted(version, policy=self.policy, created_at=at, actor="rollouts"))
        key = results.suite_key(made)
        if key is not None:
            self.suites[key], found = results.count(self.suites.get(key), made)
            events += found
        for event in events:
            self.adapters = fold(self.adapters, event)
        return [made, *events]

    def take(self, event: AdapterEvent) -> None:
        """Take in what another wrote about the policy's versions."""
        self.adapters = fold(self.adapters, event)

    def _group(self, task: Task) -> AdvantagedGroup:
        version = self.adapters.primary if task.adapter_version is None else task.adapter_version
        pinned = {} if task.adapter_version is None else {"pinned_version": str(version)}
        if task.purpose == "eval":
            value = float(self.right(version, int(task.metadata["suite_index"])))
            responses = tuple(
                member(slot, reward=value, components={"exact": value}) for slot in range(task.group_size)
            )
        else:
            size, spread = task.group_size, 0.0 if self.flat(task) else 0.5
            responses = tuple(
                member(slot, reward=float(slot % 2), advantage=spread * (2 * (slot % 2) - 1)) for slot in range(size)
            )
        return group(
            task_id=task.task_id,
            policy=self.policy,
            purpose=task.purpose,
            created_at=task.created_at + 1,
            adapter_version=version,
            group_size=task.group_size,
            sampling_id=f"{task.task_id}/1",
            metadata={**task.metadata, **pinned},
            responses=responses,
        )
