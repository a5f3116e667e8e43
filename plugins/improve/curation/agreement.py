"""Agreement of a judge with people, which decides whether it may promote runs alone.

    VerdictFold ──► runs that a person and the judge have decided ──► PairTable: 2 x 2 ──► kappa with its interval, AC1

                        judge promotes   judge rejects
    person promotes        both             missed           false rejections = missed / (both + missed)
    person rejects         false            neither          false promotions = false / (false + neither)

A pair has the same transcript, the same rubric and the same judge: endpoint, served model and prompt. A new model at
the same URL begins without pairs. A judge's `needs_human` is an abstention: it lowers the coverage, and nothing else.
Only the newest pairs count, so a judge that gets worse loses its right.

With 90 % good runs, a judge that always promotes agrees in 90 % of the cases, but its kappa is 0.

Not counted: a judge that is a version of the policy that it judges.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from plugins.improve.curation.verdicts import VerdictFold
from plugins.improve.settings import Improve
from schemas.events import AnnotationEvent, CurationEvent, CurationJudge, JudgeAgreement

RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 0
"""Of the resampling: the same table always has the same interval."""


class JudgeIdentity(NamedTuple):
    """Two judges with the same of these are one."""

    endpoint: str
    model: str
    prompt_digest: str

    @classmethod
    def of(cls, judge: CurationJudge) -> JudgeIdentity:
        """Return the identity of the judge of a verdict."""
        return cls(judge.endpoint, judge.model, judge.prompt_digest)


class PairTable(NamedTuple):
    """Runs that a person and a judge have decided."""

    both: int = 0
    """Promoted by both."""
    missed: int = 0
    """Promoted by the person, rejected by the judge."""
    false: int = 0
    """Rejected by the person, promoted by the judge."""
    neither: int = 0

    @property
    def runs(self) -> int:
        """How many there are."""
        return sum(self)

    @property
    def prevalence(self) -> float | None:
        """The share that people promote."""
        return _share(self.both + self.missed, self.runs)

    @property
    def false_promotions(self) -> float | None:
        """The share of what people reject that the judge promotes."""
        return _share(self.false, self.false + self.neither)

    @property
    def false_rejections(self) -> float | None:
        """The share of what people promote that the judge rejects."""
        return _share(self.missed, self.both + self.missed)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def kappa(table: PairTable) -> float:
    """Return Cohen's kappa of two raters; 0 where chance alone agrees always, and without a run.

        kappa = (p_o - p_e) / (1 - p_e)                            Cohen 1960, doi:10.1177/001316446002000104
        p_o = (both + neither) / n
        p_e = p_1 q_1 + (1 - p_1)(1 - q_1)                         p_1, q_1: the shares that each promotes

    >>> round(kappa(PairTable(both=20, missed=5, false=10, neither=15)), 3)
    0.4
    """
    if table.runs == 0:
        return 0.0
    observed = (table.both + table.neither) / table.runs
    person, judge = (table.both + table.missed) / table.runs, (table.both + table.false) / table.runs
    chance = person * judge + (1 - person) * (1 - judge)
    return (observed - chance) / (1 - chance) if chance < 1 else 0.0


def gwet_ac1(table: PairTable) -> float:
    """Return Gwet's AC1, whose chance agreement does not grow with the prevalence; 0 without a run.

        AC1 = (p_o - p_e) / (1 - p_e),  p_e = 2 q (1 - q)          Gwet 2008, doi:10.1348/000711006X126600
        q = (p_1 + q_1) / 2                                        the mean share that is promoted

    >>> round(gwet_ac1(PairTable(both=20, missed=5, false=10, neither=15)), 4)
    0.4059
    """
    if table.runs == 0:
        return 0.0
    observed = (table.both + table.neither) / table.runs
    mean = (2 * table.both + table.missed + table.false) / (2 * table.runs)
    chance = 2 * mean * (1 - mean)
    return (observed - chance) / (1 - chance)


@lru_cache(maxsize=256)
def kappa_interval(table: PairTable) -> tuple[float, float]:
    """Return the interval of kappa: the percentiles of tables that are drawn with replacement from this one.

    Efron & Tibshirani 1993, chapter 13. A resample in which all are of one class has kappa 0, which widens the interval
    where one class is rare. Without a run it is (-1, 1).
    """
    if table.runs == 0:
        return -1.0, 1.0
    draws = random.Random(SEED)  # noqa: S311 - statistics
    cells = range(len(table))
    values = []
    for _ in range(RESAMPLES):
        drawn = draws.choices(cells, weights=table, k=table.runs)
        values.append(kappa(PairTable(*(drawn.count(cell) for cell in cells))))
    values.sort()
    tail = (1 - CONFIDENCE) / 2
    low, high = math.floor(tail * RESAMPLES), math.ceil((1 - tail) * RESAMPLES) - 1
    return values[low], values[high]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How well one judge agrees with people, from its newest pairs."""

    judge: JudgeIdentity
    table: PairTable
    abstained: int = 0
    """Runs that a person decided, and the judge did not."""
    disputed: int = 0
    """Runs of the pairs about which people disagree; the newest counts."""

    @classmethod
    def none(cls, judge: CurationJudge) -> Agreement:
        """Return that of a judge with which no person has judged a run."""
        return cls(judge=JudgeIdentity.of(judge), table=PairTable())

    @property
    def coverage(self) -> float | None:
        """The share of people's decisions that the judge decided, too."""
        return _share(self.table.runs, self.table.runs + self.abstained)

    def evidence(self, rule: Improve, counted: tuple[int, ...]) -> JudgeAgreement:
        """Return what a promotion by this judge rests on; `counted`: verdicts before these offsets."""
        return JudgeAgreement(
            runs=self.table.runs,
            kappa=kappa(self.table),
            low=kappa_interval(self.table)[0],
            min_runs=rule.min_runs,
            min_kappa=rule.min_kappa,
            window=rule.window,
            counted=counted,
        )

    def doubt(self, rule: Improve, noun: str = "runs") -> str | None:
        """Return why this judge decides no run alone, or no row; None if it does."""
        if self.table.runs < rule.min_runs:
            return (
                f"the judge's agreement with people is not known yet: {self.table.runs} {noun} have both verdicts, "
                f"expected {rule.min_runs} (improve.min_runs)"
            )
        low, high = kappa_interval(self.table)
        if low >= rule.min_kappa:
            return None
        return (
            f"the judge agrees too little with people: kappa {kappa(self.table):.2f} ({low:.2f} to {high:.2f}) over "
            f"{self.table.runs} {noun}, expected {rule.min_kappa:g} or more at the lower end (improve.min_kappa)"
        )


class JudgedPair(NamedTuple):
    """A run, or a row of a file, that a person and the judge have judged."""

    person: CurationEvent | AnnotationEvent
    judge: CurationJudge
    is_disputed: bool
    """Whether people disagree."""


def agreements(fold: VerdictFold, window: int) -> dict[JudgeIdentity, Agreement]:
    """Return the agreement of every judge with people, from at most `window` newest pairs of each."""
    return measure(_pairs(fold), window)


def measure(pairs: Iterable[JudgedPair], window: int) -> dict[JudgeIdentity, Agreement]:
    """Return the agreement of every judge with people in these pairs, the newest `window` of each."""
    by_judge: defaultdict[JudgeIdentity, list[JudgedPair]] = defaultdict(list)
    for pair in pairs:
        by_judge[JudgeIdentity.of(pair.judge)].append(pair)
    return {judge: _agreement(judge, judged, window) for judge, judged in by_judge.items()}


def _pairs(fold: VerdictFold) -> Iterator[JudgedPair]:
    for answer_id in fold.person_run_ids:
        person, machine = (placed and placed.event for placed in fold.pair(answer_id))
        if person is None or machine is None or machine.judge is None or judges_itself(machine):
            continue
        is_same = person.transcript_digest == machine.transcript_digest
        if is_same and person.rubric_digest == machine.rubric_digest and person.verdict != "needs_human":
            yield JudgedPair(person, machine.judge, len(fold.opinions(answer_id)) > 1)


def judges_itself(event: CurationEvent) -> bool:
    """Return whether the judge of a verdict is a version of the policy that it judges."""
    return event.judge is not None and event.judge.policy == event.policy


def _agreement(judge: JudgeIdentity, pairs: Iterable[JudgedPair], window: int) -> Agreement:
    newest = sorted(pairs, key=lambda pair: (pair.person.created_at, pair.person.event_id))
    decided = [pair for pair in newest if pair.judge.verdict in ("promote", "reject")][-window:]
    cells: Mapping[tuple[str, str | None], str] = {
        ("promote", "promote"): "both",
        ("promote", "reject"): "missed",
        ("reject", "promote"): "false",
        ("reject", "reject"): "neither",
    }
    counts = dict.fromkeys(cells.values(), 0)
    for pair in decided:
        counts[cells[pair.person.verdict, pair.judge.verdict]] += 1
    return Agreement(
        judge=judge,
        table=PairTable(**counts),
        abstained=sum(pair.judge.verdict not in ("promote", "reject") for pair in newest[-window:]),
        disputed=sum(pair.is_disputed for pair in decided),
    )
