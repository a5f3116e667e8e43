"""Episodes all the way: generated, played by the policy, scored by their environment, grouped, and replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.events import AdvantagedGroup, Response, Reward
from streams.settings.model import Batches, Settings
from streams.stages.tasks.generators import TaskSpec, generate
from streams.stages.tasks.submit import submit
from tests.plugins.agents.test_agents_end_to_end import run, scorers
from tests.support.agent_server import serving, settings_of
from tests.support.processes import read, running, until

__all__ = ["scorers"]

pytestmark = pytest.mark.kafka
CALCULATOR = TaskSpec(family="calculator", count=2, seed=5, purpose="train", policy="sums", group_size=2)
EPISODES = [replace(task, purpose="serve") for task in generate(CALCULATOR, now_ms=0)]
"""Of a purpose that does not wait for a trainer: there is none here."""


def calculating() -> dict[str, Any]:
    """Return a script that calls the calculator, and says what came of it. The first of EPISODES it gets wrong."""
    replies = list[dict[str, str]]()
    for number, task in enumerate(EPISODES):
        left, right = map(int, task.messages[-1].content.split(" * "))
        replies.append({"when": f"user: {left} * {right}", "reply": f"calc({left} * {right})"})
        replies.append({"when": f"user: result: {left * right}", "reply": str(left * right + 1 - number)})
    return {"replies": replies}


@pytest.fixture
def settings(kafka_bootstrap: str, tmp_path: Path) -> Settings:
    made = settings_of(kafka_bootstrap, tmp_path, calculating())
    return made.model_copy(update={"batches": Batches(groups=1, zero_variance="keep")})


def test_episodes_become_groups_with_what_their_environment_paid_and_come_out_again(
    settings: Settings, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with serving(settings):
        request.getfixturevalue("scorers")
        with running(settings, tmp_path, "streams"):
            submit(settings, EPISODES)
            episodes = json.loads(run(settings, "agents", "run", "--environments", "--until-done", "--output", "jsonl"))
            assert episodes == {"completed": 4}
            until(lambda: len(read(settings, AdvantagedGroup)) == 2, "their groups", folder=tmp_path)
            run(settings, "audit")
    found = {one.response_id: one for _, one in read(settings, Response) if one.agent_id == "environment"}
    assert [one.error for one in found.values()] == [None] * 4
    for reward in (one for _, one in read(settings, Reward) if one.source == "environment"):
        response = found[reward.response_id]
        called, answered = response.turns
        assert (called.tool, called.ok, called.reward, answered.tool) == ("calc", True, 0.2, None)
        is_right = response.task_id == EPISODES[1].task_id
        assert (response.success, answered.reward, reward.steps) == (is_right, 0.8 * is_right, (0.2, 0.8 * is_right))
        assert reward.value == pytest.approx(sum(reward.steps))
    name = next(name for name, one in found.items() if one.success)
    shown = [json.loads(line) for line in run(settings, "agents", "show", name, "--output", "jsonl").splitlines()]
    assert [(row["tool"], row["ok"], row["paid"], row["credit"]) for row in shown] == [
        ("calc", True, 0.2, 0.0), (None, True, 0.8, 0.0),
    ]  # fmt: skip
    asked = (
        "SELECT turn, tool, environment_reward, advantage FROM spans WHERE success ORDER BY response_id, turn LIMIT 2"
    )
    rows = [json.loads(line) for line in run(settings, "query", asked, "--output", "jsonl").splitlines()]
    assert [list(row.values()) for row in rows] == [[0, "calc", 0.2, 0.0], [1, None, 0.8, 0.0]]
    replayed = json.loads(run(settings, "agents", "environments", "replay", "--all", "--output", "jsonl"))
    assert replayed == {"episodes": 4, "turns": 8, "differ": 0, "not_replayed": 0}
