"""Jobs: the fold of their events, and what the controller asks for next."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plugins.jobs.controller import job_reducer
from plugins.jobs.controller.job_reducer import MOST_DRAWS, NOT_CONVERGED, Effect, OpenJob
from plugins.jobs.fold.all_jobs import AllJobs
from plugins.jobs.fold.monthly_spending import MonthBudget
from plugins.jobs.fold.questions import suite, train_task
from plugins.jobs.fold.state import (
    BUDGET_EXCEEDED,
    ENDED,
    TRANSITIONS,
    JobState,
    JobUsage,
    cost_usd,
    fold,
    refusal,
    split,
)
from plugins.jobs.log import job_view, spending
from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    JobEvent,
    JobPrices,
    JobQuestion,
    JobSpec,
    Message,
    Task,
    derive_id,
)
from streams.adapters.versions import AdapterState, empty, fold as fold_adapter
from streams.errors import SettingsError
from streams.settings.model import Batches
from tests.support.factories import job_event, job_spec
from tests.support.log.rest_of_loop import RestOfLoop
from tests.support.log.whole_run import Written

KINDS = sorted(TRANSITIONS)
RULE = Batches(groups=4, max_policy_lag=0)
QUESTIONS = tuple(JobQuestion(query=f"{n} + 1 =", verifier=f'{{"answer": "{n + 1}"}}') for n in range(20))


def spec(**changes: Any) -> JobSpec:
    return job_spec(**{"questions": QUESTIONS, "prices": None} | changes)


# --- the fold ---------------------------------------------------------------------------------------------------------


@given(st.data())
def test_in_any_order_and_however_often_an_event_takes_effect_at_most_once_and_in_its_turn(data: st.DataObject) -> None:
    draws = data.draw(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 6)), max_size=25))
    events = [job_event(kind, 0 if kind == "created" else max(1, n)) for kind, n in draws]
    events += data.draw(st.lists(st.sampled_from(events), max_size=10)) if events else []
    state: JobState | None = None
    effective: list[JobEvent] = []
    for event in data.draw(st.permutations(events)):
        before, state = state, fold(state, event)
        if state is not None and (before is None or state.sequence > before.sequence):
            effective.append(event)
            assert event.sequence == (0 if before is None else before.sequence)
    assert len({event.event_id for event in effective}) == len(effective) == (0 if state is None else state.sequence)
    assert [event.sequence for event in effective] == list(range(len(effective)))
    if state is not None:
        assert list(state.effective) == [event.event_id for event in effective]
        assert not state.effective.keys() & state.refused.keys() or all(
            one in KINDS for one in state.effective.values()
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [None, "queued", "running", "paused", "completed", "failed", "cancelled"])
def test_an_event_takes_effect_from_the_statuses_of_its_row_alone(kind: Any, status: Any) -> None:
    state = None if status is None else dataclasses.replace(created(), status=status, sequence=7)
    allowed = status in TRANSITIONS[kind].allowed
    assert (refusal(state, kind, 0 if status is None else 7) is None) == allowed


def test_nothing_happens_to_a_job_that_has_ended() -> None:
    assert all(not ENDED & transition.allowed for transition in TRANSITIONS.values())


def test_of_two_decisions_against_the_same_state_the_second_is_refused_with_the_reason() -> None:
    first, second = job_event("paused", 1, actor="ann"), job_event("cancelled", 1, actor="bob", event_id="other")
    state = fold(fold(created(), first), second)
    assert state is not None
    assert state.status == "paused"
    assert "it was decided when 1 events had taken effect, and there are 2" in state.refused["other"]


def test_a_resumed_job_waits_for_its_turn_and_keeps_the_version_it_began_with() -> None:
    state: JobState | None = created()
    for number, (kind, changes) in enumerate(
        [("started", {"version": 4, "groups_next": 9}), ("paused", {}), ("resumed", {})], start=1
    ):
        assert state is not None
        state = fold(state, job_event(kind, number, **changes))
    assert state is not None and state.status == "queued"
    state = fold(state, job_event("started", 4, version=6, groups_next=9))
    assert state is not None and (state.status, state.base_version) == ("running", 4)


@given(st.lists(st.text(max_size=8), unique=True, max_size=40), st.floats(0, 1), st.text(max_size=8))
def test_a_question_is_on_the_same_side_whatever_the_others_are(others: list[str], share: float, one: str) -> None:
    together, alone = [JobQuestion(query=text) for text in [one, *others]], [JobQuestion(query=one)]
    assert (0 in split(together, share)[0]) == (0 in split(alone, share)[0])
    variant = [JobQuestion(query=f"{one} in other words", variant_of=one)]
    assert split(variant, share) == split(alone, share)
    train, held_out = split(together, share)
    assert sorted((*train, *held_out)) == list(range(len(together)))


def test_about_a_fifth_of_many_questions_is_held_out() -> None:
    _, held_out = split([JobQuestion(query=f"question {n}") for n in range(2000)], 0.2)
    assert 340 < len(held_out) < 460


# --- the controller over a log in memory ------------------------------------------------------------------------------


def created(**changes: Any) -> JobState:
    state = fold(None, job_event("created", 0, spec=spec(**changes)))
    assert state is not None
    return state


class Log:
    """The topics of one job, and controllers that are killed over them."""

    def __init__(self, rest: RestOfLoop, **changes: Any) -> None:
        self.rest, self.jobs = rest, [job_event("created", 0, spec=spec(**changes))]
        self.tasks: list[Task] = []
        self.groups: list[AdvantagedGroup] = []
        self.adapters: list[AdapterEvent] = []
        self.open: OpenJob | None = None
        self.sent: set[str] = set()
        self.stop_after = 0

    @property
    def job(self) -> JobState:
        state: JobState | None = None
        for event in self.jobs:
            state = fold(state, event)
        assert state is not None
        return state

    @property
    def versions(self) -> AdapterState:
        state = empty("default")
        for event in self.adapters:
            state = fold_adapter(state, event)
        return state

    def killed(self) -> None:
        """Lose what the controller knows; the next looks which tasks are in the log."""
        self.open, self.sent = None, {task.task_id for task in self.tasks}

    def act(self, most: int | None = None) -> bool:
        """Take in the log, and write what is due; killed after the write number `most`. Return whether it wrote."""
        job = self.job
        due: Sequence[Effect]
        if job.status == "queued":
            due = [job_reducer.start_event(job, self.versions, len(self.groups))]
        elif job.status != "running":
            return False
        else:
            self.open = self.open or job_reducer.begin(job, self.rest.rule, self.stop_after)
            self.open = job_reducer.after_event(self.open, job)
            for offset, group in enumerate(self.groups):
                self.open = job_reducer.after_group(self.open, group, offset, group.created_at)
            due = job_reducer.due(self.open, self.versions)
        new = [effect for effect in due if id_of(effect) not in self.sent]
        for effect in new[:most]:
            self.sent.add(id_of(effect))
            into: list[Any] = {Task: self.tasks, JobEvent: self.jobs, AdapterEvent: self.adapters}[type(effect)]
            into.append(effect)
            if isinstance(effect, AdapterEvent):
                self.rest.take(effect)
        if most is not None:
            self.killed()
        return bool(new)

    def answer(self, number: int = 0) -> bool:
        """Answer one of the tasks that wait. Return whether there was one."""
        waiting = [task for task in self.tasks if task.task_id not in self.rest.answered]
        for event in self.rest.answer(waiting[number % len(waiting)]) if waiting else ():
            (self.groups if isinstance(event, AdvantagedGroup) else self.adapters).append(event)  # type: ignore[arg-type]
        return bool(waiting)

    def run(self) -> JobState:
        """Work until nothing is left to do."""
        while self.act() or self.answer():
            pass
        return self.job

    def kinds(self) -> list[str]:
        return [event.kind for event in self.jobs]


def id_of(effect: Effect) -> str:
    return effect.task_id if isinstance(effect, Task) else effect.event_id


def test_a_job_measures_a_baseline_trains_and_evaluates_every_nth_version_and_the_last() -> None:
    log = Log(RestOfLoop(RULE))
    job = log.run()
    assert job.status == "completed", job
    assert log.kinds() == [
        "created", "started", "evaluated", "iteration", "iteration", "evaluated", "iteration", "evaluated", "completed",
    ]  # fmt: skip
    assert [(one.iteration, one.version) for one in job.evaluations] == [(0, 0), (2, 2), (3, 3)]
    held_out = len(job.held_out)
    assert (held_out, len(job.train)) == (7, 13)
    assert [round(one.metrics["success"] * held_out) for one in job.evaluations] == [0, 2, 3]
    assert job.evaluations[-1].metrics["success_gain"] == pytest.approx(3 / held_out)
    purposes = Counter(task.purpose for task in log.tasks)
    assert purposes == {"train": 3 * 4, "eval": 3 * held_out}


def test_held_out_questions_are_never_trained_on() -> None:
    log = Log(RestOfLoop(RULE), iterations=6)
    log.run()
    asked = {purpose: {task.messages[0].content for task in log.tasks if task.purpose == purpose} for purpose in
             ("train", "eval")}  # fmt: skip
    assert not asked["train"] & asked["eval"]
    assert asked["train"] | asked["eval"] == {question.query for question in QUESTIONS}


def test_a_draw_that_its_scorer_gave_up_on_is_replaced_at_once_and_counts_if_its_group_comes() -> None:
    log = Log(RestOfLoop(RULE))
    log.act()
    while not any(task.purpose == "train" for task in log.tasks):
        log.answer()
        log.act()
    state, train = log.open, [task for task in log.tasks if task.purpose == "train"]
    assert state is not None and job_reducer.draws_needed(state) == len(train) == 4
    for task in train[1:]:
        for event in log.rest.answer(task):
            assert isinstance(event, AdvantagedGroup)
            log.groups.append(event)
    log.act()
    assert len([task for task in log.tasks if task.purpose == "train"]) == 4, "a score may come any moment"
    assert log.open is not None
    log.open = job_reducer.after_failed_score(log.open, train[0].task_id)
    assert job_reducer.after_failed_score(log.open, "another") == log.open
    log.act()
    assert len([task for task in log.tasks if task.purpose == "train"]) == 5
    late = next(event for event in log.rest.answer(train[0]) if isinstance(event, AdvantagedGroup))
    counted = job_reducer.after_group(log.open, late, len(log.groups), late.created_at)
    assert (log.open.fates[1, 0], counted.fates[1, 0]) == ("score_failed", "")


def test_what_follows_from_a_group_that_timed_out_has_the_time_of_its_record() -> None:
    log = Log(RestOfLoop(RULE))
    while not log.groups and (log.act() or log.answer()):
        pass
    log.act()
    assert log.open is not None
    late_ms = log.groups[0].created_at + 20 * 60_000
    late = dataclasses.replace(log.groups[0], group_id="another")
    assert job_reducer.after_group(log.open, late, len(log.groups), late_ms).last_at == late_ms


@given(st.data())
def test_killed_after_any_write_and_continued_a_job_asks_for_each_task_and_event_once(data: st.DataObject) -> None:
    whole = Log(RestOfLoop(RULE))
    whole.run()
    draw = random.Random(data.draw(st.integers(0, 2**32)))
    log = Log(RestOfLoop(RULE))
    while not log.job.has_ended:
        if draw.random() < 0.4:
            log.act(most=draw.choice((None, 0, 1, 2, 3)))
        else:
            log.answer(draw.randrange(100))
    assert log.kinds() == whole.kinds()
    assert len({event.event_id for event in log.jobs}) == len(log.jobs)
    assert len({task.task_id for task in log.tasks}) == len(log.tasks)
    assert {task.task_id for task in log.tasks} == {task.task_id for task in whole.tasks}
    assert log.job.usage == whole.job.usage
    assert [event.event_id for event in log.adapters if event.kind == "retired"] == [
        event.event_id for event in whole.adapters if event.kind == "retired"
    ]


def test_a_question_with_a_whole_prompt_is_asked_with_it_in_training_and_in_evaluations() -> None:
    prompt = (Message(role="system", content="Be brief."), Message(role="user", content="1 + 1 ="))
    asked = spec(questions=(JobQuestion(query="1 + 1 =", messages=prompt),), held_out_share=0.0)
    job = fold(None, job_event("created", spec=asked))
    assert job is not None
    assert train_task(job, 1, 0, 0).messages == prompt
    held_out = dataclasses.replace(job, train=(), held_out=(0,))
    assert [task.messages for task in suite(held_out).questions] == [prompt]


def test_a_task_that_no_batch_takes_is_replaced_by_another_draw() -> None:
    flat = {derive_id("job", "job-1", 1, draw, number) for draw in range(2) for number in range(20)}
    log = Log(RestOfLoop(RULE, flat=lambda task: task.task_id in flat))
    assert log.run().status == "completed"
    draws = Counter(task.metadata["job_iteration"] for task in log.tasks if task.purpose == "train")
    assert draws == {"1": 6, "2": 4, "3": 4}


def test_where_every_reward_is_equal_the_job_fails_and_says_what_to_do() -> None:
    log = Log(RestOfLoop(RULE, flat=lambda task: True))
    job = log.run()
    assert (job.status, job.code) == ("failed", NOT_CONVERGED)
    assert "iteration 1 has too few groups to learn from: 20 zero_variance" in job.reason
    assert "neither always nor never answered right" in (job.suggested_action or "")
    assert sum(task.purpose == "train" for task in log.tasks) == MOST_DRAWS * 4


KEEPS_FLAT = Batches(groups=4, max_policy_lag=0, zero_variance="keep")


def test_a_job_whose_steps_teach_nothing_fails_and_offers_the_version_before_it() -> None:
    log = Log(RestOfLoop(KEEPS_FLAT, flat=lambda task: True), iterations=50, evaluate_every=50)
    log.stop_after = 3
    job = log.run()
    assert (job.status, job.code, job.iteration) == ("failed", NOT_CONVERGED, 3)
    assert job.reason.startswith(
        "3 steps in a row taught nothing, up to version 3 (learning.stop_after): 0 of 4 groups"
    )
    assert f"`streamward jobs keep-best {job.job_id}` goes back to the version before it, 0" in job.suggested_action
    assert job_reducer.version_to_keep(job) == 0


def test_a_step_that_taught_something_begins_the_count_anew_also_for_a_controller_after_a_kill() -> None:
    log = Log(RestOfLoop(KEEPS_FLAT, flat=lambda task: task.metadata["job_iteration"] != "2"), iterations=4)
    log.stop_after = 3
    while log.act(most=1) or log.answer():
        pass
    assert (log.job.status, log.job.iteration) == ("completed", 4)
    (second,) = [event for event in log.jobs if event.kind == "iteration" and event.iteration == 2]
    assert second.reason == (
        "version 2 is trained: 4 of 4 groups differed in reward, mean 0.50, 0% cut, 1 of 8 answers distinct"
    )


def test_a_job_keeps_its_best_version_only_if_that_was_better_than_the_one_before() -> None:
    log = Log(RestOfLoop(RULE, right=lambda version, index: version == 2 and index < 2), iterations=3, evaluate_every=1)
    assert job_reducer.version_to_keep(log.run()) == 2


def test_with_no_gain_by_patience_the_job_fails_and_with_some_it_is_complete_early() -> None:
    never = Log(RestOfLoop(RULE, right=lambda version, index: False), iterations=50, evaluate_every=1, patience=2)
    job = never.run()
    assert (job.status, job.code, job.iteration) == ("failed", NOT_CONVERGED, 3)
    assert "no version is better than the one before the job, by iteration 3" in job.reason
    assert job.best and job_view.row(job)["best"] == []
    soon = Log(
        RestOfLoop(RULE, right=lambda version, index: index < min(version, 1)),
        iterations=50, evaluate_every=1, patience=2,
    )  # fmt: skip
    job = soon.run()
    assert (job.status, job.iteration, job.best[0]) == ("completed", 3, 1)
    assert job_view.row(job)["best"][0] == 1


def test_a_job_is_complete_once_it_has_gained_what_was_asked_for() -> None:
    log = Log(RestOfLoop(RULE, right=lambda version, index: version >= 2), iterations=50, evaluate_every=1,
              target_gain=0.15)  # fmt: skip
    job = log.run()
    assert (job.status, job.iteration) == ("completed", 2)
    assert "and 0.150 were asked for" in job.reason


def test_steps_without_a_finite_gradient_end_the_job() -> None:
    log = Log(RestOfLoop(RULE), iterations=50, held_out_share=0.0)
    while log.job.iteration < 2:
        log.act() or log.answer()
    log.adapters = [
        dataclasses.replace(event, metrics={"skipped": 1.0}) if event.kind == "trained" else event
        for event in log.adapters
    ]
    while log.job.iteration < 3:
        log.act() or log.answer()
        log.adapters = [
            dataclasses.replace(event, metrics={"skipped": 1.0}) if event.kind == "trained" else event
            for event in log.adapters
        ]
    job = log.run()
    assert (job.status, job.code) == ("failed", NOT_CONVERGED)
    assert "the gradient was not finite" in job.reason


def test_the_best_versions_are_kept_and_the_rest_is_retired_before_the_end() -> None:
    # version 3 is the best, and version 6, the last, the primary
    right = {0: 0, 1: 1, 2: 2, 3: 4, 4: 1, 5: 2, 6: 3}
    log = Log(RestOfLoop(RULE, right=lambda version, index: index < right[version]), iterations=6, evaluate_every=1,
              keep_best=2, patience=9)  # fmt: skip
    job = log.run()
    assert (job.status, job.best) == ("completed", (3, 6))
    statuses = {number: version.status for number, version in log.versions.versions.items()}
    assert statuses == {0: "superseded", 1: "retired", 2: "retired", 3: "superseded", 4: "retired", 5: "retired",
                        6: "primary"}  # fmt: skip


def test_a_job_over_its_budget_ends_with_an_overrun_of_at_most_one_iteration() -> None:
    prices = JobPrices(prompt=0.0, completion=1e6, trainer_hour=0.0)  # a dollar a sampled token
    log = Log(RestOfLoop(RULE), iterations=50, held_out_share=0.0, prices=prices, max_budget_usd=40.0)
    while not log.job.has_ended:  # the next controller acts only once everything that is asked is answered
        while log.answer():
            pass
        log.act()
    job = log.job
    iteration_usd = 4 * 2 * 2  # questions, answers to each, tokens of each
    assert (job.status, job.code) == ("failed", BUDGET_EXCEEDED)
    assert job.cost_usd is not None and 40 <= job.cost_usd <= 40 + iteration_usd
    assert log.kinds().count("budget_warned") == 1
    assert log.kinds()[-1] == "budget_exceeded"


def test_a_job_whose_tenants_month_is_spent_asks_for_nothing_more_and_names_the_month() -> None:
    log = Log(RestOfLoop(RULE), held_out_share=0.0, prices=JobPrices(prompt=0.0, completion=1e6, trainer_hour=0.0))
    while log.job.iteration < 1:
        log.act() or log.answer()
    assert log.open is not None and log.job.cost_usd == 16.0
    state = job_reducer.after_event(log.open, log.job)
    due = job_reducer.due(state, log.versions, MonthBudget("shop", "2026-11", 99.9, 100.0))
    assert {type(one) for one in due} == {Task}
    (event,) = job_reducer.due(state, log.versions, MonthBudget("shop", "2026-11", 100.0, 100.0))
    assert isinstance(event, JobEvent) and (event.kind, event.code) == ("budget_exceeded", BUDGET_EXCEEDED)
    assert event.reason == "100.0000 USD of 100.0000 are spent that are for tenant shop in 2026-11"
    after = fold(log.job, event)
    assert after is not None and after.status == "failed"


def test_what_a_job_used_since_its_newest_event_counts_against_its_month() -> None:
    log = Log(RestOfLoop(RULE), held_out_share=0.0, prices=JobPrices(prompt=0.0, completion=1e6, trainer_hour=0.0))
    log.act(), log.act(), log.answer(), log.act()
    assert log.open is not None and log.job.cost_usd == 0.0  # 4 tokens of one answered question are in no event yet
    spent = [MonthBudget("shop", "2026-11", usd, 100.0) for usd in (95.9, 96.0)]
    kinds = [{type(one) for one in job_reducer.due(log.open, log.versions, month)} for month in spent]
    assert kinds == [{Task}, {JobEvent}]


def test_the_cost_is_that_of_a_hand_worked_bill() -> None:
    log = Log(RestOfLoop(RULE, step_s=1800.0), iterations=1, held_out_share=0.0,
              prices=JobPrices(prompt=10.0, completion=100.0, trainer_hour=4.0))  # fmt: skip
    job = log.run()
    # 4 questions of 3 tokens, asked twice; 2 tokens in each of 8 answers; half an hour
    assert job.usage == JobUsage(24, 16, 1800.0)
    assert job.cost_usd == pytest.approx(24 * 10e-6 + 16 * 100e-6 + 2.0)
    assert job.spec.prices is not None and cost_usd(JobUsage(), job.spec.prices) == 0


def test_a_group_that_comes_twice_is_counted_once() -> None:
    log = Log(RestOfLoop(RULE), held_out_share=0.0)
    log.act(), log.act()
    for _ in range(3):
        log.answer()
    log.groups += log.groups
    log.act()
    assert log.open is not None and log.open.tokens == (3 * 6, 3 * 4)


def test_a_paused_job_asks_for_nothing_and_counts_what_was_in_flight_once_it_is_resumed() -> None:
    log = Log(RestOfLoop(RULE), held_out_share=0.0)
    log.act(), log.act()
    asked = len(log.tasks)
    log.jobs.append(job_event("paused", log.job.sequence, event_id="p"))
    while log.answer():
        pass
    assert not log.act() and len(log.tasks) == asked
    log.jobs.append(job_event("resumed", log.job.sequence, event_id="r"))
    log.killed()
    whole = Log(RestOfLoop(RULE), held_out_share=0.0)
    assert log.run().usage == whole.run().usage
    assert [task.task_id for task in log.tasks] == [task.task_id for task in whole.tasks]


def test_a_cancelled_job_asks_for_nothing_more() -> None:
    log = Log(RestOfLoop(RULE))
    log.act(), log.act()
    asked = len(log.tasks)
    log.jobs.append(job_event("cancelled", log.job.sequence, event_id="c"))
    assert log.run().status == "cancelled" and len(log.tasks) == asked


def test_nothing_is_decided_before_the_newest_version_was_read() -> None:
    log = Log(RestOfLoop(RULE), held_out_share=0.0)
    while log.job.iteration < 1:
        log.act() or log.answer()
    assert log.open is not None
    assert job_reducer.due(job_reducer.after_event(log.open, log.job), empty("default")) == ()


# --- costs ------------------------------------------------------------------------------------------------------------


def test_what_was_used_is_summed_by_what_is_asked_for_and_a_month_says_whether_it_is_closed() -> None:
    used = {"prompt_tokens": 1_000_000.0, "completion_tokens": 0.0, "trainer_s": 3600.0}
    december = job_event("iteration", 2, created_at=1_798_700_000_000, metrics=used)
    january = job_event("iteration", 3, created_at=1_798_800_000_000, metrics={**used, "completion_tokens": 500_000.0})
    log = Written()
    first = job_event("created", created_at=1_798_700_000_000)
    for event in (first, job_event("started", 1, created_at=1_798_700_000_000), december, january):
        log.write(event, 0)
    known = AllJobs(2)
    for record in log.records:
        known.take(record)
    found = spending.costs(known.months, spending.names("month"))
    # 1 USD a million tokens of prompts, 2 of answers, 3 an hour
    assert [(row["month"], row["cost_usd"]) for row in found] == [("2026-12", 4.0), ("2027-01", 1.0)]
    assert [row["completion_tokens"] for row in found] == [0, 500_000]
    (row,) = spending.costs(known.months, spending.names("policy, tenant"))
    assert (row["policy"], row["tenant"], row["cost_usd"], row["trainer_s"]) == ("default", "", 5.0, 3600.0)
    assert [row["closed"] for row in spending.costs(known.months, ("month", "job", "tenant"))] == [False, False]


@pytest.mark.parametrize("text", ["", "colour", "month,month", "month,colour"])
def test_a_name_that_costs_cannot_be_summed_by_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="expected some of policy, tenant, job, month"):
        spending.names(text)
