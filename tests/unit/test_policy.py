"""The policy agent's decisions: which tasks may start, which are answered together, and which offsets are done."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings, strategies as st

from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    Batch,
    Coordinates,
    Response,
    Sampling,
    Task,
    derive_id,
    problems,
)
from streams.adapters.admission.admission import Admission, RecentTasks
from streams.adapters.admission.held_back import HeldBack
from streams.adapters.admission.sampling_batch import SamplingBatch, WaitingTask, choose
from streams.adapters.router import VersionRouter, route
from streams.adapters.serving import Serving, answers
from streams.engines.protocol import Completion, SamplingRequest, failed_slots
from streams.settings.model import Batches
from streams.stages.batches import BatchWindow, Cutter
from streams.stages.policy.response_writer import ServedVersion, response
from streams.stages.policy.sampling import shape_problem
from tests.support import factories
from tests.support.factories import member
from tests.support.thoroughness import examples


def task(number: int = 0, **changed: object) -> Task:
    whole: dict[str, object] = {"task_id": derive_id("task", number), "policy": "p", "group_size": 2}
    return factories.task(**whole | changed)


def waiting(number: int = 0, **changed: object) -> WaitingTask:
    return WaitingTask(task(number, **changed), Coordinates("tasks", 0, number), None)


def group(number: int, *, version: int = 0, teaches: bool = True, **changed: object) -> AdvantagedGroup:
    responses = tuple(member(slot, advantage=(slot - 0.5) * teaches) for slot in (0, 1))
    named = {"task_id": derive_id("task", number), "policy": "p", "adapter_version": version, "responses": responses}
    return factories.group(**named | changed)


class Stage:
    """The batch stage on one policy's groups."""

    def __init__(self, rule: Batches) -> None:
        self.cutter, self.window = Cutter(rule), BatchWindow()
        self.seen: set[str] = set()
        self.offset = -1
        self.dropped: list[str] = []

    def write(self, one: AdvantagedGroup) -> tuple[int, Sequence[Batch]]:
        self.offset += 1
        at = Coordinates("groups", 0, self.offset)
        doubled = one.group_id in self.seen
        self.seen.add(one.group_id)
        self.window, made = self.cutter.reduce(self.window, one, at, doubled=doubled)
        self.dropped += [dropped.reason for batch in made for dropped in batch.dropped]
        return self.offset, made


# --- admission --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_before_anything_is_trained_as_many_tasks_may_start_as_batches_may_be_ahead(lag: int) -> None:
    assert Admission(Batches(groups=4, max_policy_lag=lag)).room(0) == 4 * (lag + 1)


def test_a_task_holds_its_place_from_its_sampling_until_its_batch_is_cut() -> None:
    admission, stage = Admission(Batches(groups=2, max_policy_lag=0)), Stage(Batches(groups=2, max_policy_lag=0))
    admission.start(task(1).task_id, give_up_ms=None)
    assert admission.room(0) == 1
    offset, _ = stage.write(group(1))
    admission.group(group(1), offset)
    assert (admission.room(0), admission.in_flight, admission.pending) == (1, 0, 1)
    offset, (batch,) = stage.write(group(2))
    admission.group(group(2), offset)
    admission.batch(batch)
    assert (admission.room(0), admission.room(1)) == (0, 2)


def test_a_batch_that_is_read_before_its_groups_counts_them_once() -> None:
    rule = Batches(groups=2, max_policy_lag=1)
    admission, stage = Admission(rule), Stage(rule)
    stage.write(group(1))
    _, (batch,) = stage.write(group(2))
    admission.batch(batch)
    admission.group(group(1), 0)
    admission.group(group(2), 1)
    assert (admission.sequence, admission.pending) == (1, 0)


@pytest.mark.parametrize(
    "useless",
    [
        group(1, teaches=False),
        group(1, responses=(), dropped_reason="unanswered", adapter_version=-1),
        group(1, version=5),
    ],
)
def test_a_group_that_teaches_nothing_gives_its_place_back_at_once(useless: AdvantagedGroup) -> None:
    admission = Admission(Batches(groups=2, max_policy_lag=0))
    admission.start(useless.task_id, give_up_ms=None)
    admission.group(useless, 0)
    assert admission.room(0) == 2


def test_a_group_of_an_eval_task_takes_no_place() -> None:
    admission = Admission(Batches(groups=2, max_policy_lag=0))
    admission.group(group(1, purpose="eval"), 0)
    assert admission.room(0) == 2


def test_a_task_whose_group_is_out_does_not_become_in_flight_again() -> None:
    admission = Admission(Batches(groups=2, max_policy_lag=0))
    admission.group(group(1, teaches=False), 0)
    admission.start(task(1).task_id, give_up_ms=None)
    assert (admission.in_flight, admission.is_out(task(1).task_id), admission.is_out(task(2).task_id)) == (
        0,
        True,
        False,
    )


def test_a_task_whose_group_never_comes_does_not_hold_its_place_for_ever() -> None:
    admission = Admission(Batches(groups=2, max_policy_lag=0))
    admission.start("a", give_up_ms=100)
    admission.start("b", give_up_ms=None)
    assert (admission.expire(100), admission.expire(101), admission.in_flight) == ([], ["a"], 1)


def test_a_task_whose_score_failed_gives_its_place_back_and_its_group_counts_if_it_comes() -> None:
    unscored = RecentTasks()
    admission = Admission(Batches(groups=2, max_policy_lag=0), unscored)
    for number in (1, 2):
        admission.start(task(number).task_id, give_up_ms=None)
    assert admission.room(0) == 0
    unscored.add(task(1).task_id)
    admission.give_up(task(1).task_id)
    assert (admission.room(0), admission.in_flight) == (1, 1)
    admission.start(task(1).task_id, give_up_ms=None)  # a restarted agent finds its answers in the log
    assert admission.room(0) == 1
    admission.group(group(1), 0)  # scored after all
    assert (admission.room(0), admission.pending) == (0, 1)


def test_only_a_version_that_no_batch_may_hold_is_hopeless() -> None:
    admission = Admission(Batches(groups=1, max_policy_lag=1))
    for number in (0, 1):
        offset, (batch,) = (
            number,
            Cutter(Batches(groups=1)).reduce(
                BatchWindow(sequence=number),
                group(number, version=number),
                Coordinates("groups", 0, number),
                doubled=False,
            )[1],
        )
        admission.group(group(number, version=number), offset)
        admission.batch(batch)
    assert [admission.hopeless(version) for version in (0, 1, 2)] == [True, False, False]


fates = st.lists(
    st.tuples(st.integers(0, 30), st.integers(-1, 2), st.sampled_from(["teaches", "equal", "dropped", "eval"])),
    max_size=60,
)


@given(fates, st.integers(0, 2), st.integers(1, 3), st.randoms(use_true_random=False))
@settings(max_examples=examples(200))
def test_admission_and_the_batch_stage_agree_on_what_is_useful(
    fates: list[tuple[int, int, str]], lag: int, size: int, chance: random.Random
) -> None:
    # `batches` is read whenever it comes: before its groups, or long after
    rule = Batches(groups=size, max_policy_lag=lag)
    admission, stage = Admission(rule), Stage(rule)
    groups: deque[tuple[AdvantagedGroup, int]] = deque()
    batches: deque[Batch] = deque()
    written: dict[int, AdvantagedGroup] = {}
    for number, ahead, fate in fates:
        one = group(number, version=stage.window.sequence - ahead, teaches=fate == "teaches")
        if fate == "dropped":
            one = replace(one, dropped_reason="unscored", responses=())
        one = written.setdefault(number, replace(one, purpose="eval" if fate == "eval" else "train"))
        offset, made = stage.write(one)  # the same number again is the same group again
        groups.append((one, offset))
        batches += made
        while groups and chance.random() < 0.5:
            admission.group(*groups.popleft())
        while batches and chance.random() < 0.3:
            admission.batch(batches.popleft())
    while groups:
        admission.group(*groups.popleft())
    in_all = stage.window.sequence * size + len(stage.window.entries)
    assert admission.sequence * size + admission.pending == in_all
    while batches:
        admission.batch(batches.popleft())
    assert (admission.sequence, admission.pending) == (stage.window.sequence, len(stage.window.entries))


class Loop:
    """One agent under admission, a join, the batch stage, a trainer and promotions, each moving when it likes."""

    def __init__(self, rule: Batches, *, useful: float, in_order: bool, seed: int) -> None:
        self.chance, self.useful, self.in_order = random.Random(seed), useful, in_order
        self.admission, self.stage = Admission(rule), Stage(rule)
        self.sampled: list[tuple[int, int]] = []
        self.groups: deque[tuple[AdvantagedGroup, int]] = deque()
        self.batches: deque[Batch] = deque()
        self.started = self.untrained = self.trained = self.served = 0

    def run(self, versions: int) -> None:
        moves = [self.sample, self.join, self.read_group, self.read_batch, self.train, self.promote]
        idle = 0
        while self.served < versions:
            idle = 0 if self.chance.choice(moves)() else idle + 1
            assert idle < 500, "nothing moves any more"

    def sample(self) -> bool:
        if self.admission.room(self.served) < 1:
            return False
        self.admission.start(derive_id("task", self.started), give_up_ms=None)
        self.sampled.append((self.started, self.served))
        self.started += 1
        return True

    def join(self) -> bool:
        if not self.sampled:
            return False
        number, version = self.sampled.pop(0 if self.in_order else self.chance.randrange(len(self.sampled)))
        one = group(number, version=version, teaches=self.chance.random() < self.useful)
        offset, made = self.stage.write(one)
        self.groups.append((one, offset))
        self.batches += made
        self.untrained += len(made)
        return True

    def read_group(self) -> bool:
        if self.groups:
            self.admission.group(*self.groups.popleft())
            return True
        return False

    def read_batch(self) -> bool:
        if self.batches:
            self.admission.batch(self.batches.popleft())
            return True
        return False

    def train(self) -> bool:
        ready = self.untrained > 0
        self.untrained, self.trained = self.untrained - ready, self.trained + ready
        return ready

    def promote(self) -> bool:
        newer = self.served < self.trained
        self.served = self.trained
        return newer


loops = given(lag=st.integers(0, 2), size=st.integers(1, 4), useful=st.floats(0.2, 1), seed=st.integers(0, 2**32))


@loops
@settings(max_examples=examples(60), deadline=None)
def test_no_group_is_stale_when_groups_come_in_the_order_of_their_samplings(
    lag: int, size: int, useful: float, seed: int
) -> None:
    loop = Loop(Batches(groups=size, max_policy_lag=lag), useful=useful, in_order=True, seed=seed)
    loop.run(versions=5)
    assert "stale" not in loop.stage.dropped


@loops
@settings(max_examples=examples(60), deadline=None)
def test_the_loop_never_locks_up_in_whatever_order_groups_come(lag: int, size: int, useful: float, seed: int) -> None:
    Loop(Batches(groups=size, max_policy_lag=lag), useful=useful, in_order=False, seed=seed).run(versions=5)


# --- rounds -----------------------------------------------------------------------------------------------------------


BASE_ALONE = Serving()
SECOND_OF_THREE = Serving({0: "superseded", 1: "superseded", 2: "primary"}, primary=2)


def chosen(
    tasks: Sequence[WaitingTask], *, now: Serving = BASE_ALONE, room: int = 100, most: int = 4
) -> tuple[int, list[int]] | None:
    found = choose(tasks, version_for=partial(route, now), room=lambda _: room, limit=most)
    return None if found is None else (found.version, [one.at.offset for one in found.tasks])


def test_a_round_takes_tasks_in_order_up_to_its_size() -> None:
    assert chosen([waiting(n) for n in range(6)]) == (0, [0, 1, 2, 3])


def test_eval_and_serve_go_before_train() -> None:
    tasks = [waiting(0), waiting(1), waiting(2, purpose="serve"), waiting(3, purpose="eval")]
    assert chosen(tasks, most=3) == (0, [2, 3, 0])


def held_back(
    caplog: pytest.LogCaptureFixture, admission: Admission, *versions: AdapterEvent, **changed: object
) -> list[str]:
    """Return what is said about 3 train tasks that wait for two minutes and a half."""
    router, seconds = VersionRouter("p"), iter((0.0, 59.9, 60.0, 90.0, 150.0))
    for event in versions:
        router.take(event)
    agent = HeldBack(router, admission, clock=lambda: next(seconds))
    with caplog.at_level("INFO", "streamward.policy"):
        for _ in range(5):
            agent.look([waiting(n, purpose="train", **changed) for n in range(2)], set_aside=1)
    return [record.getMessage() for record in caplog.records]


def full(*, sampled: int = 0, cut: int = 0, scored: int = 0) -> Admission:
    """Return an admission with this many tasks in flight, batches of 2 cut, and groups that wait for a batch."""
    admission = Admission(Batches(groups=2, max_policy_lag=1))
    for sequence in range(cut):
        offsets = (2 * sequence, 2 * sequence + 1)
        admission.batch(factories.batch(policy="p", sequence=sequence, groups_offsets=offsets))
    for number in range(scored):
        admission.group(group(number), 2 * cut + number)
    for number in range(sampled):
        admission.start(f"sampled-{number}", give_up_ms=None)
    return admission


def promoted(version: int) -> list[AdapterEvent]:
    return [factories.trained(version, policy="p"), factories.promoted(version, policy="p")]


@pytest.mark.parametrize(
    ("admission", "versions", "what"),
    [
        (full(cut=2), [], "the trainer: batches 0 to 1 are cut and not trained (`streamward train`)"),
        (full(cut=1, sampled=2), [], "the trainer: batch 0 is cut and not trained (`streamward train`)"),
        (
            full(cut=2, sampled=4),
            [*promoted(1), factories.trained(2, policy="p")],
            "version 2 to serve: it is trained, and version 1 answers (`streamward adapters rollout`)",
        ),
        (
            full(sampled=3, scored=1),
            [],
            "3 groups: their tasks are answered, and wait for rewards (`streamward scoring`)",
        ),
        (full(scored=4), [], "the next batch: 4 groups are there to cut it of (`streamward streams`)"),
    ],
)
def test_every_minute_the_agent_says_for_what_train_tasks_wait_and_how_long(
    admission: Admission, versions: list[AdapterEvent], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert held_back(caplog, admission, *versions) == [
        f"3 train tasks wait, for 1 min now, for {what}",
        f"3 train tasks wait, for 2 min now, for {what}",
    ]


def test_the_agent_says_for_which_unknown_version_a_pinned_task_waits(caplog: pytest.LogCaptureFixture) -> None:
    assert held_back(caplog, full(), adapter_version=7)[0] == (
        "3 train tasks wait, for 1 min now, for version 7, which is not in the log"
    )


def test_train_tasks_of_which_some_are_answered_now_and_then_do_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    seconds = iter(range(0, 300, 30))
    agent = HeldBack(VersionRouter("p"), full(cut=2), clock=lambda: next(seconds))
    with caplog.at_level("INFO", "streamward.policy"):
        for _ in range(8):
            agent.note_answered([waiting(0, purpose="train")])
            agent.look([waiting(1, purpose="train"), waiting(2, purpose="eval")])
    assert caplog.records == []


def test_train_tasks_wait_for_room_and_the_others_do_not() -> None:
    tasks = [waiting(0), waiting(1), waiting(2), waiting(3, purpose="eval")]
    assert (chosen(tasks, room=2), chosen(tasks, room=0)) == ((0, [3, 0, 1]), (0, [3]))
    assert chosen(tasks[:3], room=0) is None


def test_a_round_has_one_version() -> None:
    tasks = [waiting(0, adapter_version=1), waiting(1), waiting(2, adapter_version=2), waiting(3, adapter_version=1)]
    assert chosen(tasks, now=SECOND_OF_THREE) == (1, [0, 3])


def test_tasks_without_a_pin_take_the_version_in_force() -> None:
    assert chosen([waiting(0), waiting(1, adapter_version=2)], now=SECOND_OF_THREE) == (2, [0, 1])


def test_a_task_pinned_to_a_version_nobody_heard_of_waits_and_holds_nobody_up() -> None:
    assert chosen([waiting(0, purpose="eval", adapter_version=9), waiting(1)]) == (0, [1])


def test_long_and_short_answers_are_not_decoded_together() -> None:
    tasks = [waiting(0), waiting(1, sampling=Sampling(max_tokens=9)), waiting(2)]
    assert chosen(tasks) == (0, [0, 2])


def test_nothing_waits_so_nothing_is_chosen() -> None:
    assert choose([], version_for=lambda _: 0, room=lambda _: 1, limit=1) is None
    assert SamplingBatch(0, ()).tasks == ()


def canary(share: float) -> Serving:
    return Serving({0: "primary", 1: "canary"}, primary=0, candidate=1, share=share)


def test_a_round_is_of_one_arm_and_the_task_that_came_first_decides_which() -> None:
    tasks = [replace(waiting(n), arrival=n) for n in range(40)]
    arms = {n: answers(canary(0.5), tasks[n].task.task_id) for n in range(40)}
    first = arms[0]
    assert chosen(tasks, now=canary(0.5)) == (first, [n for n in range(40) if arms[n] == first][:4])


def test_tasks_are_taken_in_the_order_in_which_they_came_whatever_their_partition() -> None:
    tasks = [replace(waiting(n), arrival=10 - n) for n in range(3)]
    assert chosen(tasks) == (0, [2, 1, 0])


@given(st.floats(0.02, 0.98), st.integers(1, 8), st.randoms(use_true_random=False))
@settings(max_examples=examples(50), deadline=None)
def test_neither_arm_starves_however_fast_tasks_come(share: float, most: int, chance: random.Random) -> None:
    # as many come as are answered, so there is never an end of the queue: each waits for those before it, at most
    now, backlog = canary(share), 30
    queue = [replace(waiting(n), arrival=n) for n in range(backlog)]
    chance.shuffle(queue)
    came = backlog
    for _ in range(200):
        found = choose(queue, version_for=partial(route, now), room=lambda _: 100, limit=most)
        assert found is not None
        assert {answers(now, one.task.task_id) for one in found.tasks} == {found.version}
        assert found.tasks[0] == min(queue, key=lambda one: one.arrival)
        gone = {one.arrival for one in found.tasks}
        queue = [one for one in queue if one.arrival not in gone]
        for _ in gone:
            queue.append(replace(waiting(came), arrival=came))
            came += 1
        assert min(one.arrival for one in queue) >= came - backlog * (most + 1)


def test_an_arm_that_has_no_room_leaves_the_round_to_the_other() -> None:
    tasks = [replace(waiting(n), arrival=n) for n in range(20)]
    for full in (0, 1):
        found = choose(tasks, version_for=partial(route, canary(0.5)), room=lambda v, f=full: 9 * (v != f), limit=4)
        assert found is not None and found.version == 1 - full


# --- arms -------------------------------------------------------------------------------------------------------------


move = partial(factories.adapter_event, policy="p")


def arms(*moves: AdapterEvent) -> VersionRouter:
    made = VersionRouter("p")
    for one in moves:
        made.take(one)
    return made


IN_CANARY = (
    move("trained", 1),
    move("promoted", 1, expected_version=0),
    move("trained", 2),
    move("canary_started", 2, expected_version=1, share=0.5),
)


def test_a_candidate_that_cannot_be_loaded_gives_its_tasks_to_the_primary() -> None:
    both = arms(*IN_CANARY)
    assert {route(both.serving, task(n)) for n in range(40)} == {1, 2}
    for gone in (both.unusable, both.unreachable):
        gone.add(2)
        assert {route(both.serving, task(n)) for n in range(40)} == {1}
        gone.clear()
    assert {route(both.serving, task(n)) for n in range(40)} == {1, 2}


def test_a_primary_that_cannot_be_loaded_is_stood_in_for_and_the_canary_goes_on() -> None:
    both = arms(*IN_CANARY)
    both.unusable.add(1)
    assert {route(both.serving, task(n)) for n in range(40)} == {0, 2}


def test_whoever_stands_in_has_its_files() -> None:
    moves = (
        move("promoted", 2, expected_version=1),
        move("trained", 3),
        move("promoted", 3, expected_version=2),
        move("retired", 2),
    )
    late = arms(*IN_CANARY, *moves)
    late.unusable.add(3)
    assert (late.primary, late.is_retired(2), late.is_retired(0)) == (1, True, False)


def test_a_pin_is_taken_at_its_word_whatever_became_of_the_version() -> None:
    here = arms(*IN_CANARY, move("rejected", 2), move("trained", 3), move("retired", 3))
    assert [route(here.serving, task(adapter_version=v)) for v in (0, 1, 2, 3, 4)] == [0, 1, 2, 3, None]


# --- answers ----------------------------------------------------------------------------------------------------------

SERVED = ServedVersion(
    adapter_version=3, engine="e", base_digest="b", tokenizer_digest="t", created_at=7, latency_ms=1.5
)
COMPLETION = Completion(
    slot=1,
    text="2",
    finish_reason="stop",
    prompt_token_ids=(5, 6),
    completion_token_ids=(7, 8),
    logprobs=(-0.5, -0.25),
)


def request() -> SamplingRequest:
    return SamplingRequest(sampling_id="s", task=task())


def test_a_response_has_the_tokens_as_sampled_and_says_who_answered() -> None:
    one = response(request(), COMPLETION, SERVED)
    assert list(problems(one)) == []
    assert (one.response_id, one.adapter_version, one.engine) == (derive_id("s", 1), 3, "e")
    assert (list(one.completion_token_ids), list(one.logprobs)) == ([7, 8], [-0.5, -0.25])
    assert list(one.loss_mask) == [True, True]
    assert (one.prompt_tokens, one.completion_tokens) == (2, 2)


@pytest.mark.parametrize(
    "one",
    [
        response(request(), replace(COMPLETION, error="too long", finish_reason="error"), SERVED),
        response(request(), failed_slots(request(), "too long")[0], SERVED),
    ],
)
def test_a_failed_slot_is_a_response_with_an_error_and_without_tokens(one: Response) -> None:
    assert list(problems(one)) == []
    assert (one.finish_reason, one.error, list(one.completion_token_ids), one.text) == ("error", "too long", [], "")


def test_an_engine_that_leaves_out_a_slot_is_found_out() -> None:
    assert shape_problem(request(), [COMPLETION]) == "the engine answered slots [1], expected 0 to 1 in order"
    assert shape_problem(request(), [replace(COMPLETION, slot=0), COMPLETION]) is None
