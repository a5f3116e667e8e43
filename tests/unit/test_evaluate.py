"""The held-out questions of a version: the same for every version, pinned to it, and with ids that repeat."""

from __future__ import annotations

import itertools

from schemas.events import Task, problems
from streams.evaluate import evaluation, suite_name


def asked(**changes: object) -> list[Task]:
    whole = {"count": 5, "seed": 0, "policy": "p", "version": 3, "now_ms": 1}
    return list(evaluation("sums", **{**whole, **changes}))  # type: ignore[arg-type]


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


def test_equal_names_mean_equal_questions() -> None:
    names = {suite_name("sums", 5, 0), suite_name("sums", 6, 0), suite_name("sums", 5, 1), suite_name("other", 5, 0)}
    assert len(names) == 4
    assert suite_name("sums", 5, 0) == suite_name("sums", 5, 0)
