"""The results of a suite: one outcome per task, and metrics with intervals once there are all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from schemas.events import AdapterEvent, AdvantagedGroup, GroupResponse, LeftOut, Outcome, derive_id
from streams.errors import ContradictoryEvent
from streams.evaluation import intervals, results as suite_results
from tests.support import factories
from tests.support.factories import member


def group(
    task: int, *, exact: float | None = 1.0, version: int = 3, size: int = 3, **changed: object
) -> AdvantagedGroup:
    components = {"exact": exact or 0.0, "exact.match": 1.0}
    response = member(response_id=f"r{task}", offset=task, reward=0.5 + (exact or 0.0) / 2, components=components)
    whole: dict[str, object] = {
        "group_id": f"g{task}",
        "task_id": derive_id("task", task),
        "created_at": 100 + task,
        "metadata": {"suite": "sums/n=3/seed=7", "suite_size": str(size), "pinned_version": "3"},
        "policy": "p",
        "purpose": "eval",
        "scenario": "sums",
        "group_size": 1,
        "adapter_version": version,
        "responses": (response,) if exact is not None else (),
        "left_out": () if exact is not None else (LeftOut(slot=0, reason="response_failed"),),
    }
    return factories.group(**whole | changed)


def results(groups: Iterable[AdvantagedGroup]) -> list[AdapterEvent]:
    suite, made = None, []
    for one in groups:
        assert suite_results.suite_key(one) == b"p\x1fsums/n=3/seed=7\x1f3"
        suite, more = suite_results.count(suite, one)
        suite = suite_results.load(suite_results.dump(suite))
        made += more
    return made


def test_a_suite_is_evaluated_once_when_all_its_tasks_are_in() -> None:
    assert results([group(1), group(2)]) == []
    (result,) = results([group(1), group(2, exact=0.0), group(3), group(3)])
    assert (result.kind, result.version, result.suite) == ("evaluated", 3, "sums/n=3/seed=7")
    assert {name: result.metrics[name] for name in ("exact", "success", "mean_reward", "n", "failed")} == {
        "exact": 2 / 3, "success": 2 / 3, "mean_reward": pytest.approx(2.5 / 3), "n": 3.0, "failed": 0.0,
    }  # fmt: skip


def test_a_suite_may_say_from_which_reward_an_answer_is_right() -> None:
    rewards = {1: 0.8, 2: 0.79, 3: 0.8 - 1e-16}
    metadata = {**group(1).metadata, "success_reward": "0.8"}
    (result,) = results(
        group(task, metadata=metadata, responses=(member(reward=reward, components={"exact": 0.0}),))
        for task, reward in rewards.items()
    )
    assert (result.metrics["success"], result.metrics["mean_reward"]) == (2 / 3, pytest.approx(2.39 / 3))
    with pytest.raises(ContradictoryEvent, match=r"success_reward.*'most'; expected the least reward"):
        suite_results.count(None, group(1, metadata={**metadata, "success_reward": "most"}))


def test_a_run_in_an_environment_is_right_if_that_says_so() -> None:
    found, missed = member(reward=0.7, success=True), member(reward=1.0, success=False)
    (result,) = results([group(1, responses=(found,)), group(2, responses=(missed,)), group(3, responses=(missed,))])
    assert result.metrics["success"] == 1 / 3


def test_a_reward_that_misses_one_by_rounding_is_right() -> None:
    dust = member(reward=0.7 + 0.2 + 0.1, components={"mine": 1.0})
    assert dust.reward != 1.0
    (result,) = results([group(1, responses=(dust,)), group(2, exact=0.999), group(3)])
    assert result.metrics["success"] == 2 / 3


def test_a_task_that_is_delivered_twice_counts_once() -> None:
    assert results([group(1), group(1), group(2)]) == []


def test_tasks_whose_own_ids_begin_alike_are_told_apart() -> None:
    tasks = [group(number, task_id=f"held-out-sums-{number}") for number in (1, 2, 3)]
    assert [result.metrics["n"] for result in results(tasks)] == [3.0]


def test_the_result_of_a_suite_is_the_same_in_any_order() -> None:
    groups = [group(1), group(2, exact=0.0), group(3)]
    assert len({str(results(order)) for order in itertools.permutations(groups)}) == 1


def test_a_failed_response_is_counted_as_failed_and_is_in_no_mean() -> None:
    (result,) = results([group(1), group(2, exact=None), group(3, exact=None, adapter_version=-1)])
    assert [result.metrics[name] for name in ("exact", "mean_reward", "n", "failed")] == [1.0, 1.0, 1.0, 2.0]


def test_a_suite_without_any_score_has_no_mean() -> None:
    (result,) = results([group(task, exact=None) for task in (1, 2, 3)])
    assert result.metrics == {"n": 0.0, "failed": 3.0, "scenario.sums.n": 0.0}


def test_an_answer_of_another_version_than_the_pin_is_refused() -> None:
    (result,) = results([group(1), group(2), group(3, version=4)])
    assert (result.metrics["n"], result.metrics["failed"]) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"suite": "s", "suite_size": "three", "pinned_version": "3"}, "expected a whole number"),
        ({"suite": "s", "pinned_version": "3"}, "expected a whole number"),
        ({"suite": "s", "suite_size": "3"}, "pinned to no version"),
        ({"suite": "s", "suite_size": "3", "suite_index": "-1", "pinned_version": "3"}, "expected a whole number"),
        ({"suite": "s", "suite_size": "3", "suite_index": "3", "pinned_version": "3"}, "expected 0 to 2"),
    ],
)
def test_a_suite_task_that_cannot_be_counted_says_what_it_lacks(metadata: dict[str, str], says: str) -> None:
    with pytest.raises(ContradictoryEvent, match=says):
        one = group(1, metadata=metadata)
        suite_results.suite_key(one)
        suite_results.count(None, one)


def test_a_suite_that_changes_its_size_is_refused() -> None:
    with pytest.raises(ContradictoryEvent, match="another suite name"):
        suite_results.count(suite_results.SuiteResults(size=4), group(1))


@pytest.mark.parametrize("changed", [{"purpose": "train"}, {"metadata": {}}])
def test_other_groups_belong_to_no_suite(changed: dict[str, object]) -> None:
    assert suite_results.suite_key(group(1, **changed)) is None


# --- one outcome per task ---------------------------------------------------------------------------------------------


def numbered(index: int, *, size: int = 3, **changed: object) -> AdvantagedGroup:
    """Return a group of a suite that says which of its tasks this is."""
    metadata = {
        "suite": "sums/n=3/seed=7", "suite_size": str(size), "suite_index": str(index), "pinned_version": "3",
    }  # fmt: skip
    return group(index, size=size, metadata=metadata, **changed)  # type: ignore[arg-type]


def answered(*answers: tuple[float, float, int, float]) -> tuple[GroupResponse, ...]:
    """Return responses from (exact, reward, tokens, latency in ms)."""
    return tuple(
        member(
            slot, response_id=f"r{slot}", reward=reward, components={"exact": exact}, latency_ms=latency,
            completion_token_ids=(7,) * tokens, logprobs=(-0.5,) * tokens, loss_mask=(True,) * tokens,
        )
        for slot, (exact, reward, tokens, latency) in enumerate(answers)
    )  # fmt: skip


def test_each_task_leaves_one_outcome_under_its_index() -> None:
    (result,) = results(
        [
            numbered(2, group_size=2, responses=answered((1.0, 1.0, 4, 30.0), (0.0, 0.5, 2, 10.0))),
            numbered(0, exact=None, scenario="hard"),
            numbered(1, responses=answered((0.0, 0.25, 3, 5.0))),
        ]
    )
    read: dict[str, Any] = {"scenario": "sums", "tokens": 3.0, "prompt_tokens": 3.0, "sampled_tokens": 3.0}
    assert result.outcomes == (
        Outcome(index=0, scenario="hard", failed=1),
        Outcome(**read, index=1, success=0.0, reward=0.25, latency_ms=5.0),
        Outcome(**read, index=2, success=0.5, reward=0.75, latency_ms=20.0),
    )


def test_what_tools_answered_is_read_and_not_written_and_failed_calls_are_counted() -> None:
    used = member(
        completion_token_ids=(7, 8, 9),
        logprobs=(-0.5, 0, -0.5),
        loss_mask=(True, False, True),
        failed_tools=3,
        recoveries=2,
    )
    (result,) = results([numbered(index, responses=(used,)) for index in range(3)])
    outcome = result.outcomes[0]
    assert (outcome.tokens, outcome.prompt_tokens, outcome.sampled_tokens) == (3.0, 4.0, 2.0)
    assert (outcome.failed_tools, outcome.recoveries) == (3, 2)


def test_the_metrics_are_told_for_all_tasks_and_for_each_scenario() -> None:
    (result,) = results(
        [
            numbered(0, responses=answered((1.0, 1.0, 4, 30.0))),
            numbered(1, responses=answered((0.0, 0.5, 2, 10.0))),
            numbered(2, scenario="hard", responses=answered((0.0, 0.0, 9, 50.0))),
        ]
    )
    metrics = result.metrics
    assert (metrics["tokens"], metrics["latency_ms"]) == (5.0, 30.0)
    assert (metrics["scenario.sums.n"], metrics["scenario.sums.success"], metrics["scenario.sums.mean_reward"]) == (
        2.0, 0.5, 0.75,
    )  # fmt: skip
    assert (metrics["scenario.hard.n"], metrics["scenario.hard.mean_reward"]) == (1.0, 0.0)
    assert (metrics["success_low"], metrics["success_high"]) == pytest.approx(intervals.wilson(1 / 3, 3))
    assert metrics["mean_reward_low"] == pytest.approx(intervals.mean([1.0, 0.5, 0.0]).low)


def test_several_answers_to_a_task_count_as_one_task_in_the_interval() -> None:
    # four answers that are all right say as much about other questions as two
    twice = [numbered(i, size=2, group_size=2, responses=answered(*[(1.0, 1.0, 1, 1.0)] * 2)) for i in range(2)]
    once = [numbered(i, size=2, responses=answered((1.0, 1.0, 1, 1.0))) for i in range(2)]
    assert results(twice)[0].metrics["success_low"] == results(once)[0].metrics["success_low"]


def test_a_suite_that_does_not_number_its_tasks_has_metrics_and_no_outcomes() -> None:
    (result,) = results([group(1), group(2), group(3)])
    assert (result.outcomes, result.metrics["n"]) == ((), 3.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.integers(0, 9)), min_size=1, max_size=8), st.randoms())
def test_a_result_is_the_same_in_any_order_and_with_any_doubles(
    drawn: list[tuple[bool, float, int]], random_: random.Random
) -> None:
    groups = [
        numbered(index, size=len(drawn), created_at=5, scenario="ab"[index % 2],
                 responses=answered((float(right), reward, tokens, 0.1 * tokens)))
        for index, (right, reward, tokens) in enumerate(drawn)
    ]  # fmt: skip
    mixed = [*groups, *random_.sample(groups, len(groups) // 2)]
    random_.shuffle(mixed)
    assert results(mixed) == results(groups)


# --- the row ----------------------------------------------------------------------------------------------------------


def test_the_row_holds_no_outcomes_once_the_suite_is_done() -> None:
    suite = None
    sizes = []
    for index in range(3):
        suite, _ = suite_results.count(suite, numbered(index))
        sizes.append(len(suite_results.dump(suite)))
    assert sizes[0] < sizes[1] and sizes[2] < sizes[0]


def test_a_row_stays_small_enough_for_the_largest_suite() -> None:
    # the row is written for every task, so its size times their number goes to the changelog
    long = "a-scenario-with-quite-a-name"
    entry = suite_results.TaskResult(
        long, slots=8, n=8, right=5, reward=5.123456789012345, tokens=123456, latency_ms=12345.6
    )
    suite = suite_results.SuiteResults(size=1000, tasks={str(index): entry for index in range(1000)})
    assert len(suite_results.dump(suite)) < 100_000


def test_a_row_that_no_release_wrote_is_refused() -> None:
    with pytest.raises(ValueError, match="another consumer group"):
        suite_results.load(b'{"v": 0}')
