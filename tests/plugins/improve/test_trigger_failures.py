"""Each way in which triggers and self-play are known to go wrong has a measure, and a test that fails without it.

the measure replaced by the naive way ──► its test, called as it is ──► it fails, with an assertion
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from plugins.improve.selfplay import curriculum
from plugins.improve.triggers import detector, retrain_reducer, rule_state, run_questions
from plugins.improve.triggers.detector import Detector
from plugins.improve.triggers.evidence import RuleEvidence
from plugins.improve.triggers.rule_state import RuleState
from schemas.events import Coordinates, TriggerEvent
from streams.stages.rollouts import guard
from tests.plugins.improve import test_selfplay, test_triggers

Proof = Callable[[], None]
Sabotage = Callable[[pytest.MonkeyPatch], None]
tick_event, draws, due, fold_value = retrain_reducer.tick_event, curriculum.draws, retrain_reducer.due, detector.fold


def looks_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "tests.plugins.improve.benchmarks.triggers.THRESHOLD", 20.0
    )  # 1 / 0.05, as for a test that is looked at once


def last_writer_counts(patch: pytest.MonkeyPatch) -> None:
    def fold(state: RuleState, event: TriggerEvent, place: Coordinates) -> RuleState:
        if event.kind == "ticked":
            return dataclasses.replace(state, sequence=state.sequence + 1, tick=event, ticks=state.ticks + 1)
        return dataclasses.replace(state, sequence=state.sequence + 1, crossing=event, crossings=state.crossings + 1)

    patch.setattr(rule_state, "fold", fold)


def makes_up_for_all(patch: pytest.MonkeyPatch) -> None:
    def each_tick(state: RuleState, schedule: Any, now_ms: int, **about: Any) -> TriggerEvent | None:
        following = state.last_tick_ms + schedule.period_ms
        return tick_event(state, schedule, min(now_ms, following) if state.ticks else now_ms, **about)

    patch.setattr(retrain_reducer, "tick_event", each_tick)


def trusts_the_clock(patch: pytest.MonkeyPatch) -> None:
    def other_tick(state: RuleState, schedule: Any, now_ms: int, **about: Any) -> TriggerEvent | None:
        if schedule.newest(now_ms) == state.last_tick_ms:
            return None
        event = tick_event(dataclasses.replace(state, tick=None), schedule, now_ms, **about)
        return event

    last_writer_counts(patch)
    patch.setattr(retrain_reducer, "tick_event", other_tick)


def starts_beside_a_job(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(test_triggers, "due", lambda *state, job_runs: due(*state, job_runs=False))


def looks_at_questions(patch: pytest.MonkeyPatch) -> None:
    def familiar(self: RuleEvidence, group: Any) -> Iterator[Any]:
        yield "reward", float(group.scenario == "default")

    patch.setattr(RuleEvidence, "_group_values", familiar)


def slides(patch: pytest.MonkeyPatch) -> None:
    def fold(state: Detector, value: float) -> Detector:
        after = fold_value(state, value)
        if after.count < after.window:
            return after
        return Detector(after.window, after.window, after.sum, peak=after.peak)

    patch.setattr(detector, "fold", fold)


def trains_on_anything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_questions, "_checks_something", lambda verifier: True)


def repeats_itself(patch: pytest.MonkeyPatch) -> None:
    def uncapped(part: Any, *state: Any) -> Any:
        return draws(part.model_copy(update={"most_of_one": 1.0}), *state)

    patch.setattr(curriculum, "draws", uncapped)


def starves(patch: pytest.MonkeyPatch) -> None:
    def without_floor(part: Any, *state: Any) -> Any:
        return draws(part.model_copy(update={"floor": 1e-9}), *state)

    patch.setattr(test_selfplay, "draws", without_floor)


def promotes_anything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard, "judge", lambda *versions: SimpleNamespace(verdict="promote"))


TRIGGERS, SELFPLAY = test_triggers, test_selfplay
FAILURES: dict[str, tuple[Sabotage, Proof]] = {
    "a test that is looked at often alarms for nothing": (
        looks_once,
        TRIGGERS.test_looked_at_after_each_of_ten_thousand_values_without_a_change_few_of_many_streams_alarm,
    ),
    "two controllers start two jobs": (
        last_writer_counts,
        TRIGGERS.test_of_two_controllers_that_decide_the_same_the_first_in_the_log_counts,
    ),
    "missed ticks are all made up for": (
        makes_up_for_all,
        TRIGGERS.test_of_three_ticks_that_were_missed_one_is_made_up_for,
    ),
    "a clock jumps back": (trusts_the_clock, TRIGGERS.test_a_clock_that_jumps_back_does_nothing_twice),
    "a trigger while a job runs": (
        starts_beside_a_job,
        TRIGGERS.test_while_the_job_of_the_last_crossing_runs_there_is_no_other_and_evidence_goes_on,
    ),
    "other questions start a job": (
        looks_at_questions,
        TRIGGERS.test_other_questions_with_the_same_rewards_are_no_reason,
    ),
    "the reference holds the fall": (slides, TRIGGERS.test_a_slow_fall_does_not_become_part_of_the_reference),
    "labels by vote train": (trains_on_anything, TRIGGERS.test_only_questions_whose_answers_are_checked_train),
    "a proposer repeats itself": (
        repeats_itself,
        SELFPLAY.test_a_run_is_not_one_cell_in_many_copies_and_no_question_twice,
    ),
    "self-play makes a version worse": (
        promotes_anything,
        SELFPLAY.test_a_version_that_self_play_made_worse_than_its_base_is_not_promoted,
    ),
    "the easy end starves": (starves, SELFPLAY.test_the_easy_end_is_still_asked_once_it_is_known),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_without_its_measure_a_failure_of_triggers_is_noticed(failure: str) -> None:
    sabotage, proof = FAILURES[failure]
    proof()
    with pytest.MonkeyPatch.context() as patch:
        sabotage(patch)
        with pytest.raises(AssertionError):
            proof()
