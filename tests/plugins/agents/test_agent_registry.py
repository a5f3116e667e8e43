"""Registered agents as they are followed: by the registry's own rules, and by a server that answers their calls."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from plugins.agents.registry.agent_log import AGENTS
from plugins.agents.registry.registration import register, registrations
from schemas.events import AgentEvent
from streams.errors import CallError
from streams.settings.model import Settings
from streams.stages.agents.recording.recorder import Recorder
from tests.log.test_serve_fleet import asked, begun, fleet, published, settings as settings
from tests.support.factories import one_of_each
from tests.support.log.registry_cases import Case, check_case, made as made
from tests.support.processes import write

pytestmark = pytest.mark.kafka


def test_of_two_decided_at_once_the_first_in_the_log_counts_and_what_is_misplaced_counts_nowhere(
    made: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    first = next(event for event in one_of_each() if isinstance(event, AgentEvent))
    rival = replace(first, type="FINE_TUNED")
    case = Case(AGENTS, first, rival, lambda state: state.agent.type, lambda event: event.type)
    check_case(made, case, caplog)
    assert registrations(made) == {first.agent_id: [first]}


def test_an_agent_is_known_to_the_call_after_its_registration_and_a_removed_one_to_none(
    settings: Settings, tmp_path: Path
) -> None:
    write(settings, published(settings, tmp_path, "math", 1))
    agent = AgentEvent(
        event_id="", agent_id="tutor", created_at=0, kind="registered", name="Tutor", type="PROMPT_BASED",
        model_id="math",
    )  # fmt: skip

    async def talk(recorder: Recorder) -> None:
        for name in ("tutor", "clerk"):
            with pytest.raises(CallError, match="no agent of that name"):
                await begun(recorder, asked(name))
            register(settings, replace(agent, agent_id=name))
            assert (await begun(recorder, asked(name))).model == "math@0"
        register(settings, replace(agent, kind="removed"))
        recorder.agents.open().catch_up()
        with pytest.raises(CallError, match="no agent of that name"):
            await begun(recorder, asked("tutor"))

    with fleet(settings) as recorder:
        asyncio.run(talk(recorder))
