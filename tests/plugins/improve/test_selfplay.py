"""Self-play: catalogues, their tasks, and the curriculum that draws options by success."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plugins.improve.selfplay import catalogue_tasks
from plugins.improve.selfplay.catalogue import Catalogue, CurriculumPart, catalogue_of, read_catalogue
from plugins.improve.selfplay.catalogue_tasks import CATEGORY, tasks_of
from plugins.improve.selfplay.curriculum import (
    CATALOGUE,
    CELL,
    SCENARIO,
    CellSuccess,
    cells_of,
    draws,
    from_evidence,
    weights,
)
from plugins.improve.selfplay.selfplay_figures import figures
from schemas.events import TriggerEvent
from streams.adapters.versions import Version
from streams.errors import NotFoundError, SettingsError
from streams.settings.model import Guard
from streams.stages.rollouts import guard
from streams.stages.tasks.generators import is_held_out
from tests.support.factories import group, member, trigger_event
from tests.support.log.whole_run import SETTINGS
from tests.unit.test_guard import version

QUESTIONS = [{"question": "1 + 1 =", "expected": "2"}, {"question": "2 + 2 =", "expected": 4}]


def catalogue(**changes: Any) -> Catalogue:
    """Return a catalogue of two questions."""
    scenario = {"name": "sums", "category": "easy", "questions": QUESTIONS}
    return catalogue_of({"name": "arithmetic", "scenarios": [scenario]} | changes)


def drawn(**changes: Any) -> Catalogue:
    """Return a catalogue with a curriculum over sums."""
    part = {"cells": {"digits": [1, 2], "terms": [2, 3]}} | changes
    scenario = {"name": "drawn", "generator": "sums", "count": 40, "curriculum": part}
    return catalogue_of({"name": "arithmetic", "purpose": "train", "group_size": 8, "scenarios": [scenario]})


def run(of: Catalogue, **changes: Any) -> TriggerEvent:
    whole: dict[str, Any] = {"rule": of.rule, "action": "selfplay", "signal": "schedule", "due_at": 0, "job_id": None}
    return trigger_event("crossed", 1, **whole | changes)


def part(**changes: Any) -> CurriculumPart:
    return CurriculumPart.model_validate({"cells": {"digits": (1, 2, 3, 4, 5)}} | changes)


def answered(cell: str, right: int, wrong: int, number: int = 0) -> Any:
    """Return a group of a drawn question."""
    rewards = [1.0] * right + [0.0] * wrong
    responses = tuple(member(slot, reward=value, components={"exact": value}) for slot, value in enumerate(rewards))
    metadata = {CATALOGUE: "arithmetic", SCENARIO: "drawn", CATEGORY: "hard", CELL: cell}
    return group(task_id=f"{cell}-{number}", responses=responses, group_size=len(rewards), metadata=metadata)


# --- catalogues -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"scenarios": []}, "scenarios"),
        ({"scenarios": [{"name": "a"}]}, "scenario a needs questions or a generator"),
        ({"scenarios": [{"name": "a", "questions": QUESTIONS, "generator": "sums"}]}, "one of them"),
        ({"scenarios": [{"name": "a", "questions": QUESTIONS, "count": 3}]}, "count is for a generator"),
        ({"scenarios": [{"name": "a", "questions": [QUESTIONS[0], QUESTIONS[0]]}]}, "asks a question twice"),
        ({"scenarios": [{"name": "a", "questons": []}]}, "did you mean questions"),
        ({"scenarios": [{"name": "a", "generator": "sums", "curriculum": {"cells": {"digits": []}}}]}, "has no value"),
        ({"purpose": "train", "scenarios": [{"name": "a", "questions": [{"question": "?"}]}]}, "cannot train"),
    ],
)
def test_a_catalogue_with_a_fault_is_refused_with_its_place(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        catalogue(**changes)


def test_yaml_and_json_are_the_same_catalogue(tmp_path: Path) -> None:
    in_yaml, in_json = tmp_path / "c.yaml", tmp_path / "c.json"
    in_json.write_text(json.dumps({"name": "a", "scenarios": [{"name": "s", "questions": QUESTIONS}]}), "utf-8")
    in_yaml.write_text(
        "name: a\nscenarios:\n  - name: s\n    questions:\n"
        '      - {question: "1 + 1 =", expected: "2"}\n      - {question: "2 + 2 =", expected: 4}\n',
        "utf-8",
    )
    assert read_catalogue(in_yaml).digest == read_catalogue(in_json).digest
    in_yaml.write_text("name: &a b\nscenarios: *a\n", "utf-8")
    with pytest.raises(SettingsError, match="alias"):
        read_catalogue(in_yaml)
    with pytest.raises(NotFoundError):
        read_catalogue(tmp_path / "none.yaml")


def test_a_run_is_the_same_tasks_whoever_asks_and_another_time_is_others() -> None:
    of = catalogue()
    first, again, later = (tasks_of(run(of, due_at=due, created_at=late), of) for due, late in ((0, 1), (0, 9), (5, 9)))
    assert [task.task_id for task in first] == [task.task_id for task in again]
    assert not {task.task_id for task in first} & {task.task_id for task in later}
    assert {task.metadata[CATEGORY] for task in first} == {"easy"}
    assert [json.loads(task.verifier) for task in first] == [{"answer": "2"}, {"answer": 4}]
    catalogue_tasks.check(first, SETTINGS)


def test_another_catalogue_of_the_same_name_asks_other_tasks() -> None:
    one, other = catalogue(), catalogue(max_tokens=8)
    assert one.digest != other.digest
    assert {task.task_id for task in tasks_of(run(one), one)}.isdisjoint(
        task.task_id for task in tasks_of(run(other), other)
    )


def test_a_question_without_an_answer_is_asked_and_scored_by_nothing() -> None:
    of = catalogue(scenarios=[{"name": "open", "questions": [{"question": "How are you?"}]}])
    [task] = tasks_of(run(of), of)
    assert (task.purpose, task.reward_sources, task.verifier) == ("serve", (), "{}")


def test_the_tasks_of_a_tenant_are_its_own() -> None:
    of = catalogue(tenant="red")
    assert all(task.tenant == "red" and task.task_id.startswith("red.") for task in tasks_of(run(of), of))


# --- the curriculum ---------------------------------------------------------------------------------------------------


def test_weights_are_greatest_where_half_of_the_answers_are_right() -> None:
    success = {"digits=1": 1.0, "digits=2": 0.75, "digits=3": 0.5, "digits=4": 0.0}
    shares = weights(part(), success)  # digits=5 has no answer: as at one half
    raw = {"digits=1": 0.1, "digits=2": 0.5, "digits=3": 1.0, "digits=4": 0.1, "digits=5": 1.0}
    assert shares == pytest.approx({name: weight / 2.7 for name, weight in raw.items()})


@given(
    st.dictionaries(st.sampled_from(list(cells_of(part()))), st.floats(0, 1)),
    st.floats(0.01, 1),
    st.floats(0.2, 1),
)
def test_no_cell_starves_and_none_takes_more_than_its_most(
    success: dict[str, float], floor: float, most: float
) -> None:
    shares = weights(part(floor=floor, most_of_one=most), success)
    assert sum(shares.values()) == pytest.approx(1)
    assert max(shares.values()) <= most * (1 + 1e-9)
    assert min(shares.values()) >= floor / 5 * (1 - 1e-9)


def test_the_easy_end_is_still_asked_once_it_is_known() -> None:
    success = {"digits=1": 1.0, "digits=2": 0.5, "digits=3": 0.5, "digits=4": 0.0, "digits=5": 0.0}
    counts = Counter(draw.name for draw in draws(part(), success, "run", 400))
    assert counts["digits=1"] >= 8
    assert counts["digits=2"] > 4 * counts["digits=1"]


def test_a_run_is_not_one_cell_in_many_copies_and_no_question_twice() -> None:
    of = drawn(most_of_one=0.3, floor=0.01)
    success = {f"drawn/digits={digits},terms={terms}": 0.0 for digits in (1, 2) for terms in (2, 3)}
    success["drawn/digits=1,terms=2"] = 0.5
    tasks = tasks_of(run(of, evidence=success), of)
    counts = Counter(task.metadata[CELL] for task in tasks)
    assert max(counts.values()) <= 12  # of 40
    assert len({task.messages for task in tasks}) == len(tasks)


def test_draws_follow_from_the_event_and_are_recorded() -> None:
    of = drawn()
    evidence = {"drawn/digits=1,terms=2": 0.9}
    crossing = run(of, evidence=evidence)
    tasks = tasks_of(crossing, of)
    assert tasks == tasks_of(crossing, of)
    assert [task.task_id for task in tasks] != [task.task_id for task in tasks_of(run(of, due_at=7), of)]
    easy = next(task for task in tasks if task.metadata[CELL] == "digits=1,terms=2")
    assert easy.metadata["selfplay_success"] == "0.9"
    assert from_evidence("drawn", evidence) == {"digits=1,terms=2": 0.9}


def test_held_out_questions_are_never_drawn() -> None:
    of = drawn()
    asked = [task.messages[-1].content for due in range(5) for task in tasks_of(run(of, due_at=due), of)]
    assert len(asked) > 100 and not any(map(is_held_out, asked))


def test_success_is_that_of_the_newest_answers_and_a_group_counts_once() -> None:
    success = CellSuccess("arithmetic")
    for number in range(20):
        success.take(answered("digits=1", 0, 8, number))
    newest = answered("digits=1", 8, 0, 99)
    success.take(newest), success.take(newest)
    success.take(group(metadata={CATALOGUE: "another", SCENARIO: "drawn", CELL: "digits=1"}, task_id="other"))
    assert success.by_cell("drawn", part(answers=16)) == {"digits=1": 0.5}


def test_figures_are_by_category_and_by_cell() -> None:
    groups = [answered("digits=1", 6, 2), answered("digits=2", 1, 7), answered("digits=2", 1, 7)]
    [row] = figures("arithmetic", groups)
    assert (row["category"], row["answers"], row["success"]) == ("hard", 16, 7 / 16)
    assert row["success_low"] < 7 / 16 < row["success_high"]
    assert [(row["cell"], row["success"]) for row in figures("arithmetic", groups, "cell")] == [
        ("digits=1", 0.75),
        ("digits=2", 0.125),
    ]
    assert figures("another", groups) == []


def test_a_version_that_self_play_made_worse_than_its_base_is_not_promoted() -> None:
    base: Version = version(0, [1.0] * 30 + [0.0] * 10)
    worse, equal = version(1, [1.0] * 12 + [0.0] * 28), version(2, [1.0] * 30 + [0.0] * 10)
    suite = next(iter(base.evaluated))
    verdicts = [guard.judge(made, base, Guard(), suite, None).verdict for made in (worse, equal)]
    assert verdicts == ["reject", "ask"]
