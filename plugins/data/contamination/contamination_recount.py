"""Recount the contamination that versions record: held-out questions that they were trained on.

    adapters: trained, metadata `contamination` ──┐
    tasks of its own groups, rows of its data set ┴──► questions of each suite ──► is it what the event says?

Three faults are findings: a version that does not record a question which its policy had been asked as held out before
the batch was written; one that counts more questions of a suite than its records have, or too few in all; and one that
names no person. The gate checked the suites of its time, so a later suite is not a finding: `adapters show` looks for
those.

Not recounted, only counted: suites of files that are no longer guard.suite, and versions tuned on files.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from plugins.data.contamination.contamination_report import CONTAMINATION
from plugins.data.contamination.known_suites import SUITE, SUITE_INDEX, KnownSuites
from plugins.data.contamination.suite_index import SuiteIndex, SuiteQuestion
from plugins.data.contamination.training_exposure import (
    batch_numbers,
    batches_of,
    groups_of,
    groups_trained,
    whole_topic,
)
from schemas import json_text
from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.events import AdapterEvent, Coordinates, Task
from schemas.serde import Poison
from streams.adapters.decisions import AdapterHistory, read_history
from streams.errors import RefusedError
from streams.kafka.history import History
from streams.rows.question_text import words_of
from streams.rows.row_texts import RowTexts, row_of_task
from streams.settings.model import Settings
from streams.tools.audit.facts import AuditFinding
from streams.tools.dataset_reader import DatasetTexts

SKEW_MS = 60_000
"""How far the clocks of those that write may differ."""
Identity = tuple[object, ...]
"""What two equal questions of two suites have in common."""


class _TaskLeak(NamedTuple):
    question: SuiteQuestion
    is_exact: bool


@dataclass(slots=True)
class _PolicySuites:
    """The held-out questions of a policy, and the tasks in the log that reveal them."""

    indexes: Mapping[str, SuiteIndex]
    leaks: dict[str, list[_TaskLeak]] = field(default_factory=dict)
    """By task."""
    asked_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    """By suite and number: when it was first asked."""

    def find(self, row: RowTexts) -> list[_TaskLeak]:
        """Return the questions of every suite that a row reveals."""
        return [
            _TaskLeak(match.question, match.rule in ("exact", "parameters"))
            for index in self.indexes.values()
            for match in index.matches(row)
            if match.is_leak
        ]

    def read_tasks(self, history: History, policy: str) -> None:
        """Take in every task of the log."""
        for record in whole_topic(history, "tasks"):
            task = record.decode(Task)
            if isinstance(task, Poison):
                continue
            number = task.metadata.get(SUITE_INDEX, "")
            if task.purpose == "eval" and task.policy == policy and number.isdecimal():
                self.asked_ms.setdefault((task.metadata.get(SUITE, ""), int(number)), record.timestamp_ms)
            elif task.task_id not in self.leaks and (leaks := self.find(row_of_task(task, ""))):
                self.leaks[task.task_id] = leaks

    def had_to_be_known(self, leaks: Iterable[_TaskLeak], before_ms: float) -> set[Identity]:
        """Return the leaked questions that were asked before a time, each once however many suites have it."""
        return {
            _identity(leak.question)
            for leak in leaks
            if leak.is_exact and self._asked_ms(leak.question) + SKEW_MS < before_ms
        }

    def _asked_ms(self, question: SuiteQuestion) -> float:
        return self.asked_ms.get((question.suite, question.number), math.inf)


def recount_contamination(
    settings: Settings, history: History, policy: str | None, dataset_texts: DatasetTexts
) -> tuple[list[AuditFinding], Counter[str]]:
    """Return the findings about the records of versions, for one policy or all, and counts.

    Raises LogError, and SettingsError if guard.suite cannot be read.
    """
    findings, counts = list[AuditFinding](), Counter[str]()
    known = KnownSuites(settings, history)
    for name in _policies(history) if policy is None else [policy]:
        adapters = read_history(settings, name)
        by_suite: defaultdict[str, list[SuiteQuestion]] = defaultdict(list)
        for question in known.questions(name):
            by_suite[question.suite].append(question)
        is_recorded = any(CONTAMINATION in event.metadata for _, event in adapters.trained.values())
        if by_suite or is_recorded:
            suites = _PolicySuites({suite: SuiteIndex(questions) for suite, questions in by_suite.items()})
            findings += _recount_policy(adapters, suites, history, dataset_texts, counts)
    return findings, counts


def _policies(history: History) -> list[str]:
    events = (record.decode(AdapterEvent) for record in whole_topic(history, "adapters"))
    return sorted({event.policy for event in events if not isinstance(event, Poison)})


def _recount_policy(
    adapters: AdapterHistory,
    suites: _PolicySuites,
    history: History,
    dataset_texts: DatasetTexts,
    counts: Counter[str],
) -> Iterator[AuditFinding]:
    suites.read_tasks(history, adapters.state.policy)
    places, batches = groups_of(history, suites.leaks), batches_of(history, adapters.state.policy)
    for at, event in adapters.trained.values():
        leaks = [
            leak
            for place in groups_trained(adapters, event, batches)
            for leak in suites.leaks.get(places.get(place, ""), ())
        ]
        written = [batches[number].written_ms for number in batch_numbers(adapters, event) if number in batches]
        tuning = event.tuning
        if tuning is not None and tuning.file is not None:
            counts["versions tuned on files, not looked at for held-out questions"] += 1
            continue
        if tuning is not None and tuning.dataset is not None:
            try:
                rows = dataset_texts(f"{tuning.dataset}@{tuning.dataset_digest}", tuning.method)
            except RefusedError:  # its records are gone, or it was built otherwise: another finding
                counts["versions of data sets that are gone"] += 1
                continue
            leaks += [leak for row in rows for leak in suites.find(RowTexts("", row))]
        must = suites.had_to_be_known(leaks, min(written, default=-math.inf))
        counts["versions looked at for held-out questions"] += 1
        yield from _differences(at, event, leaks, must, suites, counts)


def _differences(
    at: Coordinates,
    event: AdapterEvent,
    leaks: Iterable[_TaskLeak],
    must: set[Identity],
    suites: _PolicySuites,
    counts: Counter[str],
) -> Iterator[AuditFinding]:
    """Yield what differs between what a version says and what its records have."""
    by_suite: defaultdict[str, set[int]] = defaultdict(set)
    for leak in leaks:
        by_suite[leak.question.suite].add(leak.question.number)
    try:
        recorded = _read(event.metadata.get(CONTAMINATION, "{}"))
    except ValueError:
        yield AuditFinding("contradictory", at, f"version {event.version}: `{CONTAMINATION}` is no count by suite")
        return
    for suite, number in recorded.items():
        if suite not in suites.indexes:
            counts["contaminations by suites that are not in the log"] += 1
        elif number > len(by_suite[suite]):
            yield AuditFinding(
                "contradictory",
                at,
                f"version {event.version}: it says {number} questions of suite {suite}, and its records have "
                f"{len(by_suite[suite])}",
            )
    if sum(recorded.values()) < len(must):
        names = ", ".join(sorted(by_suite))
        yield AuditFinding(
            "contradictory",
            at,
            f"version {event.version}: it was trained on {len(must)} held-out questions ({names}), and says "
            f"{sum(recorded.values())}",
        )
    if recorded and not event.metadata.get(CONTAMINATION_ALLOWED_BY):
        yield AuditFinding(
            "contradictory", at, f"version {event.version}: it names no person who allowed its held-out questions"
        )


def _read(text: str) -> dict[str, int]:
    """Return questions by suite. Raises ValueError for anything else."""
    counts = json_text.parse(text)
    if not isinstance(counts, dict) or not all(type(count) is int and count > 0 for count in counts.values()):
        raise ValueError(text)
    return counts


def _identity(question: SuiteQuestion) -> Identity:
    return (question.parameters,) if question.parameters is not None else words_of(question.text).exact
