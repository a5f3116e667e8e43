"""What each agent is, as the log says: the newest event about it counts.

    agents ──► the events about each agent, each once ──► register: another one, unless the newest says the same

An event's id follows from how many there were before it, so of two that were written at once the first counts, and the
other changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from schemas.events import AgentEvent, derive_id
from schemas.serde import Poison
from streams.errors import RefusedError
from streams.kafka import times
from streams.kafka.admin import read_topic
from streams.kafka.producer import Producer
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings

KEY = "idempotency_key"
"""In the metadata of an event: what its writer called the request."""


def registrations(settings: Settings, outage: BrokerOutage | None = None) -> dict[str, list[AgentEvent]]:
    """Return the events about each agent that count, in order. Raises as `read_topic`."""
    found: dict[str, list[AgentEvent]] = {}
    seen: set[tuple[str, str]] = set()
    for record in read_topic(settings, "agents", outage=outage):
        event = record.decode(AgentEvent)
        if not isinstance(event, Poison) and (event.agent_id, event.event_id) not in seen:
            seen.add((event.agent_id, event.event_id))
            found.setdefault(event.agent_id, []).append(event)
    return found


def following(before: Sequence[AgentEvent], wanted: AgentEvent) -> AgentEvent | None:
    """Return `wanted` as the event behind those before it; None if the newest of them says the same."""
    if before and _same(before[-1], wanted):
        return None
    return replace(wanted, event_id=derive_id(wanted.agent_id, len(before)), created_at=times.now_ms())


def register(settings: Settings, wanted: AgentEvent, *, key: str | None = None) -> AgentEvent:
    """Write what an agent is, and return the event that says so. With the same `key` it is done once.

    Raises RefusedError if the key was used for something else, or another event came first; LogError if the broker does
    not answer.
    """
    known = registrations(settings)
    with_key = (one for events in known.values() for one in events if key is not None and one.metadata.get(KEY) == key)
    if (used := next(with_key, None)) is not None:
        if _same(used, wanted):
            return used
        raise RefusedError(
            f"Idempotency-Key {key!r} was used for agent {used.agent_id}, with other parameters; take a new key"
        )
    before = known.get(wanted.agent_id, [])
    event = following(before, replace(wanted, metadata={} if key is None else {KEY: key}))
    if event is None:
        return before[-1]
    with Producer(settings, linger_ms=0) as producer:
        producer.send(event)
    if registrations(settings)[event.agent_id][len(before)] != event:
        raise RefusedError(f"agent {event.agent_id}: somebody else registered it first; look at it, and decide anew")
    return event


def _same(one: AgentEvent, other: AgentEvent) -> bool:
    """Whether two events say the same about their agent."""
    return replace(one, event_id="", created_at=0, metadata={}, traceparent=None) == replace(
        other, event_id="", created_at=0, metadata={}, traceparent=None
    )
