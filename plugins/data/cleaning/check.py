"""Check rows for faults, and report findings, before anything is changed.

    DataRow | UnreadableRow ──► unreadable, shape and its faults by name, empty, duplicates, personal data, held out
                                    └──► CheckedRows: a line for each finding, with a count and the first row

A finding is `wrong` if training on the rows would fail or be worthless: a row that cannot be read, a fault by its
shape, a held-out question, a value that a suite does not expect, or no row at all. The other findings are for people to
decide; `clean` has a step for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plugins.data.cleaning.data_rows import UNREADABLE, UnreadableRow
from plugins.data.cleaning.input_drift import ColumnDrift, Profile, drift, drift_figures, profile
from plugins.data.cleaning.row_shapes import Shape, problems_of
from plugins.data.cleaning.steps import (
    CONTAMINATION,
    STEPS,
    DataRow,
    LengthOptions,
    NearDuplicatesOptions,
    PersonalDataOptions,
    StepOptions,
    common_shape,
)
from plugins.data.contamination.contamination_report import ContaminationReport, check_rows
from plugins.data.contamination.suite_index import SuiteIndex
from streams.evaluation.expectations import Expectation, value_at
from streams.rows.row_texts import RowTexts, texts_of

NOTED: dict[str, StepOptions] = {
    "drop_empty": StepOptions(),
    "length": LengthOptions(),
    "duplicates": StepOptions(),
    "contradictions": StepOptions(),
    "near_duplicates": NearDuplicatesOptions(),
    "personal_data": PersonalDataOptions(action="drop"),
}
"""Steps that say what they would drop."""


@dataclass(slots=True)
class RowFinding:
    """Rows with the same fault."""

    name: str
    is_wrong: bool
    rows: int = 0
    first: str = ""
    """The place of the first, and what is wrong there."""

    def add(self, place: str, text: str) -> None:
        """Count a row."""
        self.rows += 1
        self.first = self.first or f"{place}: {text}"

    def plain(self) -> dict[str, Any]:
        """Return it as a row."""
        return {"finding": self.name, "wrong": self.is_wrong, "rows": self.rows, "first": self.first}


@dataclass(slots=True)
class CheckedRows:
    """The findings of a set of rows."""

    read: int = 0
    shape: Shape = "unknown"
    findings: dict[str, RowFinding] = field(default_factory=dict)
    contamination: ContaminationReport | None = None
    drift: Sequence[ColumnDrift] | None = None
    """From a data set; None: it was not compared."""

    @property
    def is_wrong(self) -> bool:
        """Whether it must be fixed before training."""
        return any(finding.is_wrong for finding in self.findings.values())

    def plain(self) -> dict[str, Any]:
        """Return it for programs."""
        contamination = {} if self.contamination is None else {"contamination": self.contamination.figures()}
        drift = {} if self.drift is None else {"drift": drift_figures(self.drift)}
        return {
            "rows": self.read,
            "shape": self.shape,
            "wrong": self.is_wrong,
            "findings": [finding.plain() for finding in self.findings.values()],
            **contamination,
            **drift,
        }

    def note(self, name: str, place: str, text: str, *, is_wrong: bool) -> None:
        """Count a row under a finding."""
        self.findings.setdefault(name, RowFinding(name, is_wrong)).add(place, text)


def check(
    rows: Iterable[DataRow | UnreadableRow],
    held_out: SuiteIndex | None = None,
    expectations: Mapping[str, Expectation] | None = None,
    reference: Profile | None = None,
) -> CheckedRows:
    """Return what is wrong with rows; of a mixed set the shape is that of most. `reference`: of a data set."""
    checked, whole = CheckedRows(), list[DataRow]()
    for row in rows:
        checked.read += 1
        if isinstance(row, DataRow):
            whole.append(row)
        else:
            checked.note(UNREADABLE, row.place, row.why, is_wrong=True)
    if not checked.read:
        checked.findings["no_rows"] = RowFinding("no_rows", True, 0, "there is nothing to train on")
    checked.shape = common_shape(whole)
    for row in whole:
        for problem in {problem.name: problem for problem in problems_of(row.fields, checked.shape)}.values():
            checked.note(problem.name, row.place, problem.text, is_wrong=True)
    for column, expectation in (expectations or {}).items():
        values = [value_at(row.fields, column) for row in whole]
        for number, why in expectation.broken(values):
            checked.note(f"expectation {column}", whole[number].place, why, is_wrong=True)
    for name, options in NOTED.items():
        for row, outcome in zip(whole, STEPS[name].run(whole, options), strict=True):
            if outcome.fields is None:
                checked.note(name, row.place, outcome.note, is_wrong=False)
    if reference is not None:
        checked.drift = drift(reference, profile((row.fields, None) for row in whole))
        for moved in (one for one in checked.drift if one.has_moved):
            name = f"drift {moved.column}"
            checked.findings[name] = RowFinding(name, False, len(whole), str(moved))
    if held_out is not None and len(held_out):
        checked.contamination = check_rows(held_out, _texts(whole))
        for leak in checked.contamination.leaks:
            checked.note(CONTAMINATION, leak.place, str(leak).partition(": ")[2], is_wrong=True)
    return checked


def _texts(rows: Sequence[DataRow]) -> Iterator[RowTexts]:
    return (RowTexts(row.place, texts_of(row.fields)) for row in rows)
