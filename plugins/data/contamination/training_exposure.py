"""Find the held-out questions that a version was trained on; the suite may be newer than the version.

    SuiteIndex ──► tasks of the log that give a question away
    version ──► its parents: groups of batches, groups and data sets of tunings ──► of those tasks? ──► TrainingExposure

Not covered, but listed: files, which are not in the log, and versions trained elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plugins.data.contamination.suite_index import SuiteIndex, SuiteQuestion
from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Task
from streams.adapters.decisions import AdapterHistory
from streams.kafka.history import History
from streams.kafka.record import Record
from streams.rows.row_texts import RowTexts, row_of_task
from streams.tools.dataset_reader import DatasetTexts
from streams.tools.lineage import parents


@dataclass(slots=True)
class TrainingExposure:
    """The held-out questions that a version and those before it were trained on."""

    questions: defaultdict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """By suite: the number of each question, and the last version that was trained on it."""
    not_looked_at: list[str] = field(default_factory=list)
    """Files and versions that are not in the log."""

    def add(self, question: SuiteQuestion, version: int) -> None:
        """Take in a question that a version was trained on."""
        known = self.questions[question.suite]
        known[question.number] = max(version, known.get(question.number, 0))

    def plain(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        suites = [
            {"suite": suite, "questions": sorted(numbers), "versions": sorted(set(numbers.values()))}
            for suite, numbers in sorted(self.questions.items())
        ]
        return {"suites": suites, "not_looked_at": self.not_looked_at}

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each suite, and for each file that is not in the log."""
        for suite, numbers in sorted(self.questions.items()):
            count = "1 question" if len(numbers) == 1 else f"{len(numbers)} questions"
            yield f"trained on {count} of suite {suite} (version {', '.join(map(str, sorted(set(numbers.values()))))})"
        yield from (f"not looked at for held-out questions: {name}" for name in self.not_looked_at)


def find_exposure(
    adapters: AdapterHistory,
    version: int,
    index: SuiteIndex,
    history: History,
    dataset_texts: DatasetTexts,
) -> TrainingExposure:
    """Return which questions of `index` a version was trained on. Raises NotFoundError for an unknown one, LogError."""
    found = TrainingExposure()
    chain = [event for number in parents(adapters, version) if (event := adapters.trained_event(number)) is not None]
    if not len(index) or not chain:
        return found
    leaks = leaking_tasks(history, index)
    by_group = groups_of(history, leaks) if leaks else {}
    batches = batches_of(history, adapters.state.policy)
    for event in chain:
        for key in groups_trained(adapters, event, batches):
            for question in leaks.get(by_group.get(key, ""), ()):
                found.add(question, event.version)
        tuning = event.tuning
        if tuning is not None and tuning.dataset is not None:
            for row in dataset_texts(f"{tuning.dataset}@{tuning.dataset_digest}", tuning.method):
                for match in index.matches(RowTexts("", row)):
                    if match.is_leak:
                        found.add(match.question, event.version)
        elif tuning is not None and tuning.file is not None:
            found.not_looked_at.append(
                f"file {tuning.file} of version {event.version} (`streamward improve data check` does)"
            )
        elif tuning is not None and tuning.start_policy is not None:
            found.not_looked_at.append(f"version {tuning.start_version} of {tuning.start_policy}, which it starts from")
    return found


def leaking_tasks(history: History, index: SuiteIndex) -> dict[str, list[SuiteQuestion]]:
    """Return the questions that tasks in the log reveal, by task."""
    leaks: dict[str, list[SuiteQuestion]] = {}
    for record in whole_topic(history, "tasks"):
        task = record.decode(Task)
        if isinstance(task, Task) and task.task_id not in leaks:
            questions = [match.question for match in index.matches(row_of_task(task, "")) if match.is_leak]
            if questions:
                leaks[task.task_id] = questions
    return leaks


GroupPlace = tuple[int, int]
"""Partition and offset."""


def groups_of(history: History, task_ids: Mapping[str, object]) -> dict[GroupPlace, str]:
    """Return the task of each group of these tasks, by its place."""
    places: dict[GroupPlace, str] = {}
    for record in whole_topic(history, "groups"):
        group = record.decode(AdvantagedGroup)
        if isinstance(group, AdvantagedGroup) and group.task_id in task_ids:
            places[record.at.partition, record.at.offset] = group.task_id
    return places


class PlacedBatch(NamedTuple):
    """The groups of a batch, and when it was written."""

    groups: tuple[GroupPlace, ...]
    written_ms: int


def batches_of(history: History, policy: str) -> dict[int, PlacedBatch]:
    """Return the batches of a policy, by number."""
    batches: dict[int, PlacedBatch] = {}
    for record in whole_topic(history, "batches"):
        batch = record.decode(Batch)
        if isinstance(batch, Batch) and batch.policy == policy:
            places = tuple((batch.groups_partition, offset) for offset in batch.groups_offsets)
            batches.setdefault(batch.sequence, PlacedBatch(places, record.timestamp_ms))
    return batches


def batch_numbers(adapters: AdapterHistory, event: AdapterEvent) -> range:
    """Return the numbers of the batches that made a version of its parent; none if it was tuned."""
    if event.tuning is not None or event.last_batch is None:
        return range(0)
    parent = adapters.state.versions.get(event.parent_version or 0)
    return range(0 if parent is None else parent.trained_batches, event.last_batch + 1)


def groups_trained(
    adapters: AdapterHistory, event: AdapterEvent, batches: Mapping[int, PlacedBatch]
) -> Iterator[GroupPlace]:
    """Yield the places of the groups that a version was trained on, after its parent."""
    if event.tuning is not None:
        yield from ((event.tuning.groups_partition or 0, group.offset) for group in event.tuning.groups)
    for sequence in batch_numbers(adapters, event):
        if (batch := batches.get(sequence)) is not None:
            yield from batch.groups


def whole_topic(history: History, label: str) -> Iterator[Record]:
    bounds = history.bounds([label])
    return iter(
        history.read({tp: first for tp, (first, _) in bounds.items()}, {tp: end for tp, (_, end) in bounds.items()})
    )
