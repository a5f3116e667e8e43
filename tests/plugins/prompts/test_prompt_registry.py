"""Prompts in the log: of two events decided at once the first counts, and decisions of many take effect in turn."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.prompts.versions.prompt_log import PROMPTS
from schemas.events import Message
from streams.settings.model import Settings
from tests.support.factories import prompt_event
from tests.support.log.registry_cases import Case, check_case, check_decisions, made as made

pytestmark = pytest.mark.kafka
CASE = Case(
    PROMPTS,
    prompt_event(),
    prompt_event(messages=(Message(role="system", content="Hello."),), variables=()),
    lambda state: state.version(1).digest,
    lambda event: event.digest,
)


def another_prompt(state: Any) -> Any:
    text = (Message(role="system", content=f"Say {state.sequence}."),)
    return prompt_event("created", state.sequence, version=state.sequence + 1, messages=text, variables=())


def test_of_two_decided_at_once_the_first_in_the_log_counts(made: Settings, caplog: pytest.LogCaptureFixture) -> None:
    check_case(made, CASE, caplog)


def test_decisions_of_many_at_once_take_effect_one_after_another(
    made: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_decisions(made, CASE, another_prompt, monkeypatch)
