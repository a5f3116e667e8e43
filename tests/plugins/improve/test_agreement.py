"""How well a judge agrees with people: the figures against numbers worked out by hand and a second implementation."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plugins.improve.curation.agreement import (
    Agreement,
    JudgeIdentity,
    PairTable,
    agreements,
    gwet_ac1,
    kappa,
    kappa_interval,
)
from plugins.improve.curation.verdicts import VerdictFold
from plugins.improve.settings import Improve
from schemas.events import Coordinates, CurationEvent, RunVerdict, derive_id
from tests.plugins.improve.runs import judge_of
from tests.support.factories import T0, curation_event
from tests.support.thoroughness import examples

RULE = Improve()
TABLES = st.builds(PairTable, *[st.integers(0, 30)] * 4).filter(lambda table: table.runs > 0)


class Verdicts:
    """A fold, and the verdicts that it was made of."""

    def __init__(self) -> None:
        self.fold = VerdictFold()
        self._count = 0

    def add(self, run: str, **changes: Any) -> CurationEvent:
        self._count += 1
        whole: dict[str, Any] = {
            "task_id": run,
            "answer_id": run,
            "event_id": derive_id("verdict", self._count),
            "created_at": T0 + self._count,
        }
        event = curation_event(**whole | changes)
        self.fold.take(Coordinates("curation", 0, self._count), event)
        return event

    def judged(self, run: str, says: RunVerdict | None, **of_judge: Any) -> None:
        """The judge is not known yet, so its promotions wait for a person."""
        verdict = "reject" if says == "reject" else "needs_human"
        opinion = judge_of(verdict=says, **of_judge)
        self.add(run, labeller="judge", actor="curate", verdict=verdict, judge=opinion)

    def of(self, person: RunVerdict, says: RunVerdict | None, count: int, **of_judge: Any) -> None:
        for _ in range(count):
            run = f"run-{self._count}"
            self.judged(run, says, **of_judge)
            self.add(run, verdict=person)

    def measured(self, window: int = 100) -> Agreement:
        [agreement] = agreements(self.fold, window).values()
        return agreement


# --- the figures ------------------------------------------------------------------------------------------------------


def test_kappa_of_the_textbook_table_is_two_fifths() -> None:
    assert kappa(PairTable(both=20, missed=5, false=10, neither=15)) == pytest.approx(0.4)


def test_ac1_of_the_textbook_table() -> None:
    # p_o = 0.7; the mean share of promotions is (25 + 30) / 100 = 0.55, so p_e = 2 * 0.55 * 0.45 = 0.495
    assert gwet_ac1(PairTable(20, 5, 10, 15)) == pytest.approx((0.7 - 0.495) / (1 - 0.495))


def second_kappa(table: PairTable) -> float:
    """Cohen's kappa from the list of pairs: 1 minus observed over expected disagreement."""
    pairs = [(1, 1)] * table.both + [(1, 0)] * table.missed + [(0, 1)] * table.false + [(0, 0)] * table.neither
    observed = sum(first != second for first, second in pairs)
    expected = sum(first != second for first, _ in pairs for _, second in pairs) / len(pairs)
    return 1 - observed / expected if expected else 0.0


@given(TABLES)
def test_kappa_is_that_of_a_second_implementation(table: PairTable) -> None:
    assert kappa(table) == pytest.approx(second_kappa(table), abs=1e-9)


@given(TABLES)
def test_the_interval_holds_kappa_or_is_of_a_class_that_is_rare_and_is_always_the_same(table: PairTable) -> None:
    low, high = kappa_interval(table)
    assert -1 <= low <= high <= 1
    kappa_interval.cache_clear()
    assert kappa_interval(table) == (low, high)


def test_the_interval_is_that_of_a_second_bootstrap_over_the_pairs() -> None:
    table = PairTable(both=40, missed=6, false=4, neither=30)
    pairs = [(1, 1)] * 40 + [(1, 0)] * 6 + [(0, 1)] * 4 + [(0, 0)] * 30
    values = []
    count = examples(2000)
    for seed in range(count):
        drawn = random.Random(seed).choices(pairs, k=len(pairs))
        values.append(second_kappa(PairTable(*(drawn.count(pair) for pair in [(1, 1), (1, 0), (0, 1), (0, 0)]))))
    values.sort()
    low, high = kappa_interval(table)
    assert (low, high) == (
        pytest.approx(values[count // 40], abs=0.03),
        pytest.approx(values[-1 - count // 40], abs=0.03),
    )


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    # people promote half; the judge agrees in 9 of 10 cases: kappa is 0.8
    draws, covered, count = random.Random(1), 0, examples(400)
    for _ in range(count):
        table = PairTable(*(draws.choices(range(4), weights=[45, 5, 5, 45], k=100).count(cell) for cell in range(4)))
        low, high = kappa_interval(table)
        covered += low <= 0.8 <= high
    assert covered >= 0.9 * count


@given(TABLES)
def test_shares_of_a_table_are_those_of_its_cells(table: PairTable) -> None:
    people = table.both + table.missed
    assert table.prevalence == people / table.runs
    assert table.false_rejections == (table.missed / people if people else None)
    assert table.false_promotions == (table.false / (table.runs - people) if table.runs > people else None)


# --- which runs count -------------------------------------------------------------------------------------------------


def test_a_judge_that_always_promotes_agrees_often_and_knows_nothing() -> None:
    verdicts = Verdicts()
    verdicts.of("promote", "promote", 90)
    verdicts.of("reject", "promote", 10)
    measured = verdicts.measured()
    assert (measured.table, kappa(measured.table)) == (PairTable(both=90, false=10), 0.0)
    doubt = measured.doubt(RULE)
    assert doubt is not None and "agrees too little with people: kappa 0.00" in doubt
    verdicts = Verdicts()
    verdicts.of("promote", "promote", 100)
    assert verdicts.measured().doubt(RULE) is not None, "in 100 of 100 cases, and nothing is known of bad runs"


def test_a_judge_may_promote_alone_from_fifty_runs_that_agree() -> None:
    verdicts = Verdicts()
    verdicts.of("promote", "promote", 25)
    verdicts.of("reject", "reject", 24)
    doubt = verdicts.measured().doubt(RULE)
    assert doubt is not None and "49 runs have both verdicts, expected 50" in doubt
    verdicts.of("reject", "reject", 1)
    assert verdicts.measured().doubt(RULE) is None
    verdicts.of("promote", "reject", 9)
    doubt = verdicts.measured().doubt(RULE)
    assert doubt is not None and "over 59 runs, expected 0.6 or more at the lower end" in doubt


def test_another_model_at_the_same_url_starts_without_a_pair() -> None:
    verdicts = Verdicts()
    verdicts.of("promote", "promote", 30)
    verdicts.of("reject", "reject", 30)
    verdicts.of("reject", "reject", 1, model="judge-2")
    verdicts.of("reject", "reject", 2, prompt_digest="f" * 64)
    by_judge = agreements(verdicts.fold, 100)
    first = JudgeIdentity("http://judge/v1", "judge-1", "e" * 64)
    assert {identity: measured.table.runs for identity, measured in by_judge.items()} == {
        first: 60,
        first._replace(model="judge-2"): 1,
        first._replace(prompt_digest="f" * 64): 2,
    }
    assert by_judge[first].doubt(RULE) is None
    assert by_judge[first._replace(model="judge-2")].doubt(RULE) is not None


def test_a_judge_that_is_a_version_of_the_policy_it_judges_is_not_counted() -> None:
    verdicts = Verdicts()
    verdicts.of("promote", "promote", 60, policy="p", version=3)
    assert agreements(verdicts.fold, 100) == {}
    verdicts.of("promote", "promote", 60, policy="another", version=3)
    assert verdicts.measured().table.runs == 60


def test_a_pair_is_about_one_transcript_and_one_rubric() -> None:
    verdicts = Verdicts()
    for number, changes in enumerate([{}, {"transcript_digest": "0" * 64}, {"rubric_digest": "0" * 64}]):
        verdicts.judged(f"run-{number}", "promote")
        verdicts.add(f"run-{number}", **changes)
    verdicts.add("never judged")
    assert verdicts.measured().table == PairTable(both=1)


def test_a_judge_that_does_not_decide_abstains_and_a_person_who_does_not_is_no_pair() -> None:
    verdicts = Verdicts()
    verdicts.of("promote", "needs_human", 2)
    verdicts.of("reject", None, 1)
    verdicts.of("promote", "promote", 1)
    verdicts.of("needs_human", "promote", 5)
    measured = verdicts.measured()
    assert (measured.table.runs, measured.abstained, measured.coverage) == (1, 3, 0.25)


def test_of_two_people_who_disagree_the_newest_counts_and_that_they_do_is_shown() -> None:
    verdicts = Verdicts()
    verdicts.judged("run", "promote")
    verdicts.add("run", actor="ann", verdict="promote")
    verdicts.add("run", actor="bob", verdict="reject")
    measured = verdicts.measured()
    assert (measured.table, measured.disputed) == (PairTable(false=1), 1)
    assert verdicts.fold.opinions("run") == {"promote", "reject"}
    verdicts.add("run", actor="ann", verdict="reject")
    assert (verdicts.measured().table, verdicts.measured().disputed) == (PairTable(false=1), 0)


def test_a_judge_that_gets_worse_loses_its_right_since_only_the_newest_pairs_count() -> None:
    verdicts = Verdicts()
    verdicts.of("promote", "promote", 200)
    verdicts.of("reject", "reject", 200)
    verdicts.of("promote", "promote", 20)
    verdicts.of("reject", "promote", 20)
    assert verdicts.measured(window=10_000).doubt(RULE) is None
    assert verdicts.measured(window=50).doubt(RULE) is not None


def test_a_persons_verdict_stands_above_a_machines_that_came_later() -> None:
    verdicts = Verdicts()
    said = verdicts.add("run", verdict="reject")
    verdicts.judged("run", "promote")
    effective = verdicts.fold.effective("run")
    assert effective is not None and effective.event == said
    person, machine = verdicts.fold.pair("run")
    assert person is not None and machine is not None and machine.event.verdict == "needs_human"


def test_evidence_says_what_was_counted() -> None:
    table = PairTable(45, 2, 3, 50)
    measured = Agreement(judge=JudgeIdentity.of(judge_of()), table=table)
    evidence = measured.evidence(RULE, (3, 0))
    assert (evidence.runs, evidence.counted, evidence.min_runs, evidence.min_kappa) == (100, (3, 0), 50, 0.6)
    assert math.isclose(evidence.kappa, kappa(table)) and evidence.low == kappa_interval(table)[0]
