"""Find the first version at which a behaviour is more frequent than at a good one.

    shares by question ──► Evidence of a version against the good one ──► more | not | open ──► which version is next
                                                                                        └──► VersionSearch.turning

Each comparison is a confidence sequence (streams/evaluation/sequential.py), so it may be looked at after every answer.
The i-th version that is compared has alpha / (i (i + 1)), and these add up to at most alpha: with probability
1 - alpha no version is called more frequent that is not, however many are compared and however often.

Assumed: once more frequent, it stays so between good and bad. A behaviour that comes and goes has several turning
versions, and one of them is found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from streams.evaluation import sequential
from streams.evaluation.sequential import Arm, ArmPair, ConfidenceSequence

ALPHA = 0.05
Origin = Literal["recorded", "sampled"]
Finding = Literal["more", "not", "open"]


class Mark(NamedTuple):
    """Whether an answer shows the behaviour."""

    version: int
    task_id: str
    shows: bool


@dataclass(slots=True)
class Shares:
    """The share of answers with the behaviour to each question, by origin and version."""

    answers: dict[tuple[Origin, int], dict[str, list[bool]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, origin: Origin, marks: Iterable[Mark]) -> None:
        """Take in answers."""
        for mark in marks:
            self.answers[origin, mark.version][mark.task_id].append(mark.shows)

    def arm(self, origin: Origin, version: int) -> Arm:
        """Return a version's shares: one number a question, since answers to one question are alike."""
        arm = Arm()
        for shows in self.answers.get((origin, version), {}).values():
            arm = arm.add(sum(shows) / len(shows))
        return arm

    def counts(self, version: int) -> tuple[int, int]:
        """Return how many answers of a version show the behaviour, and how many there are."""
        of_version = [
            shows
            for (_, number), by_task in self.answers.items()
            if number == version
            for answers in by_task.values()
            for shows in answers
        ]
        return sum(of_version), len(of_version)


def compare(shares: Shares, version: int, good: int, alpha: float) -> ConfidenceSequence | None:
    """Return the difference in share of a version to the good one, or None if there are too few answers.

    Recorded answers are compared with recorded ones, and sampled ones, to the same questions, with sampled ones.
    """
    origins: tuple[Origin, ...] = ("recorded", "sampled")
    pairs = [ArmPair(shares.arm(origin, version), shares.arm(origin, good)) for origin in origins]
    return sequential.interval(pairs, alpha)


def finding_of(difference: ConfidenceSequence | None, least_rise: float) -> Finding:
    """Return what a difference says: more frequent, not more frequent by `least_rise`, or neither yet."""
    if difference is None:
        return "open"
    if difference.low > 0:
        return "more"
    return "not" if difference.high < least_rise else "open"


class Turning(NamedTuple):
    """Where the behaviour began: the first version is one of these, ends included."""

    first: int
    last: int
    """The first version that is known to show it more often."""


@dataclass(slots=True)
class VersionSearch:
    """The search between a good and a bad version. `next`, look at that version, `note`, again."""

    good: int
    bad: int
    least_rise: float
    alpha: float = ALPHA
    shares: Shares = field(default_factory=Shares)
    order: list[int] = field(default_factory=list)
    """Versions in the order in which they were compared."""
    findings: dict[int, Finding] = field(default_factory=dict)

    def look(self, version: int) -> Finding:
        """Return the finding about a version by now."""
        if version not in self.order:
            self.order.append(version)
        self.findings[version] = finding_of(self.difference(version), self.least_rise)
        return self.findings[version]

    def difference(self, version: int) -> ConfidenceSequence | None:
        """Return the difference of a version that was looked at to the good one."""
        number = self.order.index(version) + 1
        return compare(self.shares, version, self.good, self.alpha / (number * (number + 1)))

    def next(self) -> int | None:
        """Return the version to look at next, the bad one first; None at the end."""
        if self.bad not in self.findings:
            return self.bad
        if self.findings[self.bad] != "more":
            return None
        low, high = self._bounds()
        unseen = [version for version in range(low + 1, high) if version not in self.findings]
        return unseen[len(unseen) // 2] if unseen else None

    @property
    def turning(self) -> Turning | None:
        """Where it began, by the findings so far; None if it is not more frequent at the bad version."""
        if self.findings.get(self.bad) != "more":
            return None
        low, high = self._bounds()
        return Turning(low + 1, high)

    def _bounds(self) -> tuple[int, int]:
        high = min(version for version, finding in self.findings.items() if finding == "more")
        below = (version for version, finding in self.findings.items() if finding == "not" and version < high)
        return max(below, default=self.good), high


def rows(search: VersionSearch) -> list[dict[str, Any]]:
    """Return a row for each version from good to bad: answers, share, and what was found."""
    table: list[dict[str, Any]] = []
    for version in range(search.good, search.bad + 1):
        showing, answers = search.shares.counts(version)
        row: dict[str, Any] = {
            "version": version,
            "answers": answers,
            "share": showing / answers if answers else None,
            "finding": search.findings.get(version),
        }
        difference = search.difference(version) if version in search.order else None
        row |= {"low": difference and difference.low, "high": difference and difference.high}
        table.append(row)
    return table
