"""What is sent to the log, and what is not."""

from __future__ import annotations

import threading

import pytest

from streams.errors import EventError
from streams.observability.metrics import OFF
from streams.settings.model import Settings, Topics
from streams.stages.agents.recording.turn_writer import TurnWriter
from tests.support.agent_calls import user
from tests.support.factories import trajectory, turn


def test_a_trajectory_does_not_begin_with_a_turn_that_no_record_can_hold() -> None:
    settings = Settings(topics=Topics(max_record_bytes=100_000))
    writer = TurnWriter(settings, threading.Event(), OFF, lambda _: None)
    with pytest.raises(EventError, match="100000"):
        writer.write(trajectory("started"), turn(0, messages=(user("x" * 100_000),)))
    assert writer._queue.empty()
