"""The gate of held-out questions: a row that gives one away is not trained on.

    RowTexts ──► the questions of guard.suite, of suites in the log, or of named suites ──► ContaminationReport
                                                        └──► ContaminatedError, or the metadata of an event

The refusal names the suite and the pairs. For suites that are newer than a version, training_exposure.py searches
backwards.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from plugins.data.contamination.contamination_recount import recount_contamination
from plugins.data.contamination.contamination_report import CONTAMINATION, ContaminationReport
from plugins.data.contamination.known_suites import KnownSuites
from plugins.data.contamination.suite_index import SuiteIndex, questions_of
from plugins.data.contamination.training_exposure import find_exposure
from streams.adapters.decisions import AdapterHistory
from streams.evaluation.suite import Suite
from streams.kafka.history import History, LogHistory
from streams.rows.row_texts import RowTexts
from streams.rows.training_gate import ALLOW, ReasonFinder, TrainingGate, TrainingUse, VersionExposure
from streams.tools.audit.facts import AuditFinding
from streams.tools.dataset_reader import texts_of

WAY_OUT = f"Leave them out (`streamward improve data clean` does); {ALLOW}"

log = logging.getLogger(__name__)


class HeldOutQuestions:
    """Held-out questions, looked for in rows."""

    def __init__(self, index_of: Callable[[str], SuiteIndex]) -> None:
        """`index_of`: returns the questions that are held out from a policy by now. Raises LogError."""
        self._index_of = index_of

    def check(self, rows: Iterable[RowTexts], use: TrainingUse) -> Mapping[str, str]:
        """Return what an event records: leaked questions by suite, and who allowed them.

        Raises ContaminatedError if a row gives a question away, and no user allows it.
        """
        index = self._index_of(use.policy)
        if not len(index):
            return {}
        report, refused, allowed_by = ContaminationReport(len(index)), ContaminationReport(len(index)), set[str]()
        for row in rows:
            matches, name = index.matches(row), row.allowed_by or use.allowed_by
            if report.add(row, matches) and name is not None:
                allowed_by.add(name)
            if name is None:
                refused.add(row, matches)
        refused.refuse(use.place, use.way_out or WAY_OUT)
        names = ", ".join(sorted(allowed_by))
        recorded = report.metadata(names)
        if recorded:
            log.warning("%s: held-out questions, allowed by %s: %s", use.place, names, recorded[CONTAMINATION])
        return recorded

    def finder(self, policy: str) -> ReasonFinder | None:
        """Return what names the suite with a question that a row gives away; None: no question is held out."""
        index = self._index_of(policy)
        return partial(_suite_in, index) if len(index) else None


def _suite_in(index: SuiteIndex, row: RowTexts) -> str | None:
    leak = next((match for match in index.matches(row) if match.is_leak), None)
    return None if leak is None else f"suite {leak.question.suite}"


class ContaminationGate(TrainingGate):
    """Holds out the questions of suites."""

    def of_log(self, history: History) -> HeldOutQuestions:
        """Return the questions of guard.suite, and of every suite that a policy was asked. Raises as `KnownSuites`."""
        return HeldOutQuestions(KnownSuites(self._settings, history).index)

    def of_suites(self, suites: Sequence[Suite]) -> HeldOutQuestions:
        """Return the questions of these suites."""
        index = SuiteIndex(question for suite in suites for question in questions_of(suite))
        return HeldOutQuestions(lambda _: index)

    def exposure(self, adapters: AdapterHistory, version: int, suite: Path | None) -> VersionExposure:
        """Return the questions that a version and those before it were trained on. Raises LogError."""
        history = LogHistory(self._settings)
        index = KnownSuites(self._settings, history, file=suite).index(adapters.state.policy)
        exposed = find_exposure(adapters, version, index, history, texts_of(self._settings, history))
        return VersionExposure({CONTAMINATION: exposed.plain()}, [*exposed.sentences()])

    def recount(self, policy: str | None) -> tuple[list[AuditFinding], Counter[str]]:
        """Return what is wrong with the questions that versions record, and counts. Raises LogError."""
        history = LogHistory(self._settings)
        return recount_contamination(self._settings, history, policy, texts_of(self._settings, history))


GATES = (ContaminationGate,)
