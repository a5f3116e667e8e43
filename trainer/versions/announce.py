"""Announce a version that no batch made: one that was tuned, or trained elsewhere.

    event, folder ──► adapter store ──► adapters[policy] ──► read back: the first event of a version counts

No process holds a version's number before its event is in the log, so another one may be faster: a trainer, or a tuner
on another machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from schemas.conventions import UNCHANGED
from schemas.events import AdapterEvent, AnsweringAgent, GroupResponse
from streams.adapters import store
from streams.adapters.decisions import read_history
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.settings.model import Settings


def reason_of(origin: str, metrics: Mapping[str, float]) -> str:
    """Return the reason of a `trained` event: the origin of the version, and whether it changes nothing.

    >>> reason_of("batch 4", {"unchanged": 1.0, "groups": 0.0})
    'batch 4; changes nothing: none of its groups could be used'
    """
    if not metrics.get(UNCHANGED):
        return origin
    if not metrics.get("groups", 1):
        cause = "none of its groups could be used"
    elif metrics.get("grad_norm") == 0:
        cause = "the gradient is 0, as where all rewards of a group are equal"
    elif metrics.get("skipped"):
        cause = "the gradient is not finite"
    else:
        cause = "the step is below the precision of the weights"
    return f"{origin}; changes nothing: {cause}"


def answering_agents(responses: Iterable[GroupResponse]) -> set[AnsweringAgent]:
    """Return the agents that gave these responses, each with all its programs."""
    return {
        AnsweringAgent(agent_id=response.agent_id, program=response.program)
        for response in responses
        if response.agent_id is not None
    }


def in_order(agents: Iterable[AnsweringAgent]) -> tuple[AnsweringAgent, ...]:
    """Return agents in the order of an event, the same for the same version made again."""
    return tuple(sorted(agents, key=repr))


def announce(settings: Settings, event: AdapterEvent, folder: Path, *, by_bytes: bool) -> AdapterEvent | None:
    """Put the adapter in `folder` into the store, and its event into the log; return the event with its files.

    None if another event of the version came first: then every reader skips this one. `by_bytes`
    as in `store.publish`. Raises RefusedError if the version is stored with other bytes; LogError.
    """
    event = _publish(settings, event, folder, by_bytes)
    with Producer(settings) as producer:
        producer.send(event)
        producer.flush()
    first = read_history(settings, event.policy).trained_event(event.version)
    return event if first is not None and _content(first) == _content(event) else None


def _publish(settings: Settings, event: AdapterEvent, folder: Path, by_bytes: bool) -> AdapterEvent:
    """Put the adapter into the store; return the event with its files."""
    place, key = settings.adapters.store, settings.adapters.signing_key
    uri, files = store.publish(folder, place, event.policy, event.version, key, by_bytes=by_bytes)
    return replace(event, uri=uri, files=files, created_at=times.now_ms())


def _content(event: AdapterEvent) -> AdapterEvent:
    """Return an event without its writer's time and trace: announcing a version again gives the same."""
    return replace(event, created_at=0, traceparent=None)
