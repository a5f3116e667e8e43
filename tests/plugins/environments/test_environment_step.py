"""A line names an environment: a listed one, a reference, or a name that another plugin knows."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.log import named_code
from plugins.environments import environment_step
from plugins.environments.environment_step import EnvironmentStep, NamedEnvironment
from schemas.events import EpisodeStart
from streams.stages.tasks.line_steps import LineSteps, Registries, no_log
from streams.stages.tasks.task_line import EnvironmentLine
from tests.support.factories import task

MAZE = NamedEnvironment(EpisodeStart(name="maze:Maze", settings='{"size": 3}', seed=0), 4, "red.maze@abc")


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked up; red.maze is known."""
    found: list[str] = []

    def find(name: str, registries: Registries) -> NamedEnvironment | None:
        found.append(name)
        return MAZE if name == "red.maze" else None

    monkeypatch.setattr(environment_step, "extensions", lambda plugin: (find,) if plugin == "environments" else ())
    return found


def completed(tenant: str | None = None, max_turns: int | None = None, **line: Any) -> Any:
    steps = LineSteps(no_log, tenant)
    return steps.complete("environment", task(max_turns=max_turns), EnvironmentLine(**{"seed": 2, **line}))


@pytest.mark.parametrize("name", ["calculator", "maze:Maze", "mcp:http://a/mcp"])
def test_a_listed_one_and_a_reference_are_no_names(name: str, names: list[str]) -> None:
    plain, references = completed(name=name, settings={"a": 1})
    assert (plain.environment, references) == (EpisodeStart(name=name, settings='{"a": 1}', seed=2), ())
    assert names == []


def test_a_name_gives_its_environment_with_the_seed_of_the_line_and_its_turns() -> None:
    for tenant, name in ((None, "red.maze"), ("red", "maze"), ("red", "red.maze")):
        named, references = completed(tenant, name=name)
        assert named.environment == EpisodeStart(name="maze:Maze", settings='{"size": 3}', seed=2)
        assert (named.max_turns, references) == (4, ("red.maze@abc",))
    assert completed("red", 2, name="maze").task.max_turns == 2


def test_a_name_has_settings_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"environment: red\.maze is registered with its settings; leave settings out"):
        completed(name="red.maze", settings={"size": 4})


def test_another_tenant_s_name_is_unknown(names: list[str]) -> None:
    unknown, references = completed("blue", name="red.maze")
    assert (unknown.environment, references) == (EpisodeStart(name="red.maze", seed=2), ())
    assert names == ["blue.red.maze"]


def test_a_tenant_s_names_are_sent_with_the_tenant() -> None:
    assert EnvironmentStep.of_tenant("red", {"name": "maze"}) == {"name": "red.maze"}
    for name in ("calculator", "maze:Maze"):
        assert EnvironmentStep.of_tenant("red", {"name": name}) == {"name": name}


def test_a_listed_environment_is_no_code_of_a_user_s() -> None:
    assert named_code.code_of_environment(EpisodeStart(name="calculator", seed=1)) is None
    assert "mine:Maze" in str(named_code.code_of_environment(EpisodeStart(name="mine:Maze", seed=1)))
