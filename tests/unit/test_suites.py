"""Suites: a YAML file becomes questions in a fixed order under a name that stands for exactly these."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from schemas.events import RewardSource, problems
from streams.errors import NotFoundError, SettingsError, StreamwardError
from streams.evaluation.suite import Suite
from streams.stages.tasks import generators, suites

ROOT = Path(__file__).parents[2]
PLAIN = """\
name: sums
scenarios:
  one-digit:
    generator: sums
    count: 3
"""
LINES = (
    '{"prompt": "Capital of France?", "answer": "Paris"}\n'
    '{"prompt": "Capital of Italy?", "answer": "Rome", "sampling": {"max_tokens": 5}}\n'
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "capitals.jsonl").write_text(LINES)
    return tmp_path


def load(folder: Path, text: str) -> Suite:
    file = folder / "suite.yaml"
    file.write_text(text)
    return suites.load(file)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(StreamwardError) as caught:
        load(folder, text)
    assert isinstance(caught.value, SettingsError | NotFoundError)
    assert str(caught.value).startswith(str(folder / "suite.yaml"))
    return str(caught.value).replace(f"{folder}/", "")


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_the_suite_that_is_shipped_loads_and_asks_two_scenarios() -> None:
    suite = suites.load(ROOT / "docs" / "examples" / "suite.yaml")
    assert suite.name.startswith("sums@") and len(suite.name) == len("sums@1f3c9a2b")
    assert [task.scenario for task in suite.questions] == ["one-digit"] * 35 + ["three-terms"] * 30
    assert suite.thresholds == {"one-digit": {"success": 0.02}}
    assert {(task.group_size, task.sampling.temperature) for task in suite.questions} == {(1, 0.0), (2, 0.7)}


def test_a_generator_gives_held_out_questions_asked_greedily_and_once(folder: Path) -> None:
    suite = load(folder, PLAIN)
    assert len(suite.questions) == 3
    assert all(generators.is_held_out(task.messages[-1].content) for task in suite.questions)
    assert {(task.purpose, task.group_size, task.sampling.temperature) for task in suite.questions} == {
        ("eval", 1, 0.0)
    }
    assert [problem for task in suite.questions for problem in problems(task)] == []


def test_a_file_of_tasks_lies_beside_the_suite_and_is_asked_as_the_suite_says(folder: Path) -> None:
    suite = load(
        folder,
        """
name: facts
scenarios:
  capitals:
    file: capitals.jsonl
    group_size: 3
    sampling: {temperature: 0.5, stop: ["."]}
    reward_sources: [{name: regex, settings: {pattern: Paris}}, {name: length, weight: 0.1, settings: {limit: 9}}]
""",
    )
    first, second = suite.questions
    assert (first.messages[-1].content, first.verifier) == ("Capital of France?", '{"answer": "Paris"}')
    assert (second.sampling.max_tokens, second.sampling.temperature, second.sampling.stop) == (5, 0.5, (".",))
    assert (first.purpose, first.scenario, first.group_size) == ("eval", "capitals", 3)
    assert first.reward_sources == (
        RewardSource(name="regex", settings='{"pattern": "Paris"}'),
        RewardSource(name="length", weight=0.1, settings='{"limit": 9}'),
    )


def test_the_first_tasks_of_a_file_may_be_enough(folder: Path) -> None:
    text = "name: facts\nscenarios:\n  capitals: {file: capitals.jsonl, count: 1}\n"
    assert len(load(folder, text).questions) == 1
    assert "2 different tasks, expected 3 or more" in refused(folder, text.replace("1}", "3}"))


# --- the name ---------------------------------------------------------------------------------------------------------


def test_a_comment_or_a_threshold_leaves_the_name_as_it_is(folder: Path) -> None:
    other = "# more\nabout: sums\n" + PLAIN + "    thresholds: {success: 0.5}\n    seed: 0\n"
    assert load(folder, PLAIN).name == load(folder, other).name


@pytest.mark.parametrize(
    "changed",
    ["count: 4", "count: 3\n    seed: 1", "count: 3\n    options: {terms: 3}",
     "count: 3\n    sampling: {max_tokens: 5}", "count: 3\n    reward_sources: [numeric]",
     "count: 3\n    group_size: 2\n    sampling: {temperature: 1}"],
)  # fmt: skip
def test_other_questions_have_another_name(folder: Path, changed: str) -> None:
    assert load(folder, PLAIN).name != load(folder, PLAIN.replace("count: 3", changed)).name


def test_a_file_of_tasks_that_has_changed_has_another_name(folder: Path) -> None:
    text = "name: facts\nscenarios:\n  capitals: {file: capitals.jsonl}\n"
    before = load(folder, text).name
    (folder / "capitals.jsonl").write_text(LINES.replace("Rome", "Roma"))
    assert load(folder, text).name != before


def test_the_order_of_questions_is_part_of_the_name(folder: Path) -> None:
    # results are paired by index
    names = set()
    for order in itertools.permutations([2, 3, 4]):
        lines = (f"  terms-{n}: {{generator: sums, count: 2, options: {{terms: {n}}}}}\n" for n in order)
        names.add(load(folder, "name: sums\nscenarios:\n" + "".join(lines)).name)
    assert len(names) == 6


def test_what_counts_as_right_is_asked_with_the_question_and_is_part_of_the_name(folder: Path) -> None:
    plain, ruled = load(folder, PLAIN), load(folder, PLAIN.replace("count: 3", "count: 3\n    success: reward >= 0.8"))
    assert [task.metadata.get("success_reward") for task in ruled.questions] == ["0.8"] * 3
    assert plain.name != ruled.name and "success_reward" not in plain.questions[0].metadata


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("count: 3", "count: 0", "suite.yaml:5: scenarios.one-digit.count: Input should be greater than or equal to 1"),
        ("count: 3", "coutn: 3", "suite.yaml:5: scenarios.one-digit.coutn: there is no such key; did you mean count?"),
        ("count: 3", "count: '3'", 'scenarios.one-digit.count: Input should be a valid integer (got "3")'),
        ("    count: 3\n", "", "suite.yaml:3: scenarios.one-digit: a generator makes any number of tasks; give count"),
        ("generator: sums", "generator: sum", "no generator is called 'sum'; did you mean sums?"),
        ("generator: sums", "generator: sums\n    file: x.jsonl", "suite.yaml:3: scenarios.one-digit: give either"),
        ("count: 3", "count: 3\n    group_size: 2", "is the same answer 2 times; set sampling.temperature"),
        ("count: 3", "count: 3\n    sampling: {temp: 1}", "suite.yaml:6: scenarios.one-digit.sampling.temp: there"),
        ("count: 3", "count: 3\n    reward_sources: [exakt]", "task 1: no scorer is called 'exakt'; did you mean"),
        ("count: 3", "count: 3\n    options: {term: 3}", "sums has no setting 'term'; did you mean terms?"),
        ("count: 3", "count: 36", "task 36 of the suite asks what task"),
        ("count: 3", "count: 3\n    thresholds: {success: 2}", "suite.yaml:6: scenarios.one-digit.thresholds.success"),
        ("count: 3", "count: 3\n    success: exact", "one-digit.success: expected the least reward of a right"),
        ("name: sums", "name: a suite", "suite.yaml:1: name: String should match pattern"),
        ("name: sums\n", "", "suite.yaml:1: the suite has no name"),
        ("one-digit:", "no:", "suite.yaml:3: scenarios: the key no is not text in YAML; quote it"),
        ("count: 3", "count: 3\n    count: 4", "suite.yaml:6: scenarios.one-digit has count twice"),
        ("count: 3", "count: &n 3\n    seed: *n", "suite.yaml:6: *n is an alias; write it out"),
        ("count: 3", "count: [3", "suite.yaml:6: not YAML: expected"),
        ("  one-digit:", "  a.b:", "scenarios.a.b"),
        ("generator: sums\n    count: 3", "file: nowhere.jsonl", "scenarios.one-digit: nowhere.jsonl: No such file"),
    ],
)  # fmt: skip
def test_a_suite_that_cannot_be_says_where_and_what_to_do(folder: Path, old: str, new: str, says: str) -> None:
    assert old in PLAIN
    assert says in refused(folder, PLAIN.replace(old, new))


def test_a_bad_line_of_a_file_of_tasks_is_named(folder: Path) -> None:
    (folder / "capitals.jsonl").write_text(LINES + '{"promt": "x"}\n')
    said = refused(folder, "name: facts\nscenarios:\n  capitals: {file: capitals.jsonl}\n")
    assert "scenarios.capitals: capitals.jsonl:3: " in said and "there is no field promt" in said


def test_more_tasks_than_a_table_row_is_good_for_are_refused(folder: Path) -> None:
    more = "  long: {generator: sums, count: 1000, options: {terms: 5, digits: 4}}\n"
    assert "1003 tasks, expected at most 1000" in refused(folder, PLAIN + more)


def test_no_file_or_an_empty_one_names_the_example(folder: Path) -> None:
    with pytest.raises(NotFoundError, match=r"docs/examples/suite.yaml"):
        suites.load(folder / "nowhere.yaml")
    assert "expected name and scenarios" in refused(folder, "")
