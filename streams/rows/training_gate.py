"""Refuse rows that must not be trained on: every way to a version asks the gates of the loaded plugins first.

    groups of a batch ──► their tasks ──┐
    rows of a file or a data set ───────┴──► RowTexts ──► HeldOutRows of each gate ──► RefusedError, or metadata

A plugin names its gates as `gates`. A user may allow what a gate refuses; the name is recorded with the version or the
data set. Without a gate the purpose of a task alone decides: no batch has a group of purpose eval.

Not covered: groups with a task that retention has deleted; the process logs their number.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.events import Task
from schemas.serde import Poison
from streams.adapters.decisions import AdapterHistory
from streams.evaluation.suite import Suite
from streams.kafka.history import History, LogHistory
from streams.kafka.record import partition_of
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.plugins.installed import load_plugins
from streams.rows.row_texts import RowTexts, file_texts, row_of_task
from streams.settings.model import Settings
from streams.stages.scoring.task_lookup import TaskLookup

if TYPE_CHECKING:
    from schemas.events import AdvantagedGroup, Batch
    from streams.tools.audit.facts import AuditFinding
    from trainer.examples.tuned_examples import TuningSource

ALLOW = "--allow-contaminated allows it, and records your name"
BATCH_WAY_OUT = f"Nothing was trained. Train without these tasks under another policy.name; {ALLOW}"
EXPORT_WAY_OUT = f"Nothing was exported. Name batches without these tasks; {ALLOW}"

log = logging.getLogger(__name__)


class TrainingUse(NamedTuple):
    """The use that rows are checked for."""

    place: str
    """Where they are, as the refusal begins: `the next batch of default`."""
    way_out: str = ""
    """What the user can do about it; empty: the gate knows."""
    policy: str = ""
    """The policy that is to learn from them; empty: it makes no difference."""
    allowed_by: str | None = None
    """The user who allows all of them."""


ReasonFinder = Callable[[RowTexts], str | None]
"""Returns why a row must not be trained on, as `suite cities@1`; None: it may be."""


class HeldOutRows(Protocol):
    """Rows that must not be trained on, as a gate knows them."""

    def check(self, rows: Iterable[RowTexts], use: TrainingUse) -> Mapping[str, str]:
        """Return what the event of a version or data set records of these rows. Raises RefusedError, LogError."""

    def finder(self, policy: str) -> ReasonFinder | None:
        """Return a function that says why a row is held out from a policy; None: no row is. Raises LogError."""


class VersionExposure(NamedTuple):
    """Held-out rows that a version was trained on, for `adapters show`."""

    row: Mapping[str, Any]
    """Fields of the version's row."""
    sentences: Sequence[str]


class TrainingGate:
    """Says what must not be trained on. A plugin declares it (`Plugin.gates`)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def of_log(self, history: History) -> HeldOutRows:
        """Return what this deployment holds out: by its settings, and by records of this history."""
        raise NotImplementedError

    def of_suites(self, suites: Sequence[Suite]) -> HeldOutRows:
        """Return what these suites hold out from every policy."""
        raise NotImplementedError

    def exposure(self, adapters: AdapterHistory, version: int, suite: Path | None) -> VersionExposure:
        """Return what a version was trained on that is held out by now, or by the file of a suite. Raises LogError."""
        return VersionExposure({}, ())

    def recount(self, policy: str | None) -> tuple[list[AuditFinding], Counter[str]]:
        """Return, for the audit, what is wrong with the records of versions of a policy, None: of all, and counts.

        Raises LogError.
        """
        return [], Counter()


@cache
def gates() -> tuple[type[TrainingGate], ...]:
    """Return the gates of the loaded plugins. Raises SettingsError if one cannot be imported."""
    return tuple(gate for plugin, _, _ in load_plugins() for gate in plugin.load_all(plugin.gates))


class AllHeldOut:
    """Rows that any of the gates holds out."""

    def __init__(self, parts: Iterable[HeldOutRows]) -> None:
        self._parts = tuple(parts)

    @classmethod
    def of_log(cls, settings: Settings, history: History) -> AllHeldOut:
        """Return what this deployment holds out. Raises SettingsError if a gate cannot read its settings."""
        return cls(gate(settings).of_log(history) for gate in gates())

    @classmethod
    def of_suites(cls, settings: Settings, suites: Sequence[Suite]) -> AllHeldOut:
        """Return what these suites hold out."""
        return cls(gate(settings).of_suites(suites) for gate in gates())

    def check(self, rows: Iterable[RowTexts], use: TrainingUse) -> Mapping[str, str]:
        """Return what an event records of these rows, by every gate. Raises RefusedError, LogError."""
        recorded: dict[str, str] = {}
        for held_out, part in zip(self._parts, tee(rows, len(self._parts)), strict=True):
            recorded |= held_out.check(part, use)
        return recorded

    def finder(self, policy: str) -> ReasonFinder | None:
        """Return a function that gives the first reason of a gate; None: no row is held out. Raises LogError."""
        finders = [finder for part in self._parts if (finder := part.finder(policy)) is not None]
        if not finders:
            return None
        return lambda row: next(filter(None, (finder(row) for finder in finders)), None)


class TrainingCheck:
    """Checks what is about to be trained on; one thread calls it."""

    def __init__(
        self, settings: Settings, *, allowed_by: str | None = None, outage: BrokerOutage | None = None
    ) -> None:
        """`allowed_by`: the user who allows what is held out. Raises as `AllHeldOut.of_log`."""
        self._held_out = AllHeldOut.of_log(settings, LogHistory(settings, outage))
        self._partitions = topics(settings.topics)["tasks"].partitions
        self._allowed_by = allowed_by
        self._settings, self._outage = settings, outage

    def check_batch(self, policy: str, groups: Sequence[AdvantagedGroup]) -> Mapping[str, str]:
        """Return what to record of the groups of a batch. Raises RefusedError as `check_texts`."""
        return self._check_tasks(policy, (group.task_id for group in groups), f"the next batch of {policy}")

    def check_export(self, batch: Batch, groups: Sequence[AdvantagedGroup]) -> Mapping[str, str]:
        """Return what to record of the groups of a batch for another trainer. Raises RefusedError as `check_texts`."""
        place = f"batch {batch.sequence} of {batch.policy}"
        return self._check_tasks(batch.policy, (group.task_id for group in groups), place, EXPORT_WAY_OUT)

    def check_source(self, source: TuningSource) -> Mapping[str, str]:
        """Return what to record of what a version is tuned on. Raises RefusedError as `check_texts`."""
        if source.file is not None:
            return self.check_texts(source.policy, file_texts(source.file), source.file.name)
        if source.dataset is not None:
            texts = (RowTexts(f"row {number}", row) for number, row in enumerate(source.dataset.texts, 1))
            return self.check_texts(
                source.policy, texts, f"data set {source.dataset.dataset}@{source.dataset.digest[:12]}"
            )
        place = f"{len(set(source.task_ids))} groups of {source.groups_policy}"
        return self._check_tasks(source.policy, source.task_ids, place)

    def check_texts(self, policy: str, rows: Iterable[RowTexts], place: str, way_out: str = "") -> Mapping[str, str]:
        """Return what to record of these rows. Raises RefusedError if a gate holds one out, LogError."""
        return self._held_out.check(rows, TrainingUse(place, way_out, policy, self._allowed_by))

    def _check_tasks(
        self, policy: str, task_ids: Iterable[str], place: str, way_out: str = BATCH_WAY_OUT
    ) -> Mapping[str, str]:
        rows = (
            row_of_task(task, f"task {task.task_id}")._replace(allowed_by=task.metadata.get(CONTAMINATION_ALLOWED_BY))
            for task in self._tasks(task_ids)
        )
        return self.check_texts(policy, rows, place, way_out)

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
