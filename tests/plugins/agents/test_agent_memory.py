"""What a registration may say about an agent's memory and capabilities."""

from __future__ import annotations

import pytest

from plugins.agents.registry.agent_log import AgentMemory, capability_problem, read_memory
from streams.errors import EventError


def test_a_memory_config_that_nothing_obeys_is_refused_by_its_name() -> None:
    assert read_memory('{"turns": 4, "namespace": ["people"], "items": 3}') == AgentMemory(
        turns=4, namespace=["people"], items=3
    )
    for text, says in (
        ('{"window": 4}', "memory_config.window"),
        ('{"turns": 0}', "memory_config.turns"),
        ('{"items": 3}', "memory_config.items needs a namespace"),
        ('{"namespace": ["a.b"]}', "memory_config.namespace"),
    ):
        with pytest.raises(EventError, match=says):
            read_memory(text)


def test_a_capability_of_the_protocol_that_no_agent_here_has_is_refused() -> None:
    assert capability_problem("arithmetic") is None
    assert capability_problem("ap.io.messages") is None
    assert "ap.io.voice" in (capability_problem("ap.io.voice") or "")
