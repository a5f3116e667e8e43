"""Tasks that are episodes: of a listed environment, and of one by reference, which is played before it is trusted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from plugins.environments.adapters.adapted import AdaptedEnvironment
from plugins.environments.episode_tasks import episodes as episodes_of
from plugins.environments.episodes.environment import Action, Environment, EpisodeError
from plugins.environments.listed import LISTED
from plugins.environments.settings import Environments
from schemas.events import EpisodeStart, RewardSource
from streams.demo.loop_run import PROCESSES, commands
from streams.demo.players import PLAYERS
from streams.demo.up_plan import UpPlan
from streams.settings.model import Settings
from streams.stages.tasks import suites
from streams.stages.tasks.episodes import HELD_OUT_TASKS, EpisodeSpec
from tests.support.factories import task

SPEC = EpisodeSpec(name="mine:Game", settings="{}", count=3, policy="p", group_size=4)


class Game:
    """Shows its seed; shows something else each time if it is `careless`."""

    version = "1"

    def __init__(self, careless: bool = False) -> None:
        self._careless, self._resets = careless, 0

    def reset(self, seed: int) -> str:
        self._resets += 1
        return f"{seed} {self._resets if self._careless else ''}"

    def step(self, action: Action) -> Any:
        return "over", 1.0, True, False, {}


def opens(**how: Any) -> Callable[[EpisodeStart], Environment]:
    return lambda start: AdaptedEnvironment(start.name, Game(**how))


def test_each_seed_is_a_task_and_held_out_seeds_are_others() -> None:
    train, held_out, *_ = episodes_of(SPEC, opens())
    assert [one.environment for one in train] == [
        EpisodeStart(name="mine:Game", settings="{}", seed=n) for n in range(3)
    ]
    assert {(one.agent, one.group_size, one.max_turns, one.purpose) for one in train} == {
        ("environment", 4, 8, "train")
    }
    assert {one.reward_sources for one in train} == {(RewardSource(name="environment"),)}
    assert {(one.group_size, one.purpose, one.sampling.temperature) for one in held_out} == {(1, "eval", 0.0)}
    seeds = {one.environment.seed for one in (*train, *held_out) if one.environment}
    assert len(seeds) == 3 + HELD_OUT_TASKS
    assert episodes_of(SPEC, opens()).train[2].task_id == train[2].task_id  # the same command again continues


def test_a_listed_environment_gives_the_tasks_of_its_generator() -> None:
    spec = replace(SPEC, name="guess", settings='{"highest": 4}', reward_sources=())
    train, held_out, *_ = episodes_of(spec, opens())
    assert len(train) == 3 and len(held_out) == HELD_OUT_TASKS
    assert {one.environment.settings for one in (*train, *held_out) if one.environment} == {'{"highest": 4}'}
    length = RewardSource(name="length")
    for name in ("guess", "mine:Game"):  # what the user says holds for both kinds
        (task,), asked, *_ = episodes_of(
            replace(spec, name=name, settings="{}", count=1, max_turns=3, reward_sources=(length,)), opens()
        )
        assert (task.max_turns, task.reward_sources, asked[0].max_turns) == (3, (length,), 3)
        assert asked[0].reward_sources == (RewardSource(name="verified"),)


@pytest.mark.parametrize("name", LISTED)
def test_held_out_episodes_of_each_listed_environment_are_a_suite(name: str) -> None:
    held_out = episodes_of(replace(SPEC, name=name), opens()).held_out
    assert len(suites.of_tasks("held-out", held_out).questions) == HELD_OUT_TASKS, "none is asked twice"


@pytest.mark.parametrize(
    ("spec", "how", "match"),
    [
        (SPEC, {"careless": True}, "seed 0 gave two episodes that differ"),
        (replace(SPEC, settings="[]"), {}, "settings"),
        (replace(SPEC, name="guess", settings='{"hihgest": 4}'), {}, "hihgest"),
    ],
)
def test_what_cannot_be_compared_or_opened_is_refused(spec: EpisodeSpec, how: dict[str, Any], match: str) -> None:
    with pytest.raises(EpisodeError, match=match):
        episodes_of(spec, opens(**how))


def test_a_run_has_the_processes_that_its_tasks_need() -> None:
    episodes = episodes_of(SPEC, opens()).train
    plain = UpPlan(steps=None, minutes=None, train=(task(),))
    for plan, wanted in (
        (plain, set(PROCESSES)),
        (replace(plain, train=episodes), {*PROCESSES, *PLAYERS} - {"policy"}),
        (replace(plain, train=(task(), *episodes)), {*PROCESSES, *PLAYERS}),
        (replace(plain, train=None), {*PROCESSES, "jobs"}),
    ):
        assert set(commands(plan, Settings(), trains=True)) == wanted
    assert "train" not in commands(plain, Settings(), trains=False)


def test_what_the_command_line_names_may_be_opened() -> None:
    plan = UpPlan(steps=None, minutes=None, environments=("mine:Game",))
    assert plan.settings().of_plugin(Environments).importable == ("mine", ".")
    served = replace(plan, environments=("openenv:http://127.0.0.1:1",)).settings().of_plugin(Environments)
    assert served.allowed_servers == ("openenv:http://127.0.0.1:1",)
    theirs = replace(plan, overrides=("environments.modules=other",)).settings().of_plugin(Environments)
    assert theirs.importable == ("other",)  # what the user says is not widened
