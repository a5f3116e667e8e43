"""The held-out questions of a version: the same for every version, pinned to it, and with ids that repeat."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from schemas.events import Task, derive_id, problems
from streams.evaluation.suite_tasks import evaluation, in_turns, is_due, tasks_for
from streams.settings.model import Guard
from streams.stages.tasks import suites
from tests.support import factories


def asked(**changes: object) -> list[Task]:
    whole = {"count": 5, "seed": 0, "policy": "p", "version": 3, "now_ms": 1} | changes
    suite = suites.generated("sums", count=whole.pop("count"), seed=whole.pop("seed"))  # type: ignore[arg-type]
    return list(evaluation(suite, **whole))  # type: ignore[arg-type]


def questions(tasks: list[Task]) -> list[str]:
    return [task.messages[-1].content for task in tasks]


def test_the_tasks_are_held_out_and_pinned_to_the_version() -> None:
    tasks = asked(version=3)
    assert {(task.purpose, task.adapter_version, task.policy, task.group_size) for task in tasks} == {
        ("eval", 3, "p", 1)
    }
    assert [problem for task in tasks for problem in problems(task)] == []


def test_asking_again_at_another_time_gives_the_same_ids() -> None:
    assert [task.task_id for task in asked(now_ms=1)] == [task.task_id for task in asked(now_ms=2)]


def test_every_version_policy_and_suite_has_ids_of_its_own() -> None:
    several = [asked(), asked(version=4), asked(policy="q"), asked(seed=1), asked(count=6)]
    ids = [{task.task_id for task in tasks} for tasks in several]
    assert all(not one & other for one, other in itertools.combinations(ids, 2))


def test_every_version_is_asked_the_same_questions() -> None:
    assert questions(asked(version=0)) == questions(asked(version=7))
    assert questions(asked(seed=0)) != questions(asked(seed=1))


def test_each_task_names_its_suite_and_how_many_belong_to_it() -> None:
    # rollouts counts them: a suite is done when as many different tasks are in
    tasks = asked(count=5)
    assert len(tasks) == 5
    assert {(task.metadata["suite"], task.metadata["suite_size"]) for task in tasks} == {("sums/n=5/seed=0", "5")}
    assert [task.metadata["suite_index"] for task in tasks] == ["0", "1", "2", "3", "4"]


def test_a_suite_of_a_generator_has_the_name_and_the_ids_it_always_had() -> None:
    # logs of older releases hold results under these
    assert [task.task_id for task in asked()] == [
        derive_id("evaluation", "sums/n=5/seed=0", "p", 3, index) for index in range(5)
    ]


# --- after training ---------------------------------------------------------------------------------------------------


trained = partial(factories.trained, policy="p")


def test_every_kth_trained_version_is_asked() -> None:
    assert [version for version in range(1, 7) if is_due(trained(version), Guard(every=3))] == [3, 6]
    assert not is_due(factories.promoted(3), Guard(every=3))


def test_versions_take_turns_so_that_both_are_asked_in_the_same_hour() -> None:
    asked = in_turns(suites.generated("sums", count=20, seed=0), policy="p", versions=[4, 2], now_ms=1)
    assert [task.adapter_version for task in asked] == [4] * 16 + [2] * 16 + [4] * 4 + [2] * 4


@pytest.mark.parametrize(
    ("primary", "known", "versions"),
    [(2, (), [4, 4, 2, 2]), (2, (2,), [4, 4]), (2, (2, 4), []), (4, (), [4, 4])],
)
def test_a_version_that_is_due_is_asked_together_with_the_primary_unless_that_was_asked(
    primary: int, known: tuple[int, ...], versions: list[int]
) -> None:
    suite = suites.generated("sums", count=2, seed=0)
    tasks = list(tasks_for(suite, trained(4, created_at=77), primary=primary, evaluated=known))
    assert [task.adapter_version for task in tasks] == versions
    assert {(task.created_at, task.policy) for task in tasks} <= {(77, "p")}
