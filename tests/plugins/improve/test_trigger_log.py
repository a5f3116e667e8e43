"""Rules in the log: of two events decided at once the first counts, and decisions of many take effect in turn."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.improve.triggers.trigger_log import TRIGGERS
from streams.settings.model import Settings
from tests.support.factories import T0, trigger_event
from tests.support.log.registry_cases import Case, check_case, check_decisions, made as made

pytestmark = pytest.mark.kafka
CASE = Case(
    TRIGGERS,
    trigger_event("ticked"),
    trigger_event("ticked", due_at=T0 + 1),
    lambda state: state.last_tick_ms,
    lambda event: event.due_at,
)


def another_tick(state: Any) -> Any:
    return trigger_event("ticked", state.sequence, due_at=T0 + state.sequence)


def test_of_two_decided_at_once_the_first_in_the_log_counts(made: Settings, caplog: pytest.LogCaptureFixture) -> None:
    check_case(made, CASE, caplog)


def test_ticks_of_many_at_once_take_effect_one_after_another(made: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    check_decisions(made, CASE, another_tick, monkeypatch)
