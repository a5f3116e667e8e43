"""What is decided about by name meets the same faults, whichever plugin has it: checks for each registry."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from streams.errors import RefusedError
from streams.kafka import admin, named_states
from streams.kafka.named_states import FollowedStates, Registry, RegistryShape
from streams.kafka.topics import key_field
from streams.settings.model import Kafka, Settings, Topics
from tests.support.log.shared_node import own_prefix
from tests.support.log.unchecked import write_unchecked


class Case(NamedTuple):
    """A registry, and two first events of one name that were decided against the same state."""

    shape: RegistryShape[Any, Any]
    first: Any
    rival: Any
    winner: Callable[[Any], object]
    """Of a state: what the event that took effect says, or its author."""
    says: Callable[[Any], object]
    """Of an event: the same."""


@pytest.fixture(scope="module")
def made(kafka_bootstrap: str) -> Settings:
    topics = Topics(prefix=own_prefix(), partitions=2, policy_partitions=2)
    settings = Settings(kafka=Kafka(bootstrap=kafka_bootstrap), topics=topics)
    admin.apply_topics(settings)
    return settings


def check_case(made: Settings, case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that of two events decided at once the first in the log counts, and none in another partition."""
    for event in (case.first, case.rival, case.first):
        write_unchecked(made, event)
    write_unchecked(made, case.rival, misplaced=True)
    name = getattr(case.first, key_field(case.shape.event))
    with caplog.at_level(logging.WARNING), FollowedStates(made, case.shape) as log:
        state = log.state(name)
        assert case.winner(state) == case.says(case.first) != case.says(case.rival)
        assert case.shape.refusal(state, case.rival) is not None
        assert case.shape.read(made) == log.states == {name: state}
    assert [record.name for record in caplog.records if "is in partition" in record.getMessage()] == [
        f"streamward.{case.shape.label}"
    ]


def check_decisions(made: Settings, case: Case, decide: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert it of one registry; they begin where an earlier check has left the name."""
    shape, name = case.shape, getattr(case.first, key_field(case.shape.event))
    monkeypatch.setattr(named_states, "TRIES", 100)
    with Registry(made, shape) as one, Registry(made, shape) as other, ThreadPoolExecutor(6) as pool:
        before = one.state(name).sequence
        written = list(pool.map(lambda number: (one, other)[number % 2].decide(name, decide)[1], range(12)))
        for log in (one, other):
            log.catch_up()
        assert written == [True] * 12
        assert one.states == other.states == shape.read(made)
        assert one.state(name).sequence == before + 12
        monkeypatch.setattr(named_states, "TRIES", 1)
        rival = decide(one.state(name))
        other.append(rival)
        with pytest.raises(RefusedError, match=rf"^{shape.noun} {name}: "):
            one.decide(name, lambda _: rival)
