"""Environments that others wrote: what they may get wrong, in this thread and in a process of their own."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from plugins.environments.adapters.adapted import AdaptedEnvironment
from plugins.environments.environment_pool import EnvironmentPool
from plugins.environments.episodes.environment import Action, Environment, EpisodeError, Observation, StepResult
from plugins.environments.episodes.running_episode import MAX_OBSERVATION, LiveEpisode
from plugins.environments.episodes.trial_episode import handwritten_actions, try_twice
from plugins.environments.listed import open_listed
from plugins.environments.settings import Environments
from schemas.events import EpisodeStart, Message
from streams.cli.root import cli
from tests.support.doubles import odd_environment
from tests.support.processes import until

ROOT = Path(__file__).parents[3]
ODD = "tests.support.doubles.odd_environment:OddEnvironment"


class Given:
    """An environment that gives what it was made with."""

    version = "1"

    def __init__(self, observation: Any = "hello", result: Any = ("next", 0.0, False, False, {})) -> None:
        self._shown, self._result = observation, result

    def reset(self, seed: int) -> Any:
        return self._shown

    def step(self, action: Action) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def episode_of(given: Any) -> LiveEpisode:
    return LiveEpisode(AdaptedEnvironment("mine:Given", given), "mine:Given", 0, 8)


# --- in this thread ---------------------------------------------------------------------------------------------------


def test_texts_and_five_results_become_messages() -> None:
    episode = episode_of(Given(("hello", {}), ("next", 1, True, False, {"ok": False, "tool": "x", "success": True})))
    assert episode.begin() == Observation((Message(role="user", content="hello"),))
    result = episode.act(Action("go"))
    assert result == StepResult(Observation((Message(role="user", content="next"),)), 1, True, False, "x", False, True)
    assert (episode.observed.reward, episode.observed.ok, episode.observed.tool) == (1.0, False, "x")


@pytest.mark.parametrize(
    "observation", [None, 7, b"bytes", ["text"], {"role": "user"}, Observation(()), "\ud800", ("a", "b")]
)
def test_what_is_no_text_is_not_shown(observation: Any) -> None:
    with pytest.raises(EpisodeError, match="mine:Given: ") as caught:
        episode_of(Given(observation)).begin()
    assert caught.value.reason == "bad_result"


@pytest.mark.parametrize(
    ("result", "match"),
    [
        (None, r"step: expected a StepResult, or \(observation, reward"),
        (("next", 0.0, False, {}), "step: expected a StepResult"),
        (("next", "1", False, False, {}), "the reward: expected a number or None, got '1'"),
        (("next", float("nan"), False, False, {}), "the reward: expected a finite number"),
        (("next", 1e300, False, False, {}), "the reward: expected a finite number"),
        (("next", True, False, False, {}), "the reward: expected a number"),
        (("next", 0.0, 1, False, {}), "terminated: expected True or False, got 1"),
        (("next", 0.0, False, None, {}), "truncated: expected True or False"),
        (("next", 0.0, False, False, {"success": "yes"}), "success: expected True, False or None"),
        (("next", 0.0, False, False, {"tool": 3}), "the tool: expected a name"),
        (
            ValueError("no such room"),
            r"step raised ValueError: no such room \(.*test_environments_by_reference.py, line",
        ),
    ],
)
def test_what_a_step_gives_wrong_is_named(result: Any, match: str) -> None:
    episode = episode_of(Given(result=result))
    episode.begin()
    with pytest.raises(EpisodeError, match=match):
        episode.act(Action("go"))


def test_ten_megabytes_are_not_made_a_prompt() -> None:
    with pytest.raises(
        EpisodeError, match=f"an observation of 100000.. bytes, expected at most {MAX_OBSERVATION}"
    ) as caught:
        episode_of(Given("x" * 10_000_000)).begin()
    assert caught.value.reason == "too_large"


def test_an_object_that_is_no_environment_is_refused_by_what_it_lacks() -> None:
    class WithoutVersion:
        def reset(self, seed: int) -> str:
            return ""

        def step(self, action: Action) -> None: ...

    with pytest.raises(EpisodeError, match=r'it has no version, e\.g\. version = "1"'):
        AdaptedEnvironment("a:B", WithoutVersion())
    with pytest.raises(EpisodeError, match="it has no step"):
        AdaptedEnvironment("a:B", type("C", (), {"version": "1", "reset": lambda self, seed: ""})())


def test_no_action_is_taken_before_the_beginning_or_behind_the_end() -> None:
    episode = episode_of(Given(result=("end", 1.0, True, False, {})))
    with pytest.raises(EpisodeError, match="has not begun"):
        episode.act(Action("go"))
    episode.begin()
    episode.act(Action("go"))
    with pytest.raises(EpisodeError, match="is over"):
        episode.act(Action("go"))


def test_an_environment_that_gives_another_word_for_the_same_seed_is_not_passed() -> None:
    count = iter(range(99))

    class Drifting(Given):
        def reset(self, seed: int) -> str:
            return f"word {next(count)}"

    class DriftingLater(Given):
        def step(self, action: Action) -> Any:
            return f"word {next(count)}", 0.0, False, False, {}

    start = EpisodeStart(name="mine:Given", seed=3)
    with pytest.raises(EpisodeError, match="seed 3 gave two episodes that differ at reset"):
        try_twice(lambda _: AdaptedEnvironment("mine:Given", Drifting()), start, 4, None)
    with pytest.raises(EpisodeError, match="differ after action 1"):
        try_twice(lambda _: AdaptedEnvironment("mine:Given", DriftingLater()), start, 4, None)


# --- in a process of its own ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool() -> Iterator[EnvironmentPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        made = EnvironmentPool(Environments(modules="., tests.support.doubles", timeout_s=60, memory_mib=512))
        yield made
        made.close()


def opened(pool: EnvironmentPool, **settings: Any) -> tuple[Environment, LiveEpisode]:
    environment = pool.open(EpisodeStart(name=ODD, settings=json.dumps(settings), seed=0))
    return environment, LiveEpisode(environment, ODD, 0, 99)


def test_an_episode_in_a_process_is_the_same_as_in_the_thread_and_its_process_serves_the_next(
    pool: EnvironmentPool,
) -> None:
    here = LiveEpisode(AdaptedEnvironment(ODD, odd_environment.OddEnvironment()), ODD, 0, 99)
    _, there = opened(pool)
    assert here.begin() == there.begin()
    assert here.act(Action("pid?")).ok and (pid := there.act(Action("pid")).observation) is not None
    del there, _
    gc.collect()
    _, next_one = opened(pool)
    next_one.begin()
    assert next_one.act(Action("pid")).observation == pid


def test_an_environment_may_be_collected_in_a_thread_that_holds_the_lock_of_the_pool(pool: EnvironmentPool) -> None:
    """The collector runs in the middle of anything, as of `close`: the finalizer would wait for itself."""
    environment, episode = opened(pool)
    episode.begin()
    with pool._lock, pool._releasing:
        del environment, episode
        gc.collect()
    until(lambda: not pool._returned, "a process that is free again")


@pytest.mark.parametrize(
    ("action", "reason", "match"),
    [
        ("exit", "exception", "step raised SystemExit"),
        ("other type", "bad_result", "step: its result cannot be stored"),
        ("10 MB", "too_large", "shows more than 1 MiB"),
        ("network", "exception", "environments may not use the network; set environments.network"),
        ("crash", "crashed", r"ended its process \(signal SIGKILL\)"),
        ("memory", "memory", "needed more than 536870912 bytes"),
    ],
)
def test_what_goes_wrong_in_a_process_ends_its_episode_alone(
    pool: EnvironmentPool, action: str, reason: str, match: str
) -> None:
    _, episode = opened(pool)
    episode.begin()
    with pytest.raises(EpisodeError, match=match) as caught:
        episode.act(Action(action))
    assert caught.value.reason == reason


def test_an_environment_that_hangs_is_killed_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    pool = EnvironmentPool(Environments(modules="., tests.support.doubles", timeout_s=0.5))
    _, episode = opened(pool)
    with pytest.raises(EpisodeError, match=r"within 0.5 s and was killed; .* environments.timeout_s") as caught:
        episode.begin()
        episode.act(Action("hang"))
    assert caught.value.reason == "timeout"
    pool.close()


@pytest.mark.parametrize(
    ("name", "reason", "match"),
    [
        ("os:system", "not_allowed", "environments.modules lists ., tests.support.doubles, and a task can only name"),
        ("gymnasium:os:path-v0", "not_allowed", "add os"),
        ("tests.support.doubles.nothing:Here", "missing_package", "No module named 'tests.support.doubles.nothing'"),
        (ODD.replace("Odd", "Even"), "unknown_environment", "has no class 'EvenEnvironment'"),
        ("nowhere", "unknown_environment", "no environment is called 'nowhere'"),
        ("verifiers:wordle", "unknown_environment", "call the model themselves .* `streamward agents run --command`"),
    ],
)
def test_a_name_that_leads_nowhere_or_where_it_may_not_is_refused(
    pool: EnvironmentPool, name: str, reason: str, match: str
) -> None:
    with pytest.raises(EpisodeError, match=match) as caught:
        pool.open(EpisodeStart(name=name, seed=0))
    assert caught.value.reason == reason


def test_settings_that_a_class_does_not_take_are_named(pool: EnvironmentPool) -> None:
    with pytest.raises(EpisodeError, match=r"settings \['colour'\].*takes no arguments") as caught:
        opened(pool, colour="red")
    assert caught.value.reason == "bad_settings"


# --- the commands -----------------------------------------------------------------------------------------------------


def test_environments_are_listed_with_their_settings() -> None:
    result = CliRunner().invoke(cli, ["agents", "environments", "list", "--output", "jsonl"])
    names = [json.loads(line)["name"] for line in result.stdout.splitlines()]
    assert names == ["calculator", "lookup", "guess", "corridor", "tictactoe", "distractor"]


def test_an_episode_is_tried_with_the_actions_that_are_given() -> None:
    line = [
        "agents",
        "environments",
        "try",
        "calculator",
        "--seed",
        "1",
        "--action",
        "calc(98 * 53)",
        "--action",
        "5194",
    ]
    result = CliRunner().invoke(cli, [*line, "--output", "jsonl"])
    rows = [json.loads(row) for row in result.stdout.splitlines()]
    assert [row["shown"].splitlines()[-1] for row in rows] == ["98 * 53", "result: 5194", "right"]
    assert [row.get("reward") for row in rows] == [None, 0.2, 0.8]
    assert result.stderr == "Repeatable from seed 1: 2 actions; goal reached.\n"


@pytest.mark.parametrize(
    ("text", "said", "names"),
    [
        ('{"name": "add", "arguments": {"a": 2, "b": 3}}', "", ["add"]),
        ('{"name": "add", "parameters": {"a": 2, "b": 3}}', "", ["add"]),
        (
            'Both. <tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>\n'
            '<tool_call>{"name": "leave", "arguments": {}}</tool_call>',
            "Both.",
            ["add", "leave"],
        ),
        ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 2, "b": 3}}]', "", ["add"]),
        ("calc(98 * 53)", "calc(98 * 53)", []),
        ('{"name": "add"}', '{"name": "add"}', []),
        ('<tool_call>{"name": "add"', '<tool_call>{"name": "add"', []),
        ("", "", []),
    ],
)
def test_an_action_that_somebody_writes_may_call_tools(text: str, said: str, names: list[str]) -> None:
    [action] = handwritten_actions([text])
    assert (action.text, [call.name for call in action.calls]) == (said, names)
    assert all(json.loads(call.arguments) in ({"a": 2, "b": 3}, {}) for call in action.calls)


def test_the_environment_in_the_docs_has_twenty_lines_at_most() -> None:
    """What the page does with it, tests/pipeline/test_readme.py does, too."""
    program = (ROOT / "docs" / "examples" / "countdown.py").read_text()
    assert program in (ROOT / "docs" / "environments.md").read_text()
    assert len([line for line in program.splitlines() if line.strip()]) <= 20


def test_listed_environments_are_opened_in_the_thread(pool: EnvironmentPool) -> None:
    assert type(pool.open(EpisodeStart(name="guess", seed=0))) is type(open_listed("guess"))
