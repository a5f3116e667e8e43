"""Which failed scores are final, and when a scorer is paused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.events import Coordinates, RewardSource
from streams.kafka.consumer import OffsetTracker
from streams.kafka.record import Record
from streams.kafka.tracked import TakenRecord
from streams.scorers import ScoreOutcome
from streams.settings.model import Advantages, Scoring
from streams.stages.scoring.breaker import CircuitBreaker, counts, is_tasks_fault, pause_message, scorer_of
from streams.stages.scoring.siblings import SIBLINGS_WAIT_S, Item, Siblings
from tests.support.factories import response, task

SHORT = RewardSource(name="my_scorers:short")
MIX = RewardSource(name="mix", settings=json.dumps({"of": [{"name": "exact"}, {"name": SHORT.name}]}))


def failure(reason: str = "exception") -> ScoreOutcome:
    return ScoreOutcome(value=None, error=reason, reason=reason, version="short/1", latency_ms=1.0, tries=1)


# --- pausing ----------------------------------------------------------------------------------------------------------


def test_a_scorer_is_paused_after_so_many_failures_in_a_row_and_its_first_one_is_reported_once() -> None:
    breaker = CircuitBreaker(Scoring(max_failures=3, pause_s=10))
    said = [breaker.note("s", now=0, failed=failed) for failed in (True, True, False, True, True)]
    assert said == ["failing", None, None, None, None] and not breaker.is_paused("s")
    assert breaker.note("s", now=0, failed=True) == "paused" and breaker.is_paused("s")
    assert not breaker.is_paused("another")


def test_a_paused_scorer_is_tried_once_in_each_pause_and_continues_when_it_works() -> None:
    breaker = CircuitBreaker(Scoring(max_failures=1, pause_s=10))
    assert breaker.note("s", now=0, failed=True) == "paused"
    assert (breaker.due(9), breaker.due(10)) == ([], ["s"])
    breaker.begin_trial("s")
    assert breaker.due(11) == [], "one trial at a time"
    assert breaker.note("s", now=12, failed=True) is None
    assert (breaker.due(21), breaker.due(22)) == ([], ["s"])
    breaker.begin_trial("s")
    assert breaker.note("s", now=23, failed=False) == "resumed" and not breaker.is_paused("s")


def test_a_trial_that_tells_nothing_about_the_scorer_is_followed_by_another() -> None:
    breaker = CircuitBreaker(Scoring(max_failures=1, pause_s=10))
    breaker.note("s", now=0, failed=True)
    breaker.begin_trial("s")
    breaker.pass_over("s", now=11)
    assert breaker.due(11) == ["s"] and breaker.is_paused("s")
    breaker.pass_over("another", now=11)


def test_what_no_other_response_would_change_pauses_at_the_first_failure() -> None:
    breaker = CircuitBreaker(Scoring(max_failures=20, pause_s=10))
    assert breaker.note("judge", 0.0, failed=True, for_good=True) == "paused"
    spent = ScoreOutcome(value=None, error="e", reason="judge_budget", version="judge/3 m", latency_ms=1.0, tries=1)
    assert "It would fail on every response, until there is budget again" in pause_message("judge", spent, Scoring())


def test_without_a_limit_no_scorer_is_paused() -> None:
    breaker = CircuitBreaker(Scoring(max_failures=0))
    assert {breaker.note("s", now=0, failed=True) for _ in range(100)} == {"failing", None}


def test_a_mix_is_paused_for_its_parts_that_can_fail() -> None:
    assert scorer_of(MIX) == scorer_of(SHORT) == "my_scorers:short"
    assert scorer_of(RewardSource(name="exact")) == "exact"


@pytest.mark.parametrize(
    ("source", "reason", "fault"),
    [
        (RewardSource(name="exakt"), "unknown_scorer", True),
        (RewardSource(name="exact"), "bad_verifier", True),
        (SHORT, "unknown_scorer", False),
        (MIX, "unknown_scorer", False),
        (SHORT, "exception", False),
        (RewardSource(name="judge"), "judge_unreachable", False),
        (RewardSource(name="judge"), "timeout", False),
        (RewardSource(name="regex", settings='{"pattern": "(a+)+"}'), "timeout", True),
        (SHORT, "timeout", False),
        (SHORT, "too_slow", False),
    ],
)
def test_what_only_another_task_can_repair_pauses_no_scorer(source: RewardSource, reason: str, fault: bool) -> None:
    assert is_tasks_fault(source, failure(reason)) is fault


def test_a_task_that_takes_too_long_pauses_no_scorer_by_its_other_responses() -> None:
    assert [counts(SHORT, failure(reason)) for reason in ("timeout", "too_slow", "exception")] == [True, False, True]
    assert not counts(RewardSource(name="regex"), failure("timeout"))


# --- final or not -----------------------------------------------------------------------------------------------------


def an_item(slot: int, *, failed: bool = False, slots: int = 4) -> Item:
    """Return a response whose score is known."""
    record = Record(Coordinates("responses", 0, slot), 0, b"t1", b"")
    item = Item(TakenRecord(record, OffsetTracker()), response(slot=slot, group_size=slots), task(group_size=slots))
    item.failed, item.has_value = [(SHORT, failure())] if failed else [], not failed
    return item


def settled(siblings: Siblings, *items: Item, after_s: float = 0.0) -> dict[int, bool]:
    """Return, by slot, whether the failed scores of these responses are final."""
    for item in items:
        siblings.add(item)
    now = max(item.began for item in items) + after_s
    return {item.response.slot: final for item, final in siblings.settled(now)}


def all_there(*items: Item) -> dict[int, bool]:
    return settled(Siblings(Advantages(), lambda _: True), *items)


def test_a_failed_score_is_final_if_its_siblings_have_no_score_that_could_be_compared() -> None:
    silent = [an_item(slot, failed=True) for slot in range(3)]
    for item in silent:  # no scorer has an opinion of them
        item.failed = []
    assert all_there(*silent, an_item(3, failed=True)) == {3: True}
    assert all_there(*silent[:2], an_item(2, failed=True), an_item(3, failed=True)) == {2: False, 3: False}


def test_a_failed_score_is_final_if_its_group_can_do_without_it() -> None:
    assert all_there(an_item(0), an_item(1), an_item(2, failed=True), an_item(3, failed=True)) == {2: True, 3: True}


def test_a_group_with_too_few_scores_waits_for_those_that_failed() -> None:
    assert all_there(an_item(0), *(an_item(slot, failed=True) for slot in (1, 2, 3))) == {1: False, 2: False, 3: False}


def test_nothing_is_settled_while_a_sibling_is_still_scored() -> None:
    siblings = Siblings(Advantages(), lambda _: True)
    running = an_item(3)
    running.sources_left = 1
    assert settled(siblings, *(an_item(slot, failed=True) for slot in range(3)), running, after_s=100) == {}
    running.sources_left = 0
    assert [final for _, final in siblings.settled(running.began + 100)] == [False] * 3


def test_a_sampling_with_slots_that_were_not_read_is_settled_after_a_while() -> None:
    siblings = Siblings(Advantages(), lambda _: True)
    alone = an_item(0, failed=True)
    assert settled(siblings, alone) == {}
    later = alone.began + SIBLINGS_WAIT_S + 1
    assert [final for _, final in siblings.settled(later)] == [False]
    assert list(siblings.settled(later)) == []


@pytest.mark.parametrize(
    ("rule", "changes", "waits"),
    [
        ({}, {}, True),
        ({}, {"purpose": "eval"}, False),
        ({}, {"group_size": 1}, False),
        ({"deadline_s": 0}, {}, False),
        ({"deadline_s": 0}, {"deadline_at": 1}, True),
    ],
)
def test_only_a_group_that_could_be_made_by_its_deadline_waits(
    rule: dict[str, Any], changes: dict[str, Any], waits: bool
) -> None:
    assert Siblings(Advantages(**rule), lambda _: True).can_wait(task(**changes)) is waits
