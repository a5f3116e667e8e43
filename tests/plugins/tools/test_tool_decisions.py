"""The registry of tools meets the faults that everything meets which is decided about by name."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.tools.registry.tool_log import TOOLS
from schemas.events import Message
from streams.settings.model import Settings
from tests.support.factories import tool_event
from tests.support.log.registry_cases import Case, check_case, check_decisions, made as made

pytestmark = pytest.mark.kafka
CASE = Case(
    TOOLS,
    tool_event(),
    tool_event(endpoint="sums:other"),
    lambda state: state.endpoint,
    lambda event: event.endpoint,
)


def another_description(state: Any) -> Any:
    text = (Message(role="user", content=f"Say {state.sequence}."),)
    return tool_event("added" if state.added is None else "changed", state.sequence, messages=text)


def test_of_two_entries_of_one_name_the_first_in_the_log_counts(
    made: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    check_case(made, CASE, caplog)


def test_descriptions_of_many_servers_take_effect_one_after_another(
    made: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_decisions(made, CASE, another_description, monkeypatch)
