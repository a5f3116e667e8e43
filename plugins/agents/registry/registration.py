"""The registration of each agent in the log: the newest event about it counts.

    agents ──► the events about each agent, each once ──► register: another one, unless the newest says the same

An event's id follows from the number of earlier ones, so of two written at once the first counts, and the other changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from schemas.conventions import TOOL_IDS
from schemas.events import AgentEvent, derive_id
from schemas.serde import Poison
from streams.errors import RefusedError
from streams.kafka import times
from streams.kafka.admin import read_topic
from streams.kafka.producer import Producer
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings

KEY = "idempotency_key"
"""Metadata key of an event: its writer's name for the request."""


def registrations(settings: Settings, outage: BrokerOutage | None = None) -> dict[str, list[AgentEvent]]:
    """Return the events about each agent that count, in order. Raises as `read_topic`."""
    by_agent: dict[str, list[AgentEvent]] = {}
    seen: set[tuple[str, str]] = set()
    for record in read_topic(settings, "agents", outage=outage):
        event = record.decode_placed(AgentEvent, settings.topics.policy_partitions)
        if not isinstance(event, Poison) and (event.agent_id, event.event_id) not in seen:
            seen.add((event.agent_id, event.event_id))
            by_agent.setdefault(event.agent_id, []).append(event)
    return by_agent


def next_event(before: Sequence[AgentEvent], proposed: AgentEvent) -> AgentEvent | None:
    """Return `proposed` as the event after the earlier ones; None if the newest of them says the same."""
    if before and _is_same(before[-1], proposed):
        return None
    return replace(proposed, event_id=derive_id(proposed.agent_id, len(before)), created_at=times.now_ms())


def register(settings: Settings, proposed: AgentEvent, *, key: str | None = None) -> AgentEvent:
    """Register an agent, and return its event. With the same `key` it is done once.

    Raises RefusedError if the key was used for something else, or another event came first; LogError if the broker does
    not answer.
    """
    by_agent = registrations(settings)
    earlier = None if key is None else _event_with_key(by_agent.values(), key)
    if earlier is not None:
        if _is_same(earlier, proposed):
            return earlier
        raise RefusedError(
            f"Idempotency-Key {key!r} was used for agent {earlier.agent_id}, with other parameters; take a new key"
        )
    before = by_agent.get(proposed.agent_id, [])
    event = next_event(before, replace(proposed, metadata=proposed.metadata | ({} if key is None else {KEY: key})))
    if event is None:
        return before[-1]
    with Producer(settings, linger_ms=0) as producer:
        producer.send(event)
    if registrations(settings)[event.agent_id][len(before)] != event:
        raise RefusedError(f"agent {event.agent_id}: another process registered it first; look at it, and decide anew")
    return event


def _event_with_key(by_agent: Iterable[Sequence[AgentEvent]], key: str) -> AgentEvent | None:
    for events in by_agent:
        for event in events:
            if event.metadata.get(KEY) == key:
                return event
    return None


def _is_same(first: AgentEvent, second: AgentEvent) -> bool:
    """Whether two events say the same about their agent."""
    first, second = (
        replace(event, event_id="", created_at=0, metadata=tools_in(event), traceparent=None)
        for event in (first, second)
    )
    return first == second


def tools_in(event: AgentEvent) -> dict[str, str]:
    """Return the metadata that describe an agent itself: the tools that it names."""
    return {name: value for name, value in event.metadata.items() if name == TOOL_IDS}
