"""The join: a group is whole, leaves once, and does not depend on how its topics were read side by side."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from factories import T0, control, response, reward, task
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import AdvantagedGroup, Coordinates, Event, GroupControl, Response, Reward, RewardSource, Task
from schemas.serde import decode, encode
from streams.advantages import Join, Timers
from streams.groups import Close, Closed, Effect, Open, Reject, Rows, State, assemble, dump, load
from streams.settings import Advantages, Settings

TOPICS: dict[type[Any], str] = {
    Task: "tasks",
    Response: "responses",
    Reward: "rewards",
    GroupControl: "group-control",
}
Entry = tuple[Event, int]
"""An event and the timestamp of its record."""


class Log:
    """Partition 5 of the four topics, and the join reading it; the table row is written and read at every step."""

    def __init__(self, **rule: Any) -> None:
        self.join = Join(Advantages(**rule), "responses", "rewards")
        self.state: State = None
        self.ends: dict[str, int] = {}
        self.responses: dict[tuple[int, int], Response] = {}
        self.closes: list[Close] = []
        self.rejects: list[Reject] = []
        self.history: dict[str, int] = {}

    def read(self, event: Event, at_ms: int | None = None) -> Sequence[Effect]:
        """Append `event` to its topic and read it; the record's time is created_at unless given."""
        topic = TOPICS[type(event)]
        offset = self.ends[topic] = self.ends.get(topic, -1) + 1
        return self.read_at(event, offset, event.created_at if at_ms is None else at_ms)

    def read_at(self, event: Any, offset: int, at_ms: int) -> Sequence[Effect]:
        if isinstance(event, Response):
            self.responses[5, offset] = event
        at = Coordinates(TOPICS[type(event)], 5, offset)
        self.state, effects = self.join.reduce(reloaded(self.state), event, at, at_ms)
        assert reloaded(self.state) == self.state
        self.closes += [effect for effect in effects if isinstance(effect, Close)]
        self.rejects += [effect for effect in effects if isinstance(effect, Reject)]
        return effects

    def read_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self.read(event)

    def group(self) -> AdvantagedGroup:
        """Return the one group that left."""
        (close,) = self.closes
        return assemble(close, self.responses)

    def reasons(self) -> list[tuple[str, str]]:
        """Return what was rejected: where it lies, and why."""
        return [(f"{effect.at.topic}@{effect.at.offset}", effect.reason) for effect in self.rejects]


def reloaded(state: State) -> State:
    return None if state is None else load(dump(state))


def answers(size: int = 4, **changes: Any) -> list[Response]:
    return [response(slot=slot, group_size=size, **changes) for slot in range(size)]


def scores(of: Iterable[Response], values: Sequence[float] = (0.0, 1.0, 1.0, 2.0), **changes: Any) -> list[Reward]:
    return [reward(one, value=value, **changes) for one, value in zip(of, values, strict=False)]


def left_out(group: AdvantagedGroup) -> list[tuple[int, str]]:
    return [(left.slot, left.reason) for left in group.left_out]


# --- a whole group ---------------------------------------------------------------------------------------------------


def test_a_group_is_held_until_its_last_sibling_is_scored() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots)[:3]])
    assert log.closes == []
    log.read(scores(slots)[3])
    assert len(log.closes) == 1


def test_a_whole_group_carries_what_was_sampled_and_how_it_was_judged() -> None:
    log, slots = Log(eps=0.0), answers()
    log.read_all([task(metadata={"suite": "s"}, traceparent="00-a-b-01"), *slots, *scores(slots)])
    group = log.group()
    assert (group.complete, group.dropped_reason, group.left_out) == (True, None, ())
    assert (group.sampling_id, group.adapter_version, group.group_size) == ("s1", 0, 4)
    assert (group.base_digest, group.tokenizer_digest) == ("b" * 64, "c" * 64)
    assert (group.prompt_token_ids, group.sampling) == ((1, 2, 3), slots[0].sampling)
    assert (group.traceparent, group.metadata) == ("00-a-b-01", {"suite": "s"})
    assert [r.slot for r in group.responses] == [0, 1, 2, 3]
    assert [r.reward for r in group.responses] == [0.0, 1.0, 1.0, 2.0]
    # worked by hand: mean 1, sample standard deviation sqrt(2/3)
    assert [r.advantage for r in group.responses] == pytest.approx([-(1.5**0.5), 0.0, 0.0, 1.5**0.5])
    assert group.reward_mean == 1.0
    assert group.reward_std == pytest.approx((2 / 3) ** 0.5)
    assert [(r.partition, r.offset) for r in group.responses] == [(5, 0), (5, 1), (5, 2), (5, 3)]
    assert group.responses[2].completion_token_ids == slots[2].completion_token_ids
    assert group.responses[2].logprobs == slots[2].logprobs
    assert decode(encode(group), AdvantagedGroup) == group


def test_responses_stand_in_slot_order_however_they_came() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *reversed(slots), *scores(slots)])
    assert [r.slot for r in log.group().responses] == [0, 1, 2, 3]
    assert [r.offset for r in log.group().responses] == [3, 2, 1, 0]


def test_the_reward_of_a_response_is_the_weighted_sum_over_the_tasks_sources() -> None:
    sources = (RewardSource(name="exact", weight=2.0), RewardSource(name="length", weight=-0.5))
    log, slots = Log(), answers()
    exact, length = scores(slots), scores(slots, (4.0, 4.0, 4.0, 4.0), source="length", components={"tokens": 9.0})
    log.read_all([task(reward_sources=sources), *slots, *exact, *length])
    group = log.group()
    assert [r.reward for r in group.responses] == [-2.0, 0.0, 0.0, 2.0]
    assert group.responses[3].components == {"exact": 2.0, "exact.match": 1.0, "length": 4.0, "length.tokens": 9.0}


def test_every_source_must_have_spoken() -> None:
    sources = (RewardSource(name="exact"), RewardSource(name="judge"))
    log, slots = Log(), answers()
    log.read_all([task(reward_sources=sources), *slots, *scores(slots), *scores(slots, source="judge")[:3]])
    assert log.closes == []


def test_equal_rewards_give_zero_advantages() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots, (0.3,) * 4)])
    assert [r.advantage for r in log.group().responses] == [0.0] * 4


def test_created_at_is_the_newest_record_it_was_made_of() -> None:
    log, slots = Log(), answers()
    log.read(task())
    for slot, at_ms in zip(slots, (T0 + 11, T0 + 99, T0 + 12, T0 + 13), strict=True):
        log.read(slot, at_ms)
    log.read_all(scores(slots))
    assert log.group().created_at == T0 + 99


def test_a_serve_task_without_judges_leaves_when_it_is_answered() -> None:
    log = Log()
    log.read_all([task(purpose="serve", reward_sources=(), group_size=1), *answers(1)])
    assert (log.group().complete, len(log.group().responses)) == (True, 1)


# --- at least once, in any order -------------------------------------------------------------------------------------


def test_a_reward_before_its_response_is_normal() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *scores(slots), *slots])
    assert len(log.group().responses) == 4


def test_a_task_that_comes_last_finds_everything_waiting() -> None:
    log, slots = Log(), answers()
    log.read_all([*scores(slots), *slots])
    assert log.closes == []
    log.read(task())
    assert (len(log.group().responses), log.rejects) == (4, [])


def test_a_reward_delivered_twice_counts_once() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots)[:3], *scores(slots)[:3]])
    assert (log.closes, log.rejects) == ([], [])
    log.read(scores(slots)[3])
    assert log.group().reward_mean == 1.0


def test_the_same_event_again_leaves_the_state_as_it_is() -> None:
    slots = answers()
    for early in ([], [task()]):
        log = Log()
        log.read_all([*early, *slots, *scores(slots)[:2]])
        before = log.state
        log.read_all([*early, *slots, *scores(slots)[:2]])
        assert (log.state, log.rejects) == (before, [])


def test_what_comes_again_after_the_group_left_is_a_no_op() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots)])
    closed = log.state
    log.read_all([task(), *slots, *scores(slots)])
    assert (len(log.closes), log.rejects, log.state) == (1, [], closed)


def test_a_group_leaves_once_even_if_it_expires_afterwards() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots), control()])
    assert len(log.closes) == 1


def test_the_task_may_be_submitted_again_under_another_trace() -> None:
    log = Log()
    log.read_all([task(traceparent="00-a-b-01"), task(traceparent="00-c-d-01", created_at=T0 + 5)])
    assert log.rejects == []


def test_another_task_under_the_same_id_is_contradictory() -> None:
    log = Log()
    log.read_all([task(), task(group_size=8)])
    assert log.reasons() == [("tasks@1", "contradictory")]
    assert "Give a changed task a new task_id" in log.rejects[0].error


def test_another_value_under_the_same_reward_id_is_contradictory_and_the_first_wins() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, reward(slots[0], value=0.0), reward(slots[0], value=9.0), *scores(slots)[1:]])
    assert log.reasons() == [("rewards@1", "contradictory")]
    assert "the value 9.0, but rewards[5]@0 already said 0.0" in log.rejects[0].error
    assert log.group().responses[0].reward == 0.0


# --- one sampling ----------------------------------------------------------------------------------------------------


def test_of_two_samplings_the_one_that_was_whole_first_is_taken() -> None:
    first, second = answers(sampling_id="s1"), answers(sampling_id="s2", adapter_version=1)
    log = Log()
    # s2 begins first and ends last
    log.read_all([task(), second[0], *first, *second[1:], *scores(second), *scores(first)])
    group = log.group()
    assert (group.sampling_id, group.adapter_version) == ("s1", 0)
    assert {r.response_id for r in group.responses} == {r.response_id for r in first}


def test_the_other_sampling_is_superseded_whether_read_before_or_after() -> None:
    first, second = answers(sampling_id="s1"), answers(sampling_id="s2")
    before, after = Log(), Log()
    before.read_all([task(), *first, *second, *scores(first)])
    after.read_all([task(), *first, *scores(first), *second])
    assert before.reasons() == after.reasons() == [(f"responses@{n}", "superseded") for n in (4, 5, 6, 7)]
    assert encode(before.group()) == encode(after.group())


def test_a_sampling_by_two_versions_is_contradictory() -> None:
    log, slots = Log(), answers()
    slots[2] = response(slot=2, adapter_version=1)
    log.read_all([task(), *slots])
    assert log.reasons() == [("responses@2", "contradictory")]
    assert "sampling s1 began with adapter version 0, but slot 2 has 1" in log.rejects[0].error


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_token_ids": (9, 9)},
        {"tokenizer_digest": "x"},
        {"base_digest": "x"},
        {"sampling": dataclasses.replace(response().sampling, temperature=0.5)},
    ],
)
def test_slots_that_do_not_share_what_their_group_says_once_are_contradictory(changes: dict[str, Any]) -> None:
    log = Log()
    log.read_all([task(), response(slot=0, error="oom"), response(slot=1), response(slot=2, **changes)])
    assert log.reasons() == [("responses@2", "contradictory")]


def test_each_slot_may_have_its_own_seed() -> None:
    log = Log()
    seeded = [response(slot=n, sampling=dataclasses.replace(response().sampling, seed=n)) for n in range(4)]
    log.read_all([task(), *seeded])
    assert log.rejects == []


@pytest.mark.parametrize(
    ("asked", "answered", "says"),
    [
        ({}, {"group_size": 8}, "the task has group_size 4, but this response says 8"),
        ({}, {"policy": "other"}, "policy 'default', but this response is of 'other'"),
        ({"adapter_version": 3}, {"adapter_version": 2}, "adapter version 3 pinned, but version 2 answered"),
    ],
)
@pytest.mark.parametrize("task_first", [True, False])
def test_a_response_at_odds_with_its_task_is_rejected(
    asked: dict[str, Any], answered: dict[str, Any], says: str, task_first: bool
) -> None:
    log, wrong = Log(), response(**answered)
    log.read_all([task(**asked), wrong] if task_first else [wrong, task(**asked)])
    assert log.reasons() == [("responses@0", "contradictory")]
    assert says in log.rejects[0].error


def test_a_pinned_version_that_answers_makes_its_group() -> None:
    log, slots = Log(), answers(adapter_version=3)
    log.read_all([task(adapter_version=3, purpose="eval"), *slots, *scores(slots)])
    assert (log.group().adapter_version, log.group().metadata["pinned_version"]) == (3, "3")


# --- what failed -----------------------------------------------------------------------------------------------------


def test_a_failed_slot_is_left_out_of_the_baseline_and_listed() -> None:
    log, slots = Log(), answers()
    slots[1] = response(slot=1, error="out of memory")
    log.read_all([task(), *slots, *scores([slots[0], slots[2], slots[3]], (0.0, 1.0, 2.0))])
    group = log.group()
    assert (group.complete, group.reward_mean, left_out(group)) == (True, 1.0, [(1, "response_failed")])


def test_a_failed_score_is_missing_and_never_zero() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots, *scores(slots, (1.0, 2.0, 3.0)), reward(slots[3], error="timeout")])
    group = log.group()
    assert (group.complete, group.reward_mean, left_out(group)) == (True, 2.0, [(3, "score_failed")])


def test_a_score_of_a_failed_slot_changes_nothing() -> None:
    # some scorers judge errors too; whether that was read before the group left depends on the order
    slots = [*answers()[:3], response(slot=3, error="oom")]
    stray = reward(slots[3], created_at=T0 + 500)
    before, after = Log(), Log()
    before.read_all([task(), *slots, stray, *scores(slots[:3])])
    after.read_all([task(), *slots, *scores(slots[:3]), stray])
    assert encode(before.group()) == encode(after.group())


def test_a_group_of_failures_is_recorded_with_its_reason() -> None:
    log = Log()
    log.read_all([task(), *(response(slot=n, error="oom") for n in range(4))])
    group = log.group()
    assert (group.complete, group.dropped_reason, group.responses) == (True, "unscored", ())
    assert left_out(group) == [(n, "response_failed") for n in range(4)]


def test_a_train_group_with_too_few_scores_is_dropped_and_its_members_say_so() -> None:
    log, slots = Log(min_group=3), answers()
    slots[0], slots[1] = response(slot=0, error="oom"), response(slot=1, error="oom")
    log.read_all([task(), *slots, *scores(slots[2:])])
    group = log.group()
    assert (group.dropped_reason, group.responses) == ("too_few_scored", ())
    assert [reason for _, reason in left_out(group)] == ["response_failed"] * 2 + ["too_few_scored"] * 2
    assert (group.sampling_id, group.reward_mean) == ("s1", 0.5)


# --- time ------------------------------------------------------------------------------------------------------------


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
    assert log.reasons() == [("rewards@0", "unasked")]
    log.read_all([*slots, *scores(slots)])
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


def test_a_task_without_deadline_has_the_stages_counted_from_its_record() -> None:
    log = Log(deadline_s=2.5)
    log.read(task(), T0 + 7)
    log.read(task(), T0 + 1000)  # the first in its partition wins
    assert isinstance(log.state, Open)
    assert log.join.deadline_ms(log.state) == T0 + 7 + 2500


def test_with_deadline_zero_a_group_waits_for_ever() -> None:
    log = Log(deadline_s=0)
    log.read(task())
    assert isinstance(log.state, Open)
    assert log.join.deadline_ms(log.state) is None


def test_what_comes_after_the_group_left_is_late() -> None:
    log, slots = Log(), answers()
    log.read_all([task(), *slots[:3], *scores(slots)[:2], control(), slots[3], scores(slots)[2]])
    assert log.reasons() == [("responses@3", "late"), ("rewards@2", "late")]


def test_evict_forgets_and_only_what_has_left_is_forgotten() -> None:
    log = Log()
    log.read_all([task(), control(kind="evict")])
    assert isinstance(log.state, Open)
    log.read(control())
    assert isinstance(log.state, Closed)
    log.read(control(kind="evict"))
    assert log.state is None


def test_control_records_for_the_unknown_do_nothing() -> None:
    log = Log()
    log.read_all([control(), control(kind="evict"), control()])
    assert (log.state, log.closes, log.rejects) == (None, [], [])


def test_a_closed_marker_is_small_whatever_the_group_was() -> None:
    log, slots = Log(), answers(text="x" * 100_000)
    log.read_all([task(), *slots])
    assert isinstance(log.state, Open)
    assert len(dump(log.state)) < 2000
    log.read_all(scores(slots))
    assert isinstance(log.state, Closed)
    assert len(dump(log.state)) < 300


def test_repetitions_before_the_task_do_not_make_the_state_grow() -> None:
    log, slots = Log(), answers()
    log.read_all([*slots, *scores(slots)] * 20)
    assert isinstance(log.state, Open)
    assert len(log.state.early) == 8


def test_a_row_that_somebody_exchanged_is_parsed_and_not_remembered() -> None:
    rows, log = Rows(), Log()
    log.read_all([task(), *answers()])
    assert isinstance(log.state, Open)
    row = rows.dump(b"t1", log.state)
    assert rows.load(b"t1", row) is log.state
    assert rows.load(b"t1", dump(Open(first_seen_ms=7))) == Open(first_seen_ms=7)
    assert rows.load(b"t1", None) is None
    assert rows.load(b"t2", row) == log.state


def test_a_row_of_another_version_is_refused_with_the_way_out() -> None:
    row = dump(Open()).replace(b'"v":1', b'"v":99')
    with pytest.raises(ValueError, match=r"row has version 99, expected 1.*start under another consumer group"):
        load(row)


# --- any interleaving ------------------------------------------------------------------------------------------------


@st.composite
def partitions(draw: st.DrawFn) -> dict[str, list[Entry]]:
    """Draw the topics of one task: two samplings, failures, strays, contradictions, latecomers, and repetitions."""
    at = st.integers(T0, T0 + 120)  # the deadline is T0 + 100
    size = draw(st.integers(1, 3))
    sources = draw(st.sampled_from([("exact",), ("exact", "judge")]))
    asked = task(
        group_size=size,
        deadline_at=T0 + 100,
        adapter_version=draw(st.sampled_from([None, None, 0])),
        reward_sources=tuple(RewardSource(name=name) for name in sources),
    )
    slots: list[Response] = []
    for sampling in ("s1", "s2"):
        version = draw(st.sampled_from([0, 0, 1]))
        for slot in range(size):
            error = draw(st.sampled_from([None, None, None, "oom"]))
            slots.append(
                response(sampling_id=sampling, slot=slot, group_size=size, adapter_version=version, error=error)
            )
    slots += draw(st.lists(st.builds(response, slot=st.just(0), adapter_version=st.integers(0, 1)), max_size=1))
    verdicts = [
        reward(one, source=source, value=draw(st.sampled_from([0.0, 0.5, 1.0])))
        for one in slots
        for source in (*sources, "unasked")
    ]
    verdicts += draw(st.lists(st.sampled_from([reward(one, value=7.0) for one in slots]), max_size=2))

    def partition(events: Sequence[Event]) -> list[Entry]:
        order = draw(st.permutations(events))
        again = draw(st.lists(st.sampled_from(events), max_size=4)) if events else []
        return [(event, draw(at)) for event in (*order, *again)]

    return {"tasks": partition([asked]), "responses": partition(slots), "rewards": partition(verdicts)}


def interleaved(topics: dict[str, list[Entry]], seed: int) -> list[tuple[Event, int, int]]:
    """Return (event, offset, time) of all topics in some order that keeps each topic's own."""
    turns = [name for name, entries in topics.items() for _ in entries]
    random.Random(seed).shuffle(turns)
    heads = dict.fromkeys(topics, 0)
    order = []
    for name in turns:
        offset, heads[name] = heads[name], heads[name] + 1
        event, at_ms = topics[name][offset]
        order.append((event, offset, at_ms))
    return order


def outcome(order: Iterable[tuple[Event, int, int]], **rule: Any) -> bytes:
    """Return the bytes of the group that leaves when all of `order` was read, and its deadline has passed."""
    log = Log(**rule)
    for event, offset, at_ms in order:
        log.read_at(event, offset, at_ms)
    log.read(control())
    return encode(log.group())


@settings(max_examples=100)
@given(partitions(), st.integers(0, 2**32), st.integers(0, 2**32), st.sampled_from(["emit", "drop"]))
def test_the_order_in_which_topics_are_read_does_not_show_in_the_group(
    topics: dict[str, list[Entry]], one: int, other: int, partial: str
) -> None:
    assert outcome(interleaved(topics, one), partial=partial) == outcome(interleaved(topics, other), partial=partial)


@settings(max_examples=60)
@given(partitions(), st.integers(0, 2**32), st.integers(0, 20))
def test_records_delivered_again_at_the_end_change_nothing(
    topics: dict[str, list[Entry]], seed: int, again: int
) -> None:
    order = interleaved(topics, seed)
    repeated = [(event, offset + 1000, at_ms) for event, offset, at_ms in order[:again]]
    assert outcome([*order, *repeated]) == outcome(order)


@settings(max_examples=60)
@given(partitions(), st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 40))
def test_a_restart_that_reads_some_records_again_gives_the_same_group(
    topics: dict[str, list[Entry]], seed: int, stop: int, back: int
) -> None:
    # killed after `stop` records with the rows written, resumed `back` records before
    order = interleaved(topics, seed)
    stop = min(stop, len(order))
    assert outcome([*order[:stop], *order[max(0, stop - back) :]]) == outcome(order)


# --- when time is written --------------------------------------------------------------------------------------------


def timers(now_ms: int = 0, **rule: Any) -> tuple[Timers, Log]:
    made = Timers(Settings(advantages=Advantages(**rule)))
    made.rebuild(set(range(8)), [], Log().join, now_ms)
    return made, Log(**rule)


def test_a_group_expires_when_its_deadline_and_the_grace_have_passed() -> None:
    clock, log = timers(grace_s=5)
    log.read(task(deadline_at=T0 + 100))
    clock.note("t1", log.state, log.join)
    assert clock.due(T0 + 5099) == []
    (record,) = clock.due(T0 + 5100)
    assert (record.task_id, record.kind) == ("t1", "expire")
    assert clock.due(T0 + 9999) == []


def test_a_closed_group_is_evicted_when_it_was_remembered_long_enough() -> None:
    clock, log = timers(evict_after_s=60)
    log.read_all([task(), control()])
    clock.note("t1", log.state, log.join)
    assert clock.due(T0 + 59_999) == []
    assert [record.kind for record in clock.due(T0 + 60_000)] == ["evict"]


def test_a_group_that_left_no_longer_expires() -> None:
    clock, log = timers(evict_after_s=0)
    log.read(task())
    clock.note("t1", log.state, log.join)
    log.read(control())
    clock.note("t1", log.state, log.join)
    assert clock.due(T0 * 2) == []


def test_no_time_passes_while_a_backlog_is_read() -> None:
    # after an outage the answers that came in time are in the log, and not read yet
    clock, log = timers(grace_s=5)
    log.read(task(deadline_at=T0 + 100))
    clock.note("t1", log.state, log.join)
    now = T0 + 3_600_000
    clock.saw(T0 + 50, now)
    assert clock.due(now + 4999) == []
    clock.saw(T0 + 60, now + 4000)
    assert clock.due(now + 8999) == []
    assert [record.kind for record in clock.due(now + 9000)] == ["expire"]


def test_a_worker_that_has_just_begun_looks_for_a_backlog_first() -> None:
    log = Log()
    log.read(task(deadline_at=T0 + 100))
    clock = Timers(Settings())
    now = T0 + 3_600_000
    clock.rebuild(set(range(8)), [("t1", log.state)], log.join, now)
    assert clock.due(now + 1000) == []
    assert len(clock.due(now + 5000)) == 1


def test_rows_of_partitions_owned_by_others_have_no_timers_here() -> None:
    log = Log()
    log.read(task(deadline_at=T0 + 100))
    clock = Timers(Settings())
    clock.rebuild(set(), [("t1", log.state)], log.join, T0)
    assert clock.due(T0 * 2) == []
