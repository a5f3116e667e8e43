"""The report of a recount: findings, counts and the sums that must balance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self, get_args

from streams.tools.audit.facts import AuditFinding, Category
from streams.tools.audit.subject import RecountSum, SubjectRecount

CATEGORIES: tuple[Category, ...] = get_args(Category)
LOOP_COUNTS = ("tasks", "responses", "rewards", "groups", "batches", "adapters")
LOOP_SUMS = (
    RecountSum(
        "slots of all tasks",
        ("slots",),
        {"answered": "answered", "failed": "failed", "unanswered": "unanswered", "open": "slots open"},
    ),
    RecountSum(
        "answers × reward sources",
        ("to score",),
        {"scored": "scored", "abstained": "abstained", "failed": "failed scores", "left out or open": "without score"},
    ),
    RecountSum("tasks", ("tasks",), {"groups": "groups kept", "dropped": "dropped", "open": "tasks open"}),
    RecountSum(
        "train groups",
        ("train groups",),
        {
            "trained": "groups trained",
            "in batches": "groups in batches",
            "dropped": "groups dropped",
            "in the window": "groups waiting",
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a recount."""

    findings: tuple[AuditFinding, ...]
    counts: Counter[str]
    in_flight: Counter[str]
    """What is still to come: tasks without group, rewards, groups in a window, batches to train, events that wait."""
    dead_letters: Counter[str]
    """By reason, each stage's dead letter about a record once."""
    refused_adapters: Counter[str]
    """Of these, by reason: versions that an agent would not serve."""
    headers_left_out: int = 0
    """Records with unreadable headers, because a name is not UTF-8 (streams/kafka/headers.py)."""
    recounts: tuple[type[SubjectRecount], ...] = ()
    """Those of subjects, which have sums and counts of their own."""

    def including(self, findings: Iterable[AuditFinding], counts: Counter[str]) -> Self:
        """Return this report with further findings and counts."""
        return replace(self, findings=(*self.findings, *findings), counts=self.counts + counts)

    @property
    def wrong(self) -> list[AuditFinding]:
        """What does not add up, first of all."""
        return [finding for finding in self.findings if not finding.accounted]

    @property
    def imbalance(self) -> int:
        """How many records do not add up."""
        return len(self.wrong)

    @property
    def balanced(self) -> bool:
        """Whether all does."""
        return not self.wrong

    def of(self, category: Category) -> list[AuditFinding]:
        """Return the findings of one category."""
        return [finding for finding in self.findings if finding.category == category]

    def equations(self) -> list[tuple[str, str, bool]]:
        """Return each sum as (what is added up, the sum with its numbers, whether it comes out)."""
        sums = [*LOOP_SUMS, *(one for recount in self.recounts for one in recount.sums)]
        return [self._equation(one) for one in sums if not one.shown_with or self.counts[one.shown_with]]

    def _equation(self, one: RecountSum) -> tuple[str, str, bool]:
        total = sum(self.counts[name] for name in one.total)
        parts = {name: self.counts[count] for name, count in one.parts.items()}
        text = " + ".join(f"{count} {name}" for name, count in parts.items())
        return one.what, f"{total} = {text}", total == sum(parts.values())

    def main_counts(self) -> dict[str, int]:
        """Return how many there are of what a reader looks for first."""
        names = [*LOOP_COUNTS, *(name for recount in self.recounts for name in recount.counts)]
        return {name: self.counts[name] for name in names}

    def plain(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        whole: dict[str, Any] = dict(self.main_counts())
        for category in CATEGORIES:
            whole[category] = [
                {"at": str(found.at), "what": found.what, "accounted": found.accounted} for found in self.of(category)
            ]
        return whole | {
            "outside": self.counts["outside"],
            "headers_left_out": self.headers_left_out,
            "dead_letters": dict(sorted(self.dead_letters.items())),
            "in_flight": {name: count for name, count in sorted(self.in_flight.items()) if count},
            "sums": {what: text for what, text, _ in self.equations()},
            "imbalance": self.imbalance,
            "balanced": self.balanced,
        }
