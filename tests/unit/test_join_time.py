"""The join in time: what is late does not count, and what never came is told."""

from __future__ import annotations

import pytest

from schemas.conventions import deadline_ms
from schemas.events import AdvantagedGroup, Event, RewardSource
from schemas.serde import decode, encode
from streams.settings.model import Settings
from streams.stages.advantages.state import ClosedGroup, OpenGroup, task_info
from streams.stages.advantages.timers import DeadlineTimers
from tests.support.factories import T0, control, response, reward, task
from tests.support.log.join_partition import Log, answers, left_out, scores


def test_expire_emits_the_part_that_is_scored() -> None:
    log, slots = Log(partial="emit"), answers()
    log.read_all([task(), *slots[:3], *scores(slots)[:2], control()])
    group = log.group()
    assert (group.complete, group.dropped_reason) == (False, None)
    assert [r.slot for r in group.responses] == [0, 1]
    assert left_out(group) == [(2, "unscored"), (3, "unanswered")]


def test_expire_drops_the_part_where_the_setting_says_so() -> None:
    log, slots = Log(partial="drop"), answers()
    log.read_all([task(), *slots[:3], *scores(slots)[:2], control()])
    group = log.group()
    assert (group.complete, group.dropped_reason, group.responses) == (False, "incomplete", ())
    assert left_out(group) == [(0, "incomplete"), (1, "incomplete"), (2, "unscored"), (3, "unanswered")]


def test_what_a_ranking_cannot_compare_since_a_sibling_never_came_is_left_out_by_that_name() -> None:
    ranked = task(reward_sources=(RewardSource(name="exact"), RewardSource(name="ranking_judge")))
    slots = answers()
    log = Log(partial="emit")
    log.read_all([ranked, *slots[:3], *scores(slots)[:2], control()])
    assert log.group().dropped_reason == "unscored", "its task may be sent again"
    assert left_out(log.group()) == [(0, "unranked"), (1, "unranked"), (2, "unscored"), (3, "unanswered")]
    whole = Log(partial="emit")
    whole.read_all([ranked, *slots, *scores(slots), control()])
    assert left_out(whole.group()) == [(slot, "unscored") for slot in range(4)], "all came: the judge is late"


def test_expire_takes_the_sampling_that_got_furthest() -> None:
    log = Log()
    first, second = answers(sampling_id="s1"), answers(sampling_id="s2")
    log.read_all([task(), first[0], *second[:3], *scores(second)[:2], control()])
    assert log.group().sampling_id == "s2"
    assert log.reasons() == [("responses@0", "superseded")]


def test_a_task_that_nobody_answered_leaves_a_record_all_the_same() -> None:
    log = Log()
    log.read_all([task(), control()])
    group = log.group()
    assert (group.dropped_reason, group.sampling_id, group.adapter_version) == ("unanswered", None, -1)
    assert left_out(group) == [(n, "unanswered") for n in range(4)]
    assert decode(encode(group), AdvantagedGroup) == group


def test_what_never_found_its_task_is_dead_lettered_when_it_expires() -> None:
    log, slots = Log(), answers()
    log.read_all([slots[0], reward(slots[0]), control()])
    assert log.reasons() == [("responses@0", "unknown_task"), ("rewards@0", "unknown_task")]
    assert {letter.error.partition(" is ")[0] for letter in log.rejects} == {f"task {task().task_id}"}
    assert log.state is None


def test_a_reward_whose_response_never_came_is_rejected_when_the_group_leaves() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), reward(response(sampling_id="ghost")), *slots, *scores(slots)])
    assert log.reasons() == [("rewards@0", "unknown_response")]


@pytest.mark.parametrize("task_first", [True, False])
def test_a_reward_that_nobody_asked_for_is_rejected(task_first: bool) -> None:
    log, slots = Log(), answers()
    stray = reward(slots[0], source="other", created_at=T0 + 500)
    log.read_all([task(), stray] if task_first else [stray, task()])
    log.read_all([*slots, *scores(slots)])
    assert log.reasons() == [("rewards@0", "unasked")]
    assert log.group().created_at == T0 + 20


@pytest.mark.parametrize("task_first", [True, False])
def test_what_was_recorded_after_the_deadline_does_not_count_whenever_it_is_read(task_first: bool) -> None:
    asked = task(deadline_at=T0 + 100)
    log, slots = Log(), answers()
    late: list[Event] = [response(slot=3, created_at=T0 + 101), reward(slots[2], created_at=T0 + 107)]
    events: list[Event] = [*slots[:3], *scores(slots)[:2], *late]
    log.read_all([asked, *events] if task_first else events)
    log.read_all([] if task_first else [asked])
    assert log.reasons() == [("responses@3", "late"), ("rewards@2", "late")]
    assert "recorded 7 ms after the deadline of its task; raise deadline_at" in log.rejects[1].error
    log.read(control())
    assert left_out(log.group()) == [(2, "unscored"), (3, "unanswered")]


def test_on_the_deadline_is_in_time() -> None:
    log, slots = Log(), answers(created_at=T0 + 100)
    log.read_all([task(deadline_at=T0 + 100), *slots, *scores(slots, created_at=T0 + 100)])
    assert log.group().complete


def deadline_of(log: Log) -> int | None:
    assert isinstance(log.state, OpenGroup) and log.state.task is not None
    return log.state.task.deadline_ms


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_a_task_without_deadline_has_the_stages_counted_from_its_record(purpose: str) -> None:
    log = Log(deadline_s=2.5)
    log.read(task(purpose=purpose), T0 + 7)
    log.read(task(purpose=purpose), T0 + 1000)  # the first in its partition wins
    log.read(response(), T0 + 2000)
    assert deadline_of(log) == T0 + 7 + 2500


@pytest.mark.parametrize("task_first", [True, False])
def test_a_train_task_without_deadline_has_the_stages_counted_from_its_first_response(task_first: bool) -> None:
    # it may be held back for the trainer, for days
    log, asked, first = Log(deadline_s=2.5), task(), response(created_at=T0 + 86_400_000)
    log.read_all([asked, first] if task_first else [first, asked])
    log.read(response(slot=1), T0 + 86_400_100)
    assert deadline_of(log) == T0 + 86_400_000 + 2500
    log.read(response(slot=2), T0 + 86_402_501)
    assert log.reasons() == [("responses@2", "late")]


def test_an_agent_whose_clock_is_slow_takes_no_time_from_the_scorers() -> None:
    log = Log(deadline_s=2.5)
    log.read_all([task(), response(created_at=T0 - 7_200_000)])
    assert deadline_of(log) == T0 + 2500


def test_a_train_task_that_names_a_deadline_has_that_one() -> None:
    log = Log(deadline_s=2.5)
    log.read_all([task(deadline_at=T0 + 100), response()])
    assert deadline_of(log) == T0 + 100


def test_a_response_that_does_not_count_begins_no_time() -> None:
    log = Log(deadline_s=2.5)
    log.read_all([task(), response(group_size=8), response(policy="other")])
    assert deadline_of(log) is None
    assert {reason for _, reason in log.reasons()} == {"contradictory"}


@pytest.mark.parametrize("ahead", [True, False])
def test_a_reward_read_before_the_response_that_begins_time_is_judged_by_it(ahead: bool) -> None:
    log, slots = Log(deadline_s=2.5), answers(created_at=T0 + 10)
    rewards = [*scores(slots[:3]), reward(slots[3], created_at=T0 + 2511)]
    log.read(task())
    log.read_all([*rewards, *slots] if ahead else [*slots, *rewards])
    assert log.reasons() == [("rewards@3", "late")]
    log.read(control())
    assert left_out(log.group()) == [(3, "unscored")]


def test_a_train_task_closed_before_it_was_sampled_leaves_its_rewards_as_dead_letters() -> None:
    log = Log()
    log.read_all([task(), *scores(answers()[:2]), reward(source="style"), control()])
    assert log.group().dropped_reason == "unanswered"
    assert log.reasons() == [
        ("rewards@2", "unasked"),
        ("rewards@0", "unknown_response"),
        ("rewards@1", "unknown_response"),
    ]


def test_with_deadline_zero_a_group_waits_for_ever() -> None:
    log = Log(deadline_s=0)
    log.read(task())
    assert isinstance(log.state, OpenGroup) and log.state.task is not None
    assert log.state.task.deadline_ms is None


def test_what_comes_after_the_group_left_is_late() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots[:3], *scores(slots)[:2], control(), slots[3], scores(slots)[2]])
    assert log.reasons() == [("responses@3", "late"), ("rewards@2", "late")]


def test_evict_forgets_and_only_what_has_left_is_forgotten() -> None:
    log = Log()
    log.read_all([task(), control(kind="evict")])
    assert isinstance(log.state, OpenGroup)
    log.read(control())
    assert isinstance(log.state, ClosedGroup)
    log.read(control(kind="evict"))
    assert log.state is None


def test_control_records_for_the_unknown_do_nothing() -> None:
    log = Log()
    log.read_all([control(), control(kind="evict"), control()])
    assert (log.state, log.closes, log.rejects) == (None, [], [])


@pytest.mark.parametrize("timestamp_ms", [T0 // 1000, T0 * 1000], ids=["seconds", "microseconds"])
def test_the_deadline_of_a_task_whose_record_time_is_none_counts_from_its_creation(timestamp_ms: int) -> None:
    settings = Settings()
    asked = task(purpose="eval", deadline_at=None, created_at=T0)
    due_ms = T0 + int(settings.advantages.deadline_s * 1000)
    assert deadline_ms(asked, timestamp_ms, settings.advantages.deadline_s) == due_ms
    group = OpenGroup(first_seen_ms=T0, task=task_info(asked, timestamp_ms, settings.advantages))
    timers = DeadlineTimers(settings)
    timers.note(asked.task_id, group)
    now_ms = due_ms + int(settings.advantages.grace_s * 1000)
    timers.record_read(timestamp_ms, now_ms)  # no sign of a backlog
    assert (timers.due(now_ms - 1), [control.task_id for control in timers.due(now_ms)]) == ([], [asked.task_id])
