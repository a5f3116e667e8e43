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
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from schemas.events import Coordinates
from streams.tools.audit.facts import AgreementFact, AuditFinding, AuditView, CurationFact
from streams.tools.audit.story import TaskOutcome

Source = Callable[[CurationFact], bool]
"""Whether the record that a verdict names is the end of its run."""
Table = tuple[int, int, int, int]
"""Promoted by person and judge, by the person alone, by the judge alone, by none."""
TOLERANCE = 1e-9
TABLE_CELLS = {("promote", "promote"): 0, ("promote", "reject"): 1, ("reject", "promote"): 2, ("reject", "reject"): 3}


def recount_curation(facts: Iterable[CurationFact], view: AuditView, is_end_of_run: Source) -> TaskOutcome:
    """Return what is wrong with verdicts, those of each partition in order."""
    outcome, counted = TaskOutcome(), list[CurationFact]()
    first: dict[str, CurationFact] = {}
    for fact in facts:
        known = first.setdefault(fact.event_id, fact)
        if known is not fact:
            outcome.findings.append(AuditFinding("repeated", fact.at, f"it has the id of {known.at}", accounted=True))
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


# --- the ends of runs -------------------------------------------------------------------------------------------------


def ends_of_runs(groups: Mapping[Coordinates, str], runs: Mapping[Coordinates, str]) -> Source:
    """Return the check of sources: `groups` by place with their task, ends of trajectories with their id."""

    def is_end_of_run(fact: CurationFact) -> bool:
        if fact.source in groups:
            return groups[fact.source] == fact.task_id
        return runs.get(fact.source) == fact.answer_id

    return is_end_of_run
