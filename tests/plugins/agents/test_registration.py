"""What an agent is, in the log: written once, the first of two at once counts, and a run of it keeps what was said."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from plugins.agents.registry import registration
from plugins.agents.registry.registration import register, registrations
from plugins.agents.runs.agent_runner import AgentPlan, AgentWork, run
from schemas.conventions import TOOL_IDS
from schemas.events import AgentEvent, RewardSource, Tool, derive_id
from streams.errors import RefusedError
from streams.kafka import admin
from streams.settings.model import Settings
from streams.stages.agents.recording.run_end import TrajectoryEnd
from streams.stages.agents.registered_agents import KnownAgent, known_agents
from tests.support.processes import read

pytestmark = pytest.mark.kafka
HELPER = AgentEvent(
    event_id="",
    agent_id="helper",
    created_at=0,
    kind="registered",
    name="Helper",
    type="FINE_TUNED",
    model_id="default",
    tools=(Tool(name="calc"),),
)


@pytest.fixture
def made(settings: Settings) -> Settings:
    admin.apply_topics(settings)
    return settings


def test_an_agent_is_written_once_for_each_thing_that_is_mean_feedback(made: Settings) -> None:
    first = register(made, HELPER)
    assert register(made, HELPER) == first
    second = register(made, replace(HELPER, capabilities=("sums",)), key="k")
    assert registrations(made) == {"helper": [first, second]}
    assert [event.event_id for event in (first, second)] == [derive_id("helper", n) for n in range(2)]


def test_a_key_is_used_once_also_for_another_agent(made: Settings) -> None:
    first = register(made, HELPER, key="k")
    register(made, replace(HELPER, name="Other"))
    assert register(made, HELPER, key="k") == first
    with pytest.raises(RefusedError, match="'k' was used for agent helper, with other parameters"):
        register(made, replace(HELPER, agent_id="other"), key="k")
    assert len(read(made, AgentEvent)) == 2


def test_of_two_at_once_the_first_counts_and_the_other_is_told(made: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    # both have read the log before either writes: the second sees an agent that nobody has registered
    seen = [registrations(made)]
    first = register(made, HELPER)
    monkeypatch.setattr(registration, "registrations", lambda *_: seen.pop() if seen else registrations(made))
    with pytest.raises(RefusedError, match="another process registered it first"):
        register(made, replace(HELPER, model_id="other"))
    assert registrations(made) == {"helper": [first]}
    assert known_agents(made) == {"helper": KnownAgent("default", type="FINE_TUNED")}


def test_an_agent_that_was_removed_is_known_no_more(made: Settings) -> None:
    register(made, HELPER)
    register(made, replace(HELPER, kind="removed"))
    assert known_agents(made) == {}


def test_a_run_of_an_agent_keeps_its_name_tools_and_scorers(made: Settings, tmp_path: Path) -> None:
    register(made, replace(HELPER, reward_sources=(RewardSource(name="exact"),), metadata={TOOL_IDS: "calc@2c26"}))
    plan = AgentPlan(
        agent_id="helper",
        work=lambda _: AgentWork(lambda *_: TrajectoryEnd("completed", "")),
        server="http://127.0.0.1:1",
        parallel=1,
        folder=tmp_path,
        until_done=True,
    )
    run(made, plan, stop=threading.Event())
    [_, event] = registrations(made)["helper"]
    assert (event.name, event.tools, event.type) == ("Helper", HELPER.tools, "PROMPT_BASED")
    assert event.metadata == {TOOL_IDS: "calc@2c26"}
    assert event.reward_sources == (RewardSource(name="exact"),)
    assert known_agents(made)["helper"].reward_sources == event.reward_sources
