"""rollouts in modes guarded, canary and manual: whose turn it is, what is asked, and what a verdict does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from schemas.events import AdapterEvent, Task
from streams.adapters import versions as adapters
from streams.errors import SettingsError
from streams.evaluation.suite import Suite
from streams.settings.model import Canary, Guard, Rollouts, Settings
from streams.stages.rollouts import rollout_stage as rollouts
from streams.stages.rollouts.state import RolloutRule, RolloutState, rule_of
from streams.stages.tasks.suites import generated, of_guard
from tests.support import factories
from tests.support.factories import adapter_event, state_after

SUITE = Suite(name="sums@1", questions=generated("sums", count=3, seed=0).questions, thresholds={})
GUARDED = RolloutRule("guarded", Guard(min_tasks=20), SUITE)
CANARY = RolloutRule("canary", canary=Canary(steps="0.1,0.5,1"))
BOTH = RolloutRule("canary", Guard(min_tasks=20), SUITE)


event = partial(adapter_event, policy="p")
trained = partial(factories.trained, policy="p")
evaluated = partial(factories.evaluated, policy="p", suite=SUITE.name)


class Log:
    """The `adapters` partition with the stage at its end: what it writes is read again, in order."""

    def __init__(self, rule: RolloutRule) -> None:
        self.rule = rule
        self.events: list[AdapterEvent] = []
        self.tasks: list[Task] = []
        self.results: dict[int, AdapterEvent] = {}
        self.rollout, self.read = RolloutState(), 0

    def append(self, *events: AdapterEvent) -> Log:
        self.events += events
        while self.read < len(self.events):
            self.read_one()
        return self

    def read_one(self) -> None:
        one = self.events[self.read]
        if one.kind == "evaluated":
            self.results.setdefault(one.version, one)
        self.rollout, made = rollouts.reduce(self.rollout, one, self.rule, self.results.get)
        assert rollouts.load(rollouts.dump(self.rollout)) == self.rollout
        self.events += [effect for effect in made if isinstance(effect, AdapterEvent)]
        self.tasks += [effect for effect in made if isinstance(effect, Task)]
        self.read += 1

    @property
    def said(self) -> list[tuple[str, int]]:
        return [(one.kind, one.version) for one in self.events if one.actor == "rollouts"]

    @property
    def state(self) -> adapters.AdapterState:
        state = state_after(self.events)
        assert state.serving == self.rollout.serving
        return state


# --- guarded ----------------------------------------------------------------------------------------------------------


def test_a_trained_version_and_the_primary_are_asked_the_suite_once() -> None:
    log = Log(GUARDED).append(trained(1), trained(1), trained(2))
    assert [task.adapter_version for task in log.tasks] == [1, 1, 1, 0, 0, 0, 2, 2, 2]
    assert all(task.purpose == "eval" for task in log.tasks)


def test_only_every_so_many_versions_are_asked() -> None:
    log = Log(replace(GUARDED, guard=Guard(every=2))).append(trained(1), trained(2), trained(3))
    assert {task.adapter_version for task in log.tasks} == {0, 2}


def test_nothing_is_promoted_before_both_results_are_in() -> None:
    assert Log(GUARDED).append(trained(1), evaluated(1, 0.9)).said == []


def test_a_version_that_gains_is_judged_and_promoted_in_any_order_of_the_results() -> None:
    for results in ([evaluated(0, 0.2), evaluated(1, 0.9)], [evaluated(1, 0.9), evaluated(0, 0.2)]):
        log = Log(GUARDED).append(trained(1), *results)
        assert log.said == [("judged", 1), ("promoted", 1)]
        assert log.state.primary == 1
        promotion = log.events[-1]
        assert (promotion.expected_version, promotion.suite) == (0, SUITE.name)
        assert promotion.gate["guard.min_tasks"] == "20"


def test_a_version_that_loses_is_rejected() -> None:
    log = Log(GUARDED).append(trained(1), evaluated(0, 0.9), evaluated(1, 0.2))
    assert log.said == [("judged", 1), ("rejected", 1)]
    assert log.state.versions[1].status == "rejected"


def test_what_is_neither_waits_for_a_person_and_the_next_version_gets_its_turn() -> None:
    log = Log(GUARDED).append(trained(1), evaluated(0, 0.5), evaluated(1, 0.5))
    assert (log.said, log.state.primary) == ([("judged", 1)], 0)
    assert log.append(trained(2), evaluated(2, 0.95)).state.primary == 2


@pytest.mark.parametrize("decide", ["ask", "never"])
def test_a_verdict_that_a_person_carries_out_is_only_written(decide: str) -> None:
    rule = replace(GUARDED, guard=Guard(min_tasks=20, decide=decide))
    log = Log(rule).append(trained(1), evaluated(0, 0.2), evaluated(1, 0.9))
    assert (log.said, log.state.primary) == ([("judged", 1)], 0)


def test_a_version_is_judged_anew_against_a_primary_that_a_person_put_there() -> None:
    log = Log(GUARDED).append(trained(1), trained(2), event("promoted", 1, expected_version=0))
    log.append(evaluated(0, 0.2), evaluated(2, 0.6))
    assert log.said == []  # the result of 1, which is primary now, is not in
    log.append(evaluated(1, 0.1))
    assert log.said == [("judged", 2), ("promoted", 2)]
    assert log.events[-1].expected_version == 1


def test_a_primary_that_was_never_asked_is_asked_when_it_takes_over() -> None:
    log = Log(replace(GUARDED, guard=Guard(every=3))).append(trained(1), trained(2), trained(3))
    log.append(event("promoted", 1, expected_version=0))
    assert {task.adapter_version for task in log.tasks} == {0, 1, 3}


@pytest.mark.parametrize("mode", ["direct", "canary"])
def test_a_version_that_no_batch_made_is_never_the_next_one(mode: Literal["direct", "canary"]) -> None:
    log = Log(RolloutRule(mode=mode)).append(trained(1), trained(2**31 - 1))
    assert {event.version for event in log.events if event.kind != "trained"} == {1}
    if mode == "direct":
        assert log.append(trained(2)).state.primary == 2


def test_a_promotion_that_a_person_outran_is_refused_and_decided_anew() -> None:
    log = Log(GUARDED)
    log.events = [trained(1), trained(2), evaluated(0, 0.1), evaluated(2, 0.9)]
    for _ in range(5):
        log.read_one()
    assert log.said == [("judged", 2), ("promoted", 2)]
    log.events.insert(-1, event("promoted", 1, expected_version=0))
    assert [refused.event.actor for refused in log.append(evaluated(1, 0.3)).state.refused] == ["rollouts"]
    assert (log.said[2:], log.state.primary) == ([("judged", 2), ("promoted", 2)], 2)


def test_a_result_that_a_person_asked_for_is_not_asked_for_again() -> None:
    log = Log(GUARDED).append(evaluated(0, 0.2), trained(1))
    assert {task.adapter_version for task in log.tasks} == {1}
    assert log.append(evaluated(1, 0.9)).said == [("judged", 1), ("promoted", 1)]


def test_a_judgement_of_another_suite_says_nothing() -> None:
    judged = {"verdict": "promote", "reason": "better", "expected_version": 0}
    log = Log(GUARDED).append(trained(1), event("judged", 1, suite="other@1", **judged))
    assert (log.rollout.judged, log.state.primary) == ({}, 0)
    assert log.append(event("judged", 1, suite=SUITE.name, **judged)).state.primary == 1


def test_with_another_suite_versions_are_asked_and_judged_anew() -> None:
    log = Log(GUARDED).append(trained(1), evaluated(0, 0.5), evaluated(1, 0.5))
    log.rule, log.results = replace(GUARDED, suite=replace(SUITE, name="sums@2")), {}
    log.append(trained(2))
    assert [task.adapter_version for task in log.tasks if task.metadata["suite"] == "sums@2"] == [2, 2, 2, 0, 0, 0]
    assert log.rollout.judged == {}


# --- canary -----------------------------------------------------------------------------------------------------------


def test_a_trained_version_begins_its_canary_at_the_first_share() -> None:
    log = Log(CANARY).append(trained(1))
    assert log.said == [("canary_started", 1)]
    assert (log.rollout.serving.candidate, log.rollout.serving.share) == (1, 0.1)
    assert log.events[-1].gate["canary.steps"] == "0.1,0.5,1"


def test_the_line_knows_since_when_each_share_is_in_force_by_the_time_of_the_records() -> None:
    line, made = rollouts.reduce(RolloutState(), trained(1), CANARY, at_ms=500)
    started = made[0]
    assert isinstance(started, AdapterEvent)
    line, _ = rollouts.reduce(line, started, CANARY, at_ms=510)
    advance = event("canary_advanced", 1, share=0.5, expected_version=0)
    line, _ = rollouts.reduce(line, advance, CANARY, at_ms=900)
    assert line.canary == (started.event_id, 1, 0, ((0.1, 510), (0.5, 900)))


def test_one_canary_at_a_time_and_the_newest_version_next() -> None:
    log = Log(CANARY).append(trained(1), trained(2), trained(3))
    assert log.said == [("canary_started", 1)]
    log.append(event("rejected", 1))
    assert log.said == [("canary_started", 1), ("canary_started", 3)]
    log.append(event("promoted", 3, expected_version=0))
    assert log.state.primary == 3  # 2 is older than one that had its turn
    assert log.said[2:] == []


def test_a_canary_that_a_promotion_of_another_version_ended_begins_anew_against_that_one() -> None:
    log = Log(CANARY).append(trained(1), event("promoted", 1, expected_version=0), trained(2))
    log.append(event("rolled_back", 0, expected_version=1))
    started = [one for one in log.events if one.kind == "canary_started" and one.version == 2]
    assert [one.expected_version for one in started] == [1, 0]
    assert (log.rollout.serving.candidate, log.rollout.serving.primary) == (2, 0)


def test_a_version_goes_to_its_canary_again_though_the_same_primary_is_back() -> None:
    log = Log(CANARY).append(trained(1), event("promoted", 1, expected_version=0), trained(2))
    log.append(event("rolled_back", 0, expected_version=1), event("rolled_back", 1, expected_version=0))
    ids = [one.event_id for one in log.events if one.kind == "canary_started" and one.version == 2]
    assert len(set(ids)) == len(ids) == 3
    assert log.rollout.serving.candidate == 2


def test_with_a_suite_only_what_the_guard_lets_pass_begins_a_canary() -> None:
    log = Log(BOTH).append(trained(1))
    assert (log.said, len(log.tasks)) == ([], 6)
    log.append(evaluated(0, 0.5), evaluated(1, 0.95))
    assert log.said == [("judged", 1), ("canary_started", 1)]
    assert {"guard.min_tasks", "canary.alpha"} <= log.events[-1].gate.keys()
    log.append(trained(2), evaluated(2, 0.1), event("rejected", 1))
    assert log.said[2:] == [("judged", 2), ("rejected", 2)]


def test_a_guard_that_never_decides_keeps_no_canary_waiting() -> None:
    log = Log(replace(BOTH, guard=Guard(decide="never"))).append(trained(1))
    assert log.said == [("canary_started", 1)]


# --- manual, and settings ---------------------------------------------------------------------------------------------


def test_in_mode_manual_nothing_is_decided_and_the_suite_is_asked() -> None:
    log = Log(RolloutRule("manual", suite=SUITE)).append(trained(1), evaluated(0, 0.1), evaluated(1, 0.9))
    assert log.said == []
    assert {task.adapter_version for task in log.tasks} == {0, 1}


def test_a_person_is_faster_and_the_stage_agrees() -> None:
    log = Log(CANARY).append(trained(1), event("promoted", 1, expected_version=0))
    assert log.state.primary == 1
    assert log.rollout.canary is None


def test_mode_guarded_without_a_suite_is_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match=r"guard\.suite names no file"):
        rule_of(Settings(rollouts=Rollouts(mode="guarded")), None)


def test_the_rule_has_the_suite_of_the_file() -> None:
    file = Path(__file__).parents[2] / "docs" / "examples" / "suite.yaml"
    settings = Settings(rollouts=Rollouts(mode="guarded"), guard=Guard(suite=file))
    rule = rule_of(settings, of_guard(settings))
    assert rule.suite is not None
    assert rule.suite.questions


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ("0.5,0.25", "grow"),
        ("0,0.5", "above 0"),
        ("0.5,2", "up to 1"),
        ("nan", "grow"),
        ("5%", "comma separated"),
        ("", "comma separated"),
        ("1", "no tasks for comparison"),
    ],
)
def test_steps_that_cannot_be_are_refused(steps: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Canary(steps=steps)
