"""Generated tasks that are episodes of listed environments; held-out ones are never trained on."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.environments.listed import LISTED, open_listed
from schemas import serde
from schemas.events import Purpose, Task, problems
from streams.errors import SettingsError
from streams.scorers import source_problems
from streams.stages.tasks.generators import families
from tests.unit.test_generators import question, some


def test_families_of_episodes_are_listed_with_their_options_and_defaults() -> None:
    assert families()["guess"] == {"tools": False, "highest": 8, "guesses": 4}
    assert families().keys() >= LISTED.keys()


@pytest.mark.parametrize(("family", "temperature"), [("calculator", 0.0), ("lookup", 0.0), ("guess", 1.0)])
def test_held_out_episodes_are_greedy_where_that_says_something(family: str, temperature: float) -> None:
    [held_out] = some(family, count=1, purpose="eval")
    assert (held_out.group_size, held_out.sampling.temperature) == (1, temperature)


@pytest.mark.parametrize(("purpose", "temperature"), [("train", 1.3), ("serve", 1.0), ("eval", 1.0)])
def test_guess_varies_more_in_training_than_when_it_is_asked(purpose: Purpose, temperature: float) -> None:
    [task] = some("guess", count=1, purpose=purpose)
    assert task.sampling.temperature == temperature


@pytest.mark.parametrize("name", LISTED)
def test_an_episode_is_a_task_that_the_log_takes_with_what_its_environment_shows_first(name: str) -> None:
    [train], [held_out] = some(name, count=1), some(name, count=1, purpose="eval", options={"tools": True})
    for task in (train, held_out):
        assert serde.decode(serde.encode(task), Task) == task
        assert [*problems(task), *source_problems(task)] == []
        assert task.environment is not None and task.agent == "environment"
        observation = open_listed(name, task.environment.settings).reset(task.environment.seed)
        assert (task.messages, task.tools) == (observation.messages, observation.tools)
    assert [source.name for source in (*train.reward_sources, *held_out.reward_sources)] == ["environment", "verified"]
    assert (len(train.tools), len(held_out.tools), held_out.group_size) == (0, 1, 1)


@pytest.mark.parametrize("name", LISTED)
def test_no_held_out_episode_is_ever_trained_on(name: str) -> None:
    whole = open_listed(name).question_is_whole
    trained, asked = some(name, count=60), some(name, count=60, seed=5, purpose="eval")
    episodes = [
        {question(task) if whole else task.environment and task.environment.seed for task in tasks}
        for tasks in (trained, asked)
    ]
    assert not episodes[0] & episodes[1]
    assert some(name, count=60)[:5] == some(name, count=5)


@pytest.mark.parametrize("config", [{"digits": 0}, {"digits": "2"}, {"digts": 2}])
def test_a_bad_setting_of_an_environment_is_refused_before_a_task_is_made(config: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="generator calculator: calculator"):
        some("calculator", options=config)
