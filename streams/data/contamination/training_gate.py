"""Refuse to train on held-out questions: the check before a step, a tuning, a job and a data set.

    groups of a batch ──► their tasks ──┐
    rows of a file or a data set ───────┴──► KnownSuites ──► ContaminationReport ──► RefusedError, or metadata

The refusal names the suite and the pairs. The name of a user who allows it is recorded with the version or the data
set. For suites that are newer than a version, training_exposure.py searches backwards.

Not covered: groups with a task that retention has deleted; the process logs their number.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.events import Task
from schemas.serde import Poison
from streams.data.contamination.contamination_report import CONTAMINATION, ContaminationReport, check_rows
from streams.data.contamination.known_suites import KnownSuites
from streams.data.contamination.row_texts import file_texts
from streams.data.contamination.suite_index import RowTexts, row_of_task
from streams.kafka.history import LogHistory
from streams.kafka.record import partition_of
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.scoring.task_lookup import TaskLookup

if TYPE_CHECKING:
    from schemas.events import AdvantagedGroup, Batch
    from trainer.examples.tuned_examples import TuningSource

ALLOW = "--allow-contaminated allows it, and records your name"
WAY_OUT = f"Leave them out (`streamward improve data clean` does); {ALLOW}"
BATCH_WAY_OUT = f"Nothing was trained. Train without these tasks under another policy.name; {ALLOW}"

EXPORT_WAY_OUT = f"Nothing was exported. Name batches without these tasks; {ALLOW}"

log = logging.getLogger(__name__)


class TrainingGate:
    """Checks what is about to be trained on; one thread calls it."""

    def __init__(
        self, settings: Settings, *, allowed_by: str | None = None, outage: BrokerOutage | None = None
    ) -> None:
        """`allowed_by`: the user who allows held-out questions. Raises as `KnownSuites`."""
        self._suites = KnownSuites(settings, LogHistory(settings, outage))
        self._partitions = topics(settings.topics)["tasks"].partitions
        self._allowed_by = allowed_by
        self._settings, self._outage = settings, outage

    def check_batch(self, policy: str, groups: Sequence[AdvantagedGroup]) -> Mapping[str, str]:
        """Return what to record of the groups of a batch. Raises RefusedError as `check_tasks`."""
        return self.check_tasks(policy, (group.task_id for group in groups), f"the next batch of {policy}")

    def check_export(self, batch: Batch, groups: Sequence[AdvantagedGroup]) -> Mapping[str, str]:
        """Return what to record of the groups of a batch for another trainer. Raises RefusedError as `check_tasks`."""
        place = f"batch {batch.sequence} of {batch.policy}"
        return self.check_tasks(batch.policy, (group.task_id for group in groups), place, EXPORT_WAY_OUT)

    def check_tasks(
        self, policy: str, task_ids: Iterable[str], place: str, way_out: str = BATCH_WAY_OUT
    ) -> Mapping[str, str]:
        """Return what to record of these tasks. Raises RefusedError if one gives a held-out question away."""
        index = self._suites.index(policy)
        if not len(index):
            return {}
        report, refused, allowed_by = ContaminationReport(len(index)), ContaminationReport(len(index)), set[str]()
        for task in self._tasks(task_ids):
            row = row_of_task(task, f"task {task.task_id}")
            matches, name = index.matches(row), task.metadata.get(CONTAMINATION_ALLOWED_BY) or self._allowed_by
            if report.add(row, matches) and name is not None:
                allowed_by.add(name)
            if name is None:
                refused.add(row, matches)
        refused.refuse(place, way_out)
        return _metadata(report, place, ", ".join(sorted(allowed_by)))

    def check_texts(self, policy: str, texts: Iterable[RowTexts], place: str) -> Mapping[str, str]:
        """Return what to record of these rows. Raises RefusedError if one gives a held-out question away."""
        index = self._suites.index(policy)
        return _decide(check_rows(index, texts), place, self._allowed_by, WAY_OUT) if len(index) else {}

    def check_source(self, source: TuningSource) -> Mapping[str, str]:
        """Return what to record of what a version is tuned on. Raises RefusedError as above."""
        if source.file is not None:
            return self.check_texts(source.policy, file_texts(source.file), source.file.name)
        if source.dataset is not None:
            texts = (RowTexts(f"row {number}", row) for number, row in enumerate(source.dataset.texts, 1))
            return self.check_texts(
                source.policy, texts, f"data set {source.dataset.dataset}@{source.dataset.digest[:12]}"
            )
        place = f"{len(set(source.task_ids))} groups of {source.groups_policy}"
        return self.check_tasks(source.policy, source.task_ids, place)

    def _tasks(self, task_ids: Iterable[str]) -> Iterator[Task]:
        by_partition: defaultdict[int, list[str]] = defaultdict(list)
        for task_id in dict.fromkeys(task_ids):
            by_partition[partition_of(task_id, self._partitions)].append(task_id)
        with TaskLookup(self._settings, outage=self._outage) as lookup:
            for partition, of_partition in by_partition.items():
                found = lookup.find(partition, of_partition)
                if missing := len(of_partition) - len(found):
                    log.warning("%d tasks are gone by retention, so nothing says what they asked", missing)
                yield from (task for task in found.values() if not isinstance(task, Poison))


def _decide(report: ContaminationReport, place: str, allowed_by: str | None, way_out: str) -> Mapping[str, str]:
    if allowed_by is None:
        report.refuse(place, way_out)
    return _metadata(report, place, allowed_by or "")


def _metadata(report: ContaminationReport, place: str, allowed_by: str) -> Mapping[str, str]:
    recorded = report.metadata(allowed_by)
    if recorded:
        log.warning("%s: held-out questions, allowed by %s: %s", place, allowed_by, recorded[CONTAMINATION])
    return recorded
