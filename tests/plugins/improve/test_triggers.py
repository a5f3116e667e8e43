"""Reasons to retrain: the detector, rules, and what a rule does next."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plugins.improve.triggers import detector as detectors, rule_state
from plugins.improve.triggers.detector import BETS, THRESHOLD, Detector, lower_bound
from plugins.improve.triggers.evidence import RuleEvidence
from plugins.improve.triggers.retrain_reducer import due
from plugins.improve.triggers.rule import RetrainRule, read_rule, rule_of
from plugins.improve.triggers.rule_state import RuleState
from plugins.improve.triggers.run_questions import choose
from plugins.improve.triggers.tick_schedule import DAY_MS, TickSchedule
from schemas.events import Coordinates, Event, JobQuestion, Message, RewardSource, TriggerEvent, derive_id
from streams.errors import NotFoundError, SettingsError
from streams.kafka.topics import LABELS
from tests.support.factories import (
    T0,
    changed,
    curation_event,
    group,
    member,
    promoted,
    reward,
    task,
    trained,
    trajectory,
)
from tests.support.log.whole_run import SETTINGS, TOPICS, Written

HOUR_MS = 3_600_000
WINDOW = 50


def rule(**changes: Any) -> RetrainRule:
    """Return a rule that trains on the questions of runs, by default when their reward has fallen."""
    whole: dict[str, Any] = {
        "name": "nightly",
        "policy": "default",
        "actions": ["train"],
        "when": {"reward": {"window": WINDOW}},
        "train": {"n_iterations": 3},
    }
    return rule_of(whole | changes)


def served(value: float, number: int, **changes: Any) -> Event:
    """Return the group of one served answer with this reward."""
    answer = member(0, reward=value, components={"exact": value}, response_id=f"r{number}")
    whole: dict[str, Any] = {"task_id": f"t{number}", "purpose": "serve", "group_size": 1, "reward_mean": value}
    return group(**whole | {"responses": (answer,)} | changes)


def answers(chance: float, count: int, *, first: int = 0, seed: int = 0) -> list[Event]:
    draws = random.Random(seed)
    return [served(float(draws.random() < chance), first + number) for number in range(count)]


def evidence_of(rule: RetrainRule, events: Iterable[Event], crossing: TriggerEvent | None = None) -> RuleEvidence:
    """Return the evidence of a log with these events, read as the controller does: versions first."""
    log = Written()
    for number, event in enumerate(events):
        log.write(event, event.created_at + number)
    evidence = RuleEvidence(rule, SETTINGS, () if crossing is None else crossing.ranges)
    names = {TOPICS[label].name for label in evidence.sources()}
    bounds = {
        (TOPICS[label].name, partition): (0, 0)
        for label in LABELS
        if TOPICS[label].name in names
        for partition in range(2)
    }
    starts = evidence.starts(bounds)
    for record in sorted(log.records, key=lambda record: TOPICS["adapters"].name != record.at.topic):
        if record.at.offset >= starts.get((record.at.topic, record.at.partition), math.inf):
            evidence.take(record)
    return evidence


def step(
    rule: RetrainRule, state: RuleState, evidence: RuleEvidence, now_ms: int = T0, *, job_runs: bool = False
) -> tuple[TriggerEvent | None, RuleState]:
    """Return the next event of a rule, and the rule after it."""
    event = due(rule, state, evidence, now_ms, job_runs=job_runs)
    return event, state if event is None else take(state, event)


def take(state: RuleState, event: TriggerEvent, offset: int | None = None) -> RuleState:
    place = Coordinates("triggers", 0, state.sequence + state.superseded if offset is None else offset)
    return rule_state.fold(state, event, place)


START = RuleState(rule="nightly")


# --- the detector -----------------------------------------------------------------------------------------------------


def fold(values: Iterable[float], *, window: int = WINDOW) -> Detector:
    state = Detector(window=window)
    for value in values:
        state = detectors.fold(state, value)
    return state


def test_the_bound_is_that_of_hoeffding_solved_a_second_way() -> None:
    for mean, count in ((0.6, 500), (0.9, 100), (0.05, 2000)):
        bound = lower_bound(mean, count)
        divergence = mean * math.log(mean / bound) + (1 - mean) * math.log((1 - mean) / (1 - bound))
        assert count * divergence == pytest.approx(math.log(100))
    assert lower_bound(1.0, 100) == pytest.approx(0.01 ** (1 / 100))


def test_the_sum_is_that_of_an_e_process_begun_at_every_value() -> None:
    draws = random.Random(1)
    reference, after = [1.0] * 40 + [0.0] * 10, [draws.random() for _ in range(30)]
    bound = lower_bound(0.8, 50)
    expected = []
    for bet in BETS:
        size = bet / (1 - bound)
        factors = [1 + size * (bound - value) for value in after]
        expected.append(sum(math.prod(factors[begin:]) for begin in range(len(after))))
    assert fold([*reference, *after]).e_value == pytest.approx(sum(expected) / len(BETS))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_no_bet_loses_everything_and_the_state_stays_a_few_finite_numbers(values: list[float]) -> None:
    state = fold([0.9] * WINDOW + values)
    assert all(0 < total < math.inf for total in state.sums) and len(state.sums) == len(BETS)


def test_looked_at_after_each_of_ten_thousand_values_without_a_change_few_of_many_streams_alarm() -> None:
    from tests.plugins.improve.benchmarks.triggers import alarms

    assert alarms(0.6, 0.6, runs=400, looks=10_000, seed=7).share <= 0.01


def test_a_fall_by_a_fifth_is_found_in_every_stream() -> None:
    from tests.plugins.improve.benchmarks.triggers import alarms

    assert alarms(0.6, 0.4, runs=400, looks=1500, seed=7).share == 1.0


def test_the_simulation_and_the_detector_are_one_formula() -> None:
    from tests.plugins.improve.benchmarks.triggers import paths

    reference, values, e_values = paths(0.6, 0.4, runs=3, looks=60, window=WINDOW, seed=5)
    for run in range(3):
        state = fold([1.0] * round(reference[run] * WINDOW) + [0.0] * round((1 - reference[run]) * WINDOW))
        for look in range(60):
            state = detectors.fold(state, float(values[run, look]))
            assert state.e_value == pytest.approx(float(e_values[run, look]))


def test_a_slow_fall_does_not_become_part_of_the_reference() -> None:
    draws = random.Random(3)
    values = [float(draws.random() < 0.8 - 0.5 * number / 12_000) for number in range(12_000)]
    assert fold(values, window=500).has_fallen


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"when": {"promotble": 3}}, "there is no field when.promotble; did you mean promotable?"),
        ({"when": {}}, "it names no signal"),
        ({"when": {"every": "1 day"}}, "expected a period, e.g. 30m, 6h or 1d"),
        ({"when": {"daily": "24:00"}}, "expected a time of day in UTC, e.g. 03:00"),
        ({"when": {"every": "1d", "daily": "03:00"}}, "a rule has one schedule"),
        ({"when": {"reward": {"low": 1.0, "high": 1.0}}}, "low is 1 and high 1"),
        ({"actions": ["tune"]}, r"actions is tune, and \[tune\] says otherwise"),
        ({"actions": ["train", "train"]}, "names train twice"),
        ({"train": {"n_iterations": 3, "reward_sources": ["exact"]}}, "the questions keep the scorers"),
        ({"actions": ["tune"], "train": None, "tune": {"dataset": "good", "min_reward": 1.0}}, "min_reward chooses"),
        ({"name": "a/b"}, "name: String should match pattern"),
    ],
)
def test_a_rule_with_a_fault_is_refused_with_its_place(changes: dict[str, Any], problem: str) -> None:
    whole = {"name": "n", "policy": "p", "actions": ["train"], "when": {"promotable": 1}, "train": {"n_iterations": 3}}
    fields = {name: value for name, value in {**whole, **changes}.items() if value is not None}
    with pytest.raises(SettingsError, match=problem):
        rule_of(fields)


def test_a_file_that_is_no_rule_is_named(tmp_path: Path) -> None:
    file = tmp_path / "retrain.toml"
    with pytest.raises(NotFoundError, match=r"retrain\.toml: No such file"):
        read_rule(file)
    file.write_text("name = ", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"retrain\.toml: not TOML"):
        read_rule(file)
    file.write_text('name = "n"\n', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"retrain\.toml: policy is required"):
        read_rule(file)


def test_equal_rules_have_equal_digests_and_a_changed_one_another() -> None:
    assert rule().digest == rule().digest != rule(when={"promotable": 3}).digest


# --- time -------------------------------------------------------------------------------------------------------------

DAILY = rule(when={"daily": "03:00"})
NIGHT = 20_000 * DAY_MS + 3 * HOUR_MS


def test_the_first_tick_says_when_a_schedule_began_and_each_later_one_starts_a_job() -> None:
    nothing = evidence_of(DAILY, [])
    first, state = step(DAILY, START, nothing, NIGHT + 5)
    assert first is not None and (first.kind, first.due_at, first.reason) == ("ticked", NIGHT, "the schedule begins")
    assert step(DAILY, state, nothing, NIGHT + DAY_MS - 1)[0] is None
    second, state = step(DAILY, state, nothing, NIGHT + DAY_MS)
    crossing, state = step(DAILY, state, nothing, NIGHT + DAY_MS)
    assert second is not None and second.due_at == NIGHT + DAY_MS
    assert crossing is not None and (crossing.signal, crossing.due_at) == ("schedule", NIGHT + DAY_MS)
    assert step(DAILY, state, nothing, NIGHT + DAY_MS)[0] is None


def test_of_three_ticks_that_were_missed_one_is_made_up_for() -> None:
    nothing = evidence_of(DAILY, [])
    _, state = step(DAILY, START, nothing, NIGHT)
    kinds = []
    for _ in range(6):
        event, state = step(DAILY, state, nothing, NIGHT + 3 * DAY_MS + HOUR_MS)
        kinds += [(event.kind, event.due_at)] if event is not None else []
    assert kinds == [("ticked", NIGHT + 3 * DAY_MS), ("crossed", NIGHT + 3 * DAY_MS)]


@given(st.lists(st.integers(0, 40 * HOUR_MS), max_size=30))
def test_a_clock_that_jumps_back_does_nothing_twice(clock: list[int]) -> None:
    hourly = rule(when={"every": "1h"})
    nothing, state, ticks, crossings = evidence_of(hourly, []), START, [], 0
    for now_ms in clock:
        for _ in range(3):
            event, state = step(hourly, state, nothing, T0 + now_ms)
            if event is not None:
                ticks += [event.due_at] if event.kind == "ticked" else []
                crossings += event.kind == "crossed"
    assert ticks == sorted(set(ticks))
    assert crossings == max(0, len(ticks) - 1)


def test_two_schedulers_name_the_same_tick() -> None:
    schedule = TickSchedule.parse("6h", None)
    assert schedule is not None
    assert schedule.newest(T0) == schedule.newest(T0 - T0 % (6 * HOUR_MS)) <= T0


# --- crossings --------------------------------------------------------------------------------------------------------


def test_of_two_controllers_that_decide_the_same_the_first_in_the_log_counts() -> None:
    fallen = evidence_of(rule(), answers(0.9, 60) + answers(0.2, 300, first=60))
    first, second = (due(rule(), START, fallen, T0 + late, job_runs=False) for late in (0, 5))
    assert first is not None and second is not None and first.event_id == second.event_id
    state = take(take(START, first, 0), second, 1)
    assert state.crossing == first and state.crossings == 1 and state.superseded == 1


def test_a_crossing_has_its_evidence_its_ranges_and_the_id_of_its_job() -> None:
    crossing, _ = step(rule(), START, evidence_of(rule(), answers(0.9, 60) + answers(0.2, 300, first=60)))
    assert crossing is not None and (crossing.signal, crossing.action) == ("reward", "train")
    assert crossing.job_id == derive_id("job", "", derive_id("nightly", "crossed", 0))
    figures = crossing.evidence
    assert figures["reference"] == WINDOW and figures["e_value"] >= THRESHOLD
    assert figures["mean"] < figures["bound"] < figures["reference_mean"]
    groups = [part for part in crossing.ranges if part.topic == TOPICS["groups"].name]
    assert [(part.first, part.next) for part in groups] == [(0, 360)]


def test_while_the_job_of_the_last_crossing_runs_there_is_no_other_and_evidence_goes_on() -> None:
    watched = rule(when={"promotable": 2, "every": "1h"})
    verdicts = [
        curation_event(policy="default", event_id=f"e{n}", answer_id=f"a{n}", task_id=f"t{n}") for n in range(3)
    ]
    evidence = evidence_of(watched, verdicts)
    state = START
    for hour in range(3):
        event, state = step(watched, state, evidence, T0 + hour * HOUR_MS, job_runs=True)
        assert event is not None and event.kind == "ticked"  # time is recorded
        assert step(watched, state, evidence, T0 + hour * HOUR_MS, job_runs=True)[0] is None
    assert len(evidence.promoted) == 3
    event, _ = step(watched, state, evidence, T0 + 2 * HOUR_MS)
    assert event is not None and (event.kind, event.signal) == ("crossed", "promotable")


def test_a_fall_that_stays_starts_one_job() -> None:
    events = answers(0.9, 60) + answers(0.2, 300, first=60)
    crossing, state = step(rule(), START, evidence_of(rule(), events))
    assert crossing is not None
    after = evidence_of(rule(), events + answers(0.2, 2000, first=360, seed=4), crossing)
    assert after.detectors["reward"].reference_count == WINDOW and after.runs == 2000
    assert step(rule(), state, after)[0] is None


def test_other_questions_with_the_same_rewards_are_no_reason() -> None:
    usual = answers(0.6, 500)
    others = [
        changed(event, scenario="poems", prompt_token_ids=(7,) * 90, task_id=f"poem-{n}", group_id=f"poem-{n}")
        for n, event in enumerate(answers(0.6, 3000, seed=9))
    ]
    watched = rule(when={"reward": {}, "failure": {}, "feedback": {}, "promotable": 1})
    assert step(watched, START, evidence_of(watched, usual + others))[0] is None


def test_a_promoted_version_has_a_reference_of_its_own_and_a_canary_counts_nowhere() -> None:
    high = [changed(event, adapter_version=0) for event in answers(0.95, 60)]
    low = [changed(event, adapter_version=1) for event in answers(0.3, 400, first=60)]
    versions = [trained(1, policy="default"), promoted(1, policy="default")]
    assert step(rule(), START, evidence_of(rule(), high + low))[0] is None
    evidence = evidence_of(rule(), [*versions, *high, *low])
    assert evidence.version == 1 and evidence.detectors["reward"].reference_count == WINDOW
    assert step(rule(), START, evidence)[0] is None


def test_actions_are_taken_in_turn() -> None:
    both = rule(actions=["tune", "train"], tune={"method": "sft"}, when={"every": "1h"})
    state, actions = START, []
    for hour in range(5):
        for _ in range(2):
            event, state = step(both, state, evidence_of(both, []), T0 + hour * HOUR_MS)
            actions += [event.action] if event is not None and event.action else []
    assert actions == ["tune", "train", "tune", "train"]


def test_runs_that_were_promoted_before_a_crossing_are_not_counted_again() -> None:
    watched = rule(when={"promotable": 2})

    def verdict(run: int, by: str, what: Any = "promote") -> Event:
        return curation_event(
            policy="default", event_id=f"{run}-{by}", answer_id=f"a{run}", task_id=f"t{run}", actor=by, verdict=what
        )

    before = [verdict(1, "ann"), verdict(2, "ann"), verdict(3, "ann", "reject")]
    crossing, state = step(watched, START, evidence_of(watched, before))
    assert crossing is not None and crossing.evidence["promoted"] == 2
    after = [*before, verdict(1, "bob"), verdict(3, "bob")]
    evidence = evidence_of(watched, after, crossing)
    assert evidence.promoted.task_ids() == ["t3"] and step(watched, state, evidence)[0] is None
    assert evidence_of(watched, [*after, verdict(3, "cy", "reject")], crossing).promoted.task_ids() == []


def test_an_event_that_is_in_the_log_twice_counts_once() -> None:
    events = answers(0.5, 40)
    assert evidence_of(rule(), events + events).detectors == evidence_of(rule(), events).detectors


@pytest.mark.parametrize(
    ("signal", "good", "bad"),
    [
        (
            "failure",
            lambda n: trajectory(
                policy="default", purpose="serve", trajectory_id=f"r{n}", task_id=f"r{n}",
                event_id=derive_id(f"r{n}", "ended"), sampling_id=None, slot=None, group_size=None, ending="completed",
            ),
            lambda n: trajectory(
                policy="default", purpose="serve", trajectory_id=f"r{n}", task_id=f"r{n}",
                event_id=derive_id(f"r{n}", "ended"), sampling_id=None, slot=None, group_size=None, ending="failed",
            ),
        ),
        (
            "feedback",
            lambda n: reward(response_id=f"r{n}", policy="default", source="feedback/web", value=1.0,
                             reward_id=derive_id(f"r{n}", "feedback/web")),
            lambda n: reward(response_id=f"r{n}", policy="default", source="feedback/web", value=0.0,
                             reward_id=derive_id(f"r{n}", "feedback/web")),
        ),
    ],
)  # fmt: skip
def test_failures_and_opinions_are_reasons_too(
    signal: str, good: Callable[[int], Event], bad: Callable[[int], Event]
) -> None:
    watched = rule(when={signal: {"window": WINDOW}})
    well, badly = [good(n) for n in range(400)], [bad(n) for n in range(400, 440)]
    assert step(watched, START, evidence_of(watched, well))[0] is None
    crossing, _ = step(watched, START, evidence_of(watched, well + badly))
    assert crossing is not None and crossing.signal == signal


# --- the questions of runs --------------------------------------------------------------------------------------------


def test_only_questions_whose_answers_are_checked_train() -> None:
    checked = task(verifier='{"answer": "11"}')
    by_vote = task(task_id="t2", verifier="{}", reward_sources=(RewardSource(name="judge"),))
    unscored = task(task_id="t3", verifier='{"answer": "11"}', reward_sources=(), purpose="serve")
    chosen = choose([checked, by_vote, unscored], 10)
    assert chosen.questions == (JobQuestion(query="4 + 7 =", verifier='{"answer": "11"}'),)
    assert chosen.left_out == {"without a verifier": 2}


def test_a_task_of_an_agent_without_scorers_has_those_that_the_agent_was_registered_with() -> None:
    own = (RewardSource(name="exact", weight=2.0),)
    bare = task(verifier='{"answer": "11"}', reward_sources=(), purpose="serve", agent="adder", max_turns=3)
    stranger = changed(bare, task_id="t2", agent="other")
    chosen = choose([bare, stranger], 10, {"adder": own, "other": ()}.__getitem__)
    assert (chosen.agent, chosen.reward_sources, len(chosen.questions)) == ("adder", own, 1)
    assert chosen.left_out == {"without a verifier": 1}


def test_a_question_keeps_its_whole_prompt_and_is_asked_once() -> None:
    prompt = (Message(role="system", content="Be brief."), Message(role="user", content="4 + 7 ="))
    twice = [task(task_id=name, verifier='{"answer": "11"}', messages=prompt) for name in ("a", "b")]
    assert choose(twice, 10).questions == (JobQuestion(query="4 + 7 =", verifier='{"answer": "11"}', messages=prompt),)


def test_of_several_agents_and_scorers_the_most_frequent_is_asked() -> None:
    usual = [
        task(task_id=f"t{n}", verifier='{"answer": "1"}', messages=(Message(role="user", content=f"{n} ="),))
        for n in range(3)
    ]
    other = changed(usual[0], task_id="o", reward_sources=(RewardSource(name="format"),))
    chosen = choose([other, *usual], 2)
    assert [question.query for question in chosen.questions] == ["0 =", "1 ="]
    assert chosen.left_out == {"of another agent or scorer": 1}
