"""Recount the verdicts on runs: each is about a run that ended, follows from its gates, and is what its rule allows.

    curation of one task ──► the id of each from what it is about · the verdict that it supersedes before it
    groups, trajectories ──► the end of the run that it names
    gates ────────────────► passed or not, by value and bound
    curation of all ──────► a promotion of a judge: the pairs of people and judge before the offsets that it names,
                            kappa, and its interval

Two curators may judge a run at the same time, and a person may decide twice at once: of two verdicts with one id the
first counts, which is no mistake of the log.

Not covered: whether the transcript has the digest that a verdict names, and whether a judge said what is written.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from schemas.events import Coordinates, CurationEvent, TrajectoryEvent, derive_id
from streams.kafka.record import Record
from streams.tools.audit.facts import AuditFinding, RecountOutcome
from streams.tools.audit.subject import SubjectRecount
from streams.tools.audit.view import AuditView

Table = tuple[int, int, int, int]
"""Promoted by person and judge, by the person alone, by the judge alone, by none."""
TOLERANCE = 1e-9
TABLE_CELLS = {("promote", "promote"): 0, ("promote", "reject"): 1, ("reject", "promote"): 2, ("reject", "reject"): 3}


class AgreementFact(NamedTuple):
    """What a judge's promotion says that it rests on."""

    runs: int
    kappa: float
    low: float
    window: int
    counted: tuple[int, ...]
    """By partition: verdicts before this offset were counted."""

    def end_of(self, at: Coordinates) -> int:
        """Return the offset up to which the partition of a record was counted."""
        return self.counted[at.partition] if at.partition < len(self.counted) else 0


class CurationFact(NamedTuple):
    """A verdict on a run."""

    at: Coordinates
    event_id: str
    has_own_id: bool
    task_id: str
    answer_id: str
    created_at: int
    policy: str
    source: Coordinates
    verdict: str
    labeller: str
    measure: tuple[str, str]
    """Digests of rubric and transcript."""
    supersedes: str | None
    gates: tuple[tuple[str, float | None, float, bool], ...]
    """Name, value, bound, and whether it was passed."""
    judge: tuple[str, str, str] | None
    """Endpoint, model and prompt digest."""
    judge_policy: str | None
    judge_verdict: str | None
    """The judge's own."""
    agreement: AgreementFact | None


Source = Callable[[CurationFact], bool]
"""Whether the record that a verdict names is the end of its run."""


def recount_curation(facts: Iterable[CurationFact], view: AuditView, is_end_of_run: Source) -> RecountOutcome:
    """Return what is wrong with verdicts, those of each partition in order."""
    outcome, counted = RecountOutcome(), list[CurationFact]()
    first: dict[str, CurationFact] = {}
    for fact in facts:
        known = first.setdefault(fact.event_id, fact)
        if known is not fact:
            outcome.find("repeated", fact.at, f"it has the id of {known.at}", accounted=True)
        else:
            counted.append(fact)
    outcome.counts["verdicts"] = len(counted)
    by_run: dict[tuple[int, str], list[CurationFact]] = {}
    for fact in counted:
        before = by_run.setdefault((fact.at.partition, fact.answer_id), [])
        outcome.findings += _about_itself(fact)
        outcome.findings += _about_its_run(fact, before, view, is_end_of_run)
        before.append(fact)
    outcome.findings += _about_judges(counted, list(by_run.values()))
    return outcome


def _about_itself(fact: CurationFact) -> Iterator[AuditFinding]:
    if not fact.has_own_id:
        yield AuditFinding("phantom", fact.at, "its id is not that of its run, labeller, actor, rubric and transcript")
    for gate, value, bound, passed in fact.gates:
        if passed != (value is not None and (value >= bound if gate.startswith("min_") else value <= bound)):
            what = f"gate {gate} is {'passed' if passed else 'not passed'} with {value} and the bound {bound:g}"
            yield AuditFinding("contradictory", fact.at, what)


def _about_its_run(
    fact: CurationFact, before: list[CurationFact], view: AuditView, is_end_of_run: Source
) -> Iterator[AuditFinding]:
    topic, partition, offset = fact.source
    if offset >= view.reach.begins.get((topic, partition), 0):
        if not view.exists(fact.source):
            yield AuditFinding("phantom", fact.at, f"it is about {fact.source}, where there is no record")
        elif not is_end_of_run(fact):
            yield AuditFinding("contradictory", fact.at, f"{fact.source} is not the end of run {fact.answer_id}")
    is_cut = view.reach.cut(fact.at.topic, fact.at.partition)
    if fact.supersedes is not None and not is_cut and fact.supersedes not in {one.event_id for one in before}:
        yield AuditFinding("lost", fact.at, f"it supersedes {fact.supersedes}, which is not before it")


# --- promotions of a judge --------------------------------------------------------------------------------------------


def _about_judges(facts: list[CurationFact], runs: list[list[CurationFact]]) -> Iterator[AuditFinding]:
    for fact in facts:
        claim = fact.agreement
        if claim is None:
            continue
        if claim.end_of(fact.at) > fact.at.offset:
            yield AuditFinding("contradictory", fact.at, "it counts verdicts that come after it")
        if fact.judge_policy == fact.policy:
            yield AuditFinding("contradictory", fact.at, f"a version of {fact.policy} promotes a run of {fact.policy}")
        table = _table(fact, claim, runs)
        low = _low(table)
        differs = max(abs(claim.kappa - _kappa(table)), abs(claim.low - low)) > TOLERANCE
        if claim.runs != sum(table) or differs:
            what = (
                f"its judge agrees with people in {claim.runs} runs with kappa {claim.kappa:.3f} ({claim.low:.3f} or "
                f"more), as it says, and in {sum(table)} with {_kappa(table):.3f} ({low:.3f}) as the log says"
            )
            yield AuditFinding("contradictory", fact.at, what)


def _table(fact: CurationFact, claim: AgreementFact, runs: list[list[CurationFact]]) -> Table:
    """Return how often people and the judge of a verdict decided what, before the offsets that it counts."""
    pairs = []
    for verdicts in runs:
        earlier = [one for one in verdicts if one.at.offset < claim.end_of(one.at)]
        person = next((one for one in reversed(earlier) if one.labeller == "person"), None)
        machine = next((one for one in reversed(earlier) if one.labeller != "person"), None)
        if person is None or machine is None or machine.judge != fact.judge or machine.judge_policy == machine.policy:
            continue
        if person.measure == machine.measure and (person.verdict, machine.judge_verdict) in TABLE_CELLS:
            pairs.append((person.created_at, person.event_id, TABLE_CELLS[person.verdict, machine.judge_verdict or ""]))
    cells = Counter(cell for _, _, cell in sorted(pairs)[-claim.window :])
    return cells[0], cells[1], cells[2], cells[3]


def _kappa(table: Table) -> float:
    """Return Cohen's kappa, as 2 (ad - bc) / ((a + b)(b + d) + (a + c)(c + d)) of a table of two classes."""
    a, b, c, d = table
    denominator = (a + b) * (b + d) + (a + c) * (c + d)
    return 2 * (a * d - b * c) / denominator if denominator else 0.0


@lru_cache(maxsize=256)
def _low(table: Table) -> float:
    """Return the 2.5 % quantile of kappa over a thousand tables drawn from this one."""
    if not any(table):
        return -1.0
    source = random.Random(0)  # noqa: S311 - the seed of the rule
    kappas = []
    for _ in range(1000):
        cells = Counter(source.choices((0, 1, 2, 3), weights=table, k=sum(table)))
        kappas.append(_kappa((cells[0], cells[1], cells[2], cells[3])))
    return sorted(kappas)[25]


# --- all of them ------------------------------------------------------------------------------------------------------


class CurationRecount(SubjectRecount):
    """The recount of verdicts, and of the ends of runs that they are about."""

    labels, counts = ("curation", "trajectories"), ("verdicts",)

    def __init__(self) -> None:
        self._verdicts: list[CurationFact] = []
        self._ends: dict[Coordinates, str] = {}
        """The trajectory that ends there."""

    def take(self, record: Record, event: CurationEvent | TrajectoryEvent) -> None:
        """Take in a verdict, or the end of a trajectory."""
        if isinstance(event, CurationEvent):
            self._verdicts.append(_fact(record, event))
        elif event.kind == "ended":
            self._ends[record.at] = event.trajectory_id

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with verdicts; all of them count for the agreement of judges with people."""
        if not self._verdicts:
            return RecountOutcome()
        groups = {group.at: group.task_id for line in view.loop.policies.values() for group in line.groups}

        def is_end_of_run(fact: CurationFact) -> bool:
            if fact.source in groups:
                return groups[fact.source] == fact.task_id
            return self._ends.get(fact.source) == fact.answer_id

        outcome = recount_curation(self._verdicts, view, is_end_of_run)
        if policy is not None:
            of_policy = {fact.at for fact in self._verdicts if fact.policy == policy}
            outcome.findings = [finding for finding in outcome.findings if finding.at in of_policy]
        return outcome


def _fact(record: Record, event: CurationEvent) -> CurationFact:
    about = (event.rubric_digest, event.transcript_digest)
    own_id = derive_id(event.answer_id, event.labeller, event.actor, *about, event.supersedes or "")
    judge, claim = event.judge, event.agreement
    return CurationFact(
        at=record.at,
        event_id=event.event_id,
        has_own_id=event.event_id == own_id,
        task_id=event.task_id,
        answer_id=event.answer_id,
        created_at=event.created_at,
        policy=event.policy,
        source=Coordinates(event.source_topic, event.source_partition, event.source_offset),
        verdict=event.verdict,
        labeller=event.labeller,
        measure=about,
        supersedes=event.supersedes,
        gates=tuple((gate.gate, gate.value, gate.bound, gate.passed) for gate in event.gates),
        judge=None if judge is None else (judge.endpoint, judge.model, judge.prompt_digest),
        judge_policy=None if judge is None else judge.policy,
        judge_verdict=None if judge is None else judge.verdict,
        agreement=None
        if claim is None
        else AgreementFact(claim.runs, claim.kappa, claim.low, claim.window, claim.counted),
    )
