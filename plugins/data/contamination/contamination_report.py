"""Held-out questions found in training data: three figures, each pair, and the message of the refusal.

RowTexts, … ──► SuiteIndex ──► ContaminationReport ──► figures | pairs | refusal | what an event records
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plugins.data.contamination.suite_index import QuestionMatch, Rule, SuiteIndex
from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.json_text import one_line
from streams.errors import ContaminatedError
from streams.rows.row_texts import RowTexts

PAIRS_SHOWN = 3
PAIRS_KEPT = 1000
EXCERPT = 80
FIGURES: tuple[Rule, ...] = ("exact", "coverage", "template")
CONTAMINATION = "contamination"
"""Metadata of an event: leaked questions by suite, and who allowed them."""


class Leak(NamedTuple):
    """A row and the question that it gives away."""

    place: str
    match: QuestionMatch

    def __str__(self) -> str:
        question = self.match.question
        part = "the answer to question" if question.is_answer else "question"
        rule = f"{self.match.rule}, {self.match.share:.0%}" if self.match.rule == "coverage" else self.match.rule
        return (
            f"{self.place}: {excerpt(self.match.text)} is {part} {question.number} of suite {question.suite} ({rule}): "
            f"{excerpt(question.text)}"
        )

    def plain(self) -> dict[str, Any]:
        """Return it as a row for programs."""
        question = self.match.question
        return {
            "row": self.place,
            "text": excerpt(self.match.text),
            "suite": question.suite,
            "question": question.number,
            "question_text": excerpt(question.text),
            "in_answer": question.is_answer,
            "rule": self.match.rule,
            "share": round(self.match.share, 4),
        }


@dataclass(slots=True)
class ContaminationReport:
    """Counts of the rows until now, and the pairs that leak."""

    questions: int
    rows: int = 0
    row_counts: Counter[str] = field(default_factory=Counter)
    """Rows by figure; `leaks` are those that must not be trained on."""
    leaks: list[Leak] = field(default_factory=list)
    """The first of them."""
    leaked: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Questions by suite."""

    def add(self, row: RowTexts, matches: Iterable[QuestionMatch]) -> bool:
        """Add the matches of a row; return whether it leaks."""
        self.rows += 1
        matches = list(matches)
        for figure in {"exact" if match.rule == "parameters" else match.rule for match in matches}:
            self.row_counts[figure] += 1
        leaks = [match for match in matches if match.is_leak]
        if not leaks:
            return False
        self.row_counts["leaks"] += 1
        for match in leaks:
            self.leaked[match.question.suite].add(match.question.number)
            if len(self.leaks) < PAIRS_KEPT:
                self.leaks.append(Leak(row.place, match))
        return True

    def figures(self) -> dict[str, Any]:
        """Return the figures as a row."""
        return {
            "rows": self.rows,
            "questions": self.questions,
            **{figure: self.row_counts[figure] for figure in FIGURES},
            "leaks": self.row_counts["leaks"],
            "leaked_questions": self.leaked_questions(),
        }

    def leaked_questions(self) -> dict[str, int]:
        """Return how many questions of each suite are in the rows."""
        return {suite: len(numbers) for suite, numbers in sorted(self.leaked.items())}

    def metadata(self, allowed_by: str) -> dict[str, str]:
        """Return what the event of a version or data set records."""
        if not self.leaked:
            return {}
        return {CONTAMINATION: one_line(self.leaked_questions()), CONTAMINATION_ALLOWED_BY: allowed_by}

    def refuse(self, place: str, way_out: str) -> None:
        """Raise ContaminatedError, with the first pairs, if a row leaks."""
        if not self.leaked:
            return
        count = self.row_counts["leaks"]
        suites = ", ".join(f"{number} of suite {suite}" for suite, number in self.leaked_questions().items())
        pairs = "\n".join(f"  {leak}" for leak in self.leaks[:PAIRS_SHOWN])
        more = f"\n  and {count - PAIRS_SHOWN} more" if count > PAIRS_SHOWN else ""
        raise ContaminatedError(
            f"{place}: contaminated: {count} of {self.rows} rows give away held-out questions ({suites}), whose score "
            f"would then measure memory:\n{pairs}{more}\n{way_out}"
        )


def check_rows(index: SuiteIndex, rows: Iterable[RowTexts]) -> ContaminationReport:
    """Return what of the suites is in these rows."""
    report = ContaminationReport(len(index))
    for row in rows:
        report.add(row, index.matches(row))
    return report


def excerpt(text: str) -> str:
    """Return the beginning of a text in quotes, in one line."""
    line = " ".join(text.split())
    return one_line(line if len(line) <= EXCERPT else f"{line[: EXCERPT - 1]}…")
