"""The held-out questions that this deployment knows: those of guard.suite, and of suites in the log.

    guard.suite ────────────────────────────────────────────┐
    tasks: of the policy, purpose eval, metadata `suite` ───┴──► KnownSuites.index(policy) ──► SuiteIndex

A question is in the log once for each version evaluated, and is counted once. Reading continues where it ended, so
another look costs only the records written since.

Not covered: suites of jobs; each job splits its own questions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from plugins.data.contamination.suite_index import SuiteIndex, SuiteQuestion, questions_of, questions_of_task
from schemas.events import Task
from schemas.serde import Poison
from streams.evaluation.expectations import Expectation
from streams.evaluation.suite import owner_of
from streams.kafka.history import History
from streams.kafka.record import Record, TopicPartition
from streams.settings.model import Settings
from streams.stages.tasks import suites

SUITE, SUITE_INDEX = "suite", "suite_index"
"""Metadata of an evaluation's tasks."""


def expectations_of(settings: Settings, files: Iterable[Path] = ()) -> dict[str, Expectation]:
    """Return what guard.suite and these files expect of columns; of two the last counts. Raises as `suites.of_file`."""
    paths = [path for path in (settings.guard.suite, *files) if path is not None]
    loaded = [suites.of_file(settings, path).expectations for path in paths]
    return {column: expectation for part in loaded for column, expectation in part.items()}


def index_of_files(settings: Settings, files: Iterable[Path] = ()) -> SuiteIndex | None:
    """Return the questions of guard.suite and of these files; None if there are none. Raises as `suites.of_file`."""
    questions = _of_files(settings, files)
    return SuiteIndex(questions) if questions else None


def _of_files(settings: Settings, files: Iterable[Path]) -> list[SuiteQuestion]:
    paths = [path for path in (settings.guard.suite, *files) if path is not None]
    return [question for path in paths for question in questions_of(suites.of_file(settings, path))]


class KnownSuites:
    """The held-out questions, followed in the log."""

    def __init__(self, settings: Settings, history: History, *, file: Path | None = None) -> None:
        """`file`: a suite that counts, too. Raises as `suites.of_file` if that or guard.suite cannot be read."""
        self._history = history
        self._of_files = _of_files(settings, () if file is None else (file,))
        self._of_policy: defaultdict[str, list[SuiteQuestion]] = defaultdict(list)
        self._seen: set[tuple[str, str, str]] = set()
        self._positions: dict[TopicPartition, int] = {}
        self._indexes: dict[str, SuiteIndex] = {}

    def index(self, policy: str) -> SuiteIndex:
        """Return every question that is held out from a policy by now. Raises LogError."""
        self._read()
        if (known := self._indexes.get(policy)) is None:
            known = self._indexes[policy] = SuiteIndex(self._questions(policy))
        return known

    def questions(self, policy: str) -> list[SuiteQuestion]:
        """Return every question that is held out from a policy by now, also if two suites have it. Raises LogError."""
        self._read()
        return self._questions(policy)

    def _questions(self, policy: str) -> list[SuiteQuestion]:
        return [*self._of_files, *self._of_policy.get(policy, ())]

    def _read(self) -> None:
        bounds = self._history.bounds(["tasks"])
        starts = {tp: max(first, self._positions.get(tp, 0)) for tp, (first, _) in bounds.items()}
        ends = {tp: max(end, starts[tp]) for tp, (_, end) in bounds.items()}
        for record in self._history.read(starts, ends):
            self._take(record)
        self._positions = ends

    def _take(self, record: Record) -> None:
        if record.payload is None or SUITE_INDEX.encode() not in record.payload:  # most tasks need no decoding
            return
        task = record.decode(Task)
        if isinstance(task, Poison) or task.purpose != "eval":
            return
        suite, index = task.metadata.get(SUITE), task.metadata.get(SUITE_INDEX, "")
        if suite is None or owner_of(suite) is not None or not index.isdecimal():
            return
        key = (task.policy, suite, index)
        if key in self._seen:
            return
        self._seen.add(key)
        self._of_policy[task.policy] += questions_of_task(task, suite, int(index))
        self._indexes.pop(task.policy, None)
