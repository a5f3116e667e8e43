"""Families of tasks: the same ones for the same seed, and held-out questions that are never trained on."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from schemas import serde
from schemas.events import Purpose, Task, problems
from streams.errors import EventError, NotFoundError, SettingsError
from streams.scorers import source_problems
from streams.stages.tasks.generators import TaskSpec, families, families_of_plugins, generate, is_held_out
from tests import skips
from tests.support.thoroughness import examples


def some(
    name: str = "sums", *, count: int = 20, seed: int = 0, purpose: Purpose = "train", policy: str = "p", **more: Any
) -> list[Task]:
    return list(
        generate(TaskSpec(family=name, count=count, seed=seed, purpose=purpose, policy=policy, **more), now_ms=1)
    )


def question(task: Task) -> str:
    return task.messages[-1].content


def test_a_sum_is_asked_as_chain_sum_asks_it_and_knows_its_answer() -> None:
    for task in some():
        lead, _, sum_ = question(task).partition("problem: ")
        left, _, right = sum_.removesuffix(" =").partition(" + ")
        assert lead == "State the final answer to the following arithmetic "
        assert json.loads(task.verifier) == {"answer": str(int(left) + int(right))}
        assert task.messages[0].content == "Reply with only the final answer."


def test_train_tasks_sample_groups_and_eval_tasks_ask_once_greedily_and_want_the_exact_answer() -> None:
    [train], [held_out] = some(count=1), some(count=1, purpose="eval")
    assert (train.group_size, train.sampling.temperature, train.sampling.max_tokens) == (8, 1.0, 12)
    assert (held_out.group_size, held_out.sampling.temperature, held_out.sampling.max_tokens) == (1, 0.0, 12)
    assert [source.name for source in train.reward_sources] == ["mix"]
    assert [source.name for source in held_out.reward_sources] == ["exact"]


def test_every_task_is_one_that_the_log_takes_and_the_scorers_know() -> None:
    for task in some(count=5) + some(count=5, purpose="eval") + some(count=5, purpose="serve"):
        assert serde.decode(serde.encode(task), Task) == task
        assert [*problems(task), *source_problems(task)] == []


@settings(max_examples=examples(25))
@given(
    seeds=st.tuples(st.integers(), st.integers()),
    counts=st.tuples(st.integers(1, 150), st.integers(1, 150)),
    terms=st.integers(2, 4),
    digits=st.integers(1, 3),
)
def test_no_eval_question_is_ever_a_train_question(
    seeds: tuple[int, int], counts: tuple[int, int], terms: int, digits: int
) -> None:
    config = {"terms": terms, "digits": digits}
    trained = {question(task) for task in some(seed=seeds[0], count=counts[0], options=config)}
    asked = {question(task) for task in some(seed=seeds[1], count=counts[1], purpose="eval", options=config)}
    assert not trained & asked
    assert not any(map(is_held_out, trained)) and all(map(is_held_out, asked))


def test_the_hundred_sums_of_two_digits_are_all_asked_35_of_them_held_out() -> None:
    asked = {question(task) for task in some(count=65)}
    held_out = {question(task) for task in some(count=35, purpose="eval")}
    assert (len(asked), len(held_out), len(asked | held_out)) == (65, 35, 100)


def test_the_same_seed_gives_the_same_tasks_and_another_seed_gives_others() -> None:
    assert some(seed=3) == some(seed=3)
    assert {task.task_id for task in some(seed=3)} & {task.task_id for task in some(seed=4)} == set()
    assert [question(task) for task in some(seed=3)] != [question(task) for task in some(seed=4)]


def test_more_tasks_begin_with_the_same_ones() -> None:
    assert some(count=100)[:10] == some(count=10)


def test_ids_differ_between_purposes_policies_indices_and_configs() -> None:
    tasks = [
        *some(count=200),
        *some(count=200, purpose="eval"),
        *some(count=200, policy="q"),
        *some(count=200, options={"digits": 2}),
    ]
    assert len({task.task_id for task in tasks}) == 800


def test_terms_and_digits_change_the_sums() -> None:
    for task in some(options={"terms": 3, "digits": 2}):
        terms = question(task).partition("problem: ")[2].removesuffix(" =").split(" + ")
        assert len(terms) == 3 and all(10 <= int(term) <= 99 for term in terms)


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(NotFoundError, match=r"'sum'; did you mean sums\?.*--list"):
        some("sum")


@pytest.mark.parametrize("config", [{"terms": 1}, {"digits": "2"}, {"digts": 2}])
def test_a_bad_config_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="generator sums: sums"):
        some(options=config)


def test_longer_answers_may_be_allowed_and_are_other_tasks() -> None:
    (plain,), (longer,) = some(count=1), some(count=1, max_tokens=64)
    assert (plain.sampling.max_tokens, longer.sampling.max_tokens) == (12, 64)
    assert plain.task_id != longer.task_id


def test_families_are_listed_with_their_options_and_defaults() -> None:
    assert families()["sums"] == {"terms": 2, "digits": 1}
    assert all(name in {"sums", *families_of_plugins()} or name.startswith("reasoning-gym:") for name in families())


def test_without_reasoning_gym_the_error_says_how_to_install_it() -> None:
    try:
        import reasoning_gym  # noqa: F401
    except ImportError:
        with pytest.raises(SettingsError, match="make setup-gym"):
            some("reasoning-gym:chain_sum")
    else:
        pytest.skip("reasoning-gym IS installed here, so its absence cannot be tested")


@pytest.mark.gym
@pytest.mark.parametrize("name", ["chain_sum", "basic_arithmetic", "word_sorting", "simple_equations"])
def test_reasoning_gym_tasks_carry_their_verifier_and_keep_held_out_questions_apart(name: str) -> None:
    pytest.importorskip("reasoning_gym", reason=skips.GYM)
    trained = some(f"reasoning-gym:{name}", seed=1)
    asked = some(f"reasoning-gym:{name}", seed=2, purpose="eval")
    assert not {question(task) for task in trained} & {question(task) for task in asked}
    for task in itertools.chain(trained, asked):
        assert serde.decode(serde.encode(task), Task) == task
        assert {"dataset", "config", "entry"} == json.loads(task.verifier).keys()
        assert list(source_problems(task)) == []


@pytest.mark.gym
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the dataset leaves its file open
def test_a_dataset_whose_entries_do_not_survive_json_is_refused() -> None:
    pytest.importorskip("reasoning_gym", reason=skips.GYM)
    with pytest.raises(EventError, match="cannot be stored as JSON"):
        some("reasoning-gym:arc_agi", count=2)


@pytest.mark.gym
def test_an_unknown_dataset_names_the_nearest() -> None:
    pytest.importorskip("reasoning_gym", reason=skips.GYM)
    with pytest.raises(SettingsError, match=r"did you mean chain_sum\?"):
        some("reasoning-gym:chain_summ")
    with pytest.raises(NotFoundError, match=r"did you mean reasoning-gym:chain_sum\?"):
        some("chain_summ")


@pytest.mark.gym
def test_an_unknown_option_of_a_dataset_names_the_nearest_and_every_dataset_lists_its_own() -> None:
    pytest.importorskip("reasoning_gym", reason=skips.GYM)
    with pytest.raises(SettingsError, match=r"no option 'min_tems'; did you mean min_terms\?"):
        some("reasoning-gym:chain_sum", options={"min_tems": 3})
    assert families()["reasoning-gym:chain_sum"]["min_terms"] == 2
    assert len(families()) > 100
