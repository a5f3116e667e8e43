"""Each way in which curation is known to go wrong has a measure, and a test that fails as soon as that is taken away.

the measure replaced by the naive way ──► its test, called as it is ──► it fails, with an assertion
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from plugins.improve.curation import agreement, ended_run, gates
from plugins.improve.curation.agreement import JudgeIdentity, PairTable
from plugins.improve.curation.transcript import Transcript, transcript_of
from plugins.improve.curation.verdicts import VerdictFold
from plugins.improve.curation.verifier import VerifierAgent
from streams.scorers import judge_client
from tests.plugins.improve import test_agreement, test_curation
from tests.support.doubles.judge import judging, says

Proof = Callable[[], None]
Sabotage = Callable[[pytest.MonkeyPatch], None]


def with_judge(test: Callable[..., None], *arguments: Any) -> Proof:
    """Return a test that needs a judge, with one that promotes."""

    def proof() -> None:
        with judging(says(test_curation.PROMOTE)) as judge:
            test(judge, *arguments)

    return proof


def raw_agreement(patch: pytest.MonkeyPatch) -> None:
    def share(table: PairTable) -> float:
        return (table.both + table.neither) / table.runs

    patch.setattr(agreement, "kappa", share)
    agreement.kappa_interval.cache_clear()


def counts_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(agreement, "judges_itself", lambda event: False)


def knows_no_policy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VerifierAgent, "_own_version", lambda self, model: (None, None))


def quotations_count(patch: pytest.MonkeyPatch) -> None:
    numbers = count()
    patch.setattr(judge_client, "_bare", lambda text: str(next(numbers)) + "x")


def lines_are_plain_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("plugins.improve.curation.verifier.token_hex", lambda size: "0" * 16)


def silently_cut(patch: pytest.MonkeyPatch) -> None:
    def cut(*arguments: Any) -> Transcript:
        return dataclasses.replace(transcript_of(*arguments), cut=())

    patch.setattr(ended_run, "transcript_of", cut)


def length_is_free(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(gates.FIGURES, "max_sampled_tokens", lambda row: 0)  # type: ignore[arg-type]


def first_person_counts(patch: pytest.MonkeyPatch) -> None:
    take = VerdictFold.take

    def keep_first(self: VerdictFold, at: Any, event: Any) -> None:
        if event.labeller != "person" or not self.by_person(event.answer_id):
            take(self, at, event)

    patch.setattr(VerdictFold, "take", keep_first)


def judge_is_its_url(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JudgeIdentity, "of", classmethod(lambda cls, judge: cls(judge.endpoint, "", "")))


AGREEMENT, CURATION = test_agreement, test_curation
FAILURES: dict[str, tuple[Sabotage, Proof]] = {
    "a judge that always promotes agrees often": (
        raw_agreement,
        AGREEMENT.test_a_judge_that_always_promotes_agrees_often_and_knows_nothing,
    ),
    "a judge is counted on runs of its own policy": (
        counts_itself,
        AGREEMENT.test_a_judge_that_is_a_version_of_the_policy_it_judges_is_not_counted,
    ),
    "a judge promotes runs of its own policy": (
        knows_no_policy,
        with_judge(CURATION.test_a_judge_that_is_a_version_of_the_policy_it_judges_is_named_and_promotes_nothing),
    ),
    "a transcript dictates its verdict": (
        quotations_count,
        with_judge(
            CURATION.test_a_transcript_that_orders_the_judge_to_promote_is_not_promoted_by_that, CURATION.ORDERS[0]
        ),
    ),
    "a transcript closes the tags around it": (
        lines_are_plain_text,
        with_judge(CURATION.test_all_that_a_run_says_is_between_tags_that_it_cannot_close, CURATION.ORDERS[2]),
    ),
    "a cut hides the turn that failed": (
        silently_cut,
        with_judge(CURATION.test_a_run_whose_transcript_was_cut_is_promoted_by_no_machine),
    ),
    "answers grow longer with every round": (
        length_is_free,
        CURATION.test_answers_that_grow_longer_are_stopped_by_their_gate,
    ),
    "two people disagree": (
        first_person_counts,
        AGREEMENT.test_of_two_people_who_disagree_the_newest_counts_and_that_they_do_is_shown,
    ),
    "the model changes behind a URL": (
        judge_is_its_url,
        AGREEMENT.test_another_model_at_the_same_url_starts_without_a_pair,
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_without_its_measure_a_failure_of_curation_is_noticed(failure: str) -> None:
    sabotage, proof = FAILURES[failure]
    proof()
    with pytest.MonkeyPatch.context() as patch:
        sabotage(patch)
        with pytest.raises((AssertionError, ValueError)):
            proof()
    agreement.kappa_interval.cache_clear()
