"""A line that names entries of the registry becomes a task with what they mean, whose derived id never changes."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.tools.registry.line_names import ToolIdsStep
from plugins.tools.registry.tool_log import TOOLS
from plugins.tools.registry.tool_state import ToolState
from schemas.events import Coordinates, EpisodeStart
from streams.settings.model import Topics
from streams.stages.tasks.line_steps import LineSteps
from streams.stages.tasks.line_task import Reading
from streams.stages.tasks.lines import check_rows
from tests.support.factories import task, tool_event

MAZE = EpisodeStart(name="maze:Maze", settings='{"size": 3}', seed=0)
STATES: dict[str, ToolState] = {}
for event in (
    tool_event(),
    tool_event(tool_id="maze", endpoint="maze:Maze", tools=(), environment=MAZE, max_turns=4),
):
    TOOLS.take(STATES, event, Coordinates("tools", 0, len(STATES)))


@pytest.mark.parametrize(
    ("names", "task_id", "references", "turns"),
    [
        ({"tool_ids": ["sums"]}, "1ddd89b4-57ec-5252-8f34-58bd52b9817b", "sums@2cf9ccb192044007", None),
        (
            {"environment": {"name": "maze", "seed": 2}, "agent": "environment"},
            "30a04271-2d3a-593a-b2bf-0828b3b5770f",
            "maze@a683096011db3975",
            4,
        ),
    ],
)
def test_a_line_of_entries_has_the_id_that_it_always_had(
    names: dict[str, Any], task_id: str, references: str, turns: int | None
) -> None:
    reading = Reading(now_ms=5, topic_settings=Topics(), defaults={"policy": "p"}, steps=LineSteps(lambda _: STATES))
    [task] = check_rows([(1, {"prompt": "4 + 7 =", "answer": "11", **names})], "a", reading).tasks
    assert (task.task_id, task.metadata["tool_ids"], task.max_turns) == (task_id, references, turns)


def test_a_tenant_s_entries_are_named_with_the_tenant() -> None:
    assert ToolIdsStep.of_tenant("red", ["sums", "red.a"]) == ["red.sums", "red.a"]


@pytest.mark.parametrize("names", [{"tool_ids": ["sums"]}, {"environment": {"name": "sums", "seed": 2}}])
def test_an_entry_that_is_described_otherwise_than_it_was_accepted_is_refused(names: dict[str, Any]) -> None:
    [field] = names
    states: dict[str, ToolState] = {}
    shown = {} if field == "tool_ids" else {"endpoint": "maze:Maze", "environment": MAZE}
    for number, event in enumerate((tool_event(**shown), tool_event("changed", 1, tools=()))):
        TOOLS.take(states, event, Coordinates("tools", 0, number))
    reading = Reading(now_ms=5, topic_settings=Topics(), defaults={"policy": "p"}, steps=LineSteps(lambda _: states))
    [problem] = check_rows([(1, {"prompt": "4 + 7 =", "answer": "11", **names})], "a", reading).problems
    assert f"{field}: sums is described otherwise than ann accepted" in problem.error


def test_tools_of_one_name_are_refused_whether_both_are_named_or_one_is_the_task_s_own() -> None:
    steps, own = LineSteps(lambda _: STATES), STATES["sums"].names["sums"]
    for tools, ids, both in (((), ["sums", "sums"], "sums and sums"), ((own,), ["sums"], "add and sums")):
        with pytest.raises(ValueError, match=f"tool_ids: {both} are both called add; a call could mean either"):
            steps.complete("tool_ids", task(tools=tools), ids)
