"""Environments of Gymnasium and TextArena, and Gymnasium's own check of everything that is an environment here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plugins.environments.by_reference import load
from plugins.environments.episodes.environment import Action, Environment, EpisodeError
from plugins.environments.episodes.trial_episode import try_twice
from plugins.environments.listed import LISTED, open_listed
from schemas.events import EpisodeStart
from tests import skips

pytestmark = pytest.mark.environments
gymnasium = pytest.importorskip("gymnasium", reason=skips.ENVIRONMENTS)

BY_REFERENCE: dict[str, dict[str, Any]] = {
    "gymnasium:FrozenLake-v1": {"render_mode": "ansi"},
    "gymnasium:CartPole-v1": {},
    "gymnasium:Taxi-v4": {"prompt": "Drive."},
    "gymnasium:Pendulum-v1": {},
    "textarena:GuessTheNumber-v0": {},
    "textarena:TowerOfHanoi-v0": {},
}


def opens(name: str, settings: dict[str, Any]) -> Callable[[EpisodeStart], Environment]:
    if name.startswith("textarena:"):
        pytest.importorskip("textarena", reason=skips.ENVIRONMENTS)
    return lambda _: open_listed(name) if name in LISTED else load(name, settings)


@pytest.mark.parametrize("name", [*LISTED, *BY_REFERENCE])
@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # it warns of spaces that are unusual, as texts are
def test_gymnasium_finds_nothing_wrong(name: str) -> None:
    from plugins.environments.adapters.gymnasium_view import check

    check(opens(name, BY_REFERENCE.get(name, {}))(EpisodeStart(name=name, seed=0)))


@pytest.mark.parametrize("name", BY_REFERENCE)
def test_the_same_seed_gives_the_same_episode_again(name: str) -> None:
    for seed in range(5):
        start = EpisodeStart(name=name, seed=seed)
        tried = try_twice(opens(name, BY_REFERENCE[name]), start, 12, None)
        assert tried.steps


def test_a_lake_is_drawn_and_walked_over_by_numbers() -> None:
    lake = load("gymnasium:FrozenLake-v1", {"render_mode": "ansi", "is_slippery": False})
    observation = lake.reset(0)
    assert [message.role for message in observation.messages] == ["system", "user"]
    assert observation.messages[0].content == "Answer with only a number from 0 to 3."
    assert "SFFF" in observation.messages[1].content.replace("\x1b[41mS\x1b[0m", "S")
    for wrong in ("4", "down", "", "1.5", "[1]", "null", "1e999", "[" * 9999):
        result = lake.step(Action(wrong))
        assert (result.ok, result.is_over) == (False, False)
        assert result.observation.messages[0].content == "error: expected a number from 0 to 3"
    results = [lake.step(Action(way)) for way in "112122"]
    assert (results[-1].reward, results[-1].terminated) == (1.0, True)


def test_lists_of_numbers_are_actions_of_a_box() -> None:
    pendulum = load("gymnasium:Pendulum-v1", {})
    assert len(json.loads(pendulum.reset(0).messages[-1].content)) == 3
    assert pendulum.step(Action("[0.5]")).ok
    assert not pendulum.step(Action("[0.5, 1]")).ok and not pendulum.step(Action("[1e9]")).ok


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("gymnasium:Nothing-v0", {}, "unknown_environment"),
        ("gymnasium:CartPole-v1", {"colour": "red"}, "bad_settings"),
    ],
)
def test_what_gymnasium_does_not_know_is_refused(name: str, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(EpisodeError) as caught:
        load(name, settings)
    assert caught.value.reason == reason


# --- LlamaGym ---------------------------------------------------------------------------------------------------------

PLAYER = '''
import re

class Lake:
    """Written as for LlamaGym."""

    def get_system_prompt(self):
        return "You cross a frozen lake. Say: Action: 0 to 3."

    def format_observation(self, observation):
        return f"You are on field {observation}."

    def extract_action(self, response):
        return int(re.search(r"Action: (\\d)", response).group(1))

class Half:
    def get_system_prompt(self):
        return ""
'''


def test_the_three_methods_of_llamagym_are_the_text_of_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake_players.py").write_text(PLAYER)
    monkeypatch.syspath_prepend(str(tmp_path))
    lake = load("llamagym:lake_players:Lake:FrozenLake-v1", {"is_slippery": False})
    system, user = lake.reset(1).messages
    assert (system.content, user.content) == ("You cross a frozen lake. Say: Action: 0 to 3.", "You are on field 0.")
    moved = lake.step(Action("I go down. Action: 1"))
    assert moved.ok and moved.observation.messages[0].content == "You are on field 4."
    for text, problem in (("down", "no action"), ("Action: 7", "7 is no action of Discrete(4)")):
        refused = lake.step(Action(text))
        assert not refused.ok and problem in refused.observation.messages[0].content
    for reference, reason in (
        ("lake_players:Half:FrozenLake-v1", "bad_result"),
        ("lake_players:Nobody:FrozenLake-v1", "unknown_environment"),
        ("lake_players:Lake", "unknown_environment"),
        ("no_such_module:Lake:FrozenLake-v1", "missing_package"),
    ):
        with pytest.raises(EpisodeError) as caught:
            load(f"llamagym:{reference}", {})
        assert caught.value.reason == reason
