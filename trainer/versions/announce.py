"""Announce a version that no batch made: one that was tuned, or trained elsewhere.

    event, folder ──► adapter store ──► adapters[policy] ──► read back: the first event of a version counts

No process holds a version's number before its event is in the log, so one on another machine may be faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from schemas.conventions import UNCHANGED
from schemas.events import AdapterEvent
from streams.adapters import store
from streams.adapters.decisions import read_history
from streams.errors import RefusedError
from streams.kafka import times
from streams.kafka.producer import Producer
from streams.settings.model import Settings


@dataclass(frozen=True, slots=True)
class WhenLate:
    """The way out in the errors of a process that was not the first."""

    stored: str
    """After "is stored with other bytes, and the log does not know it"."""
    announced: str
    """After "was made by another process meanwhile, so this one counts for nothing; "."""


def reason_of(origin: str, metrics: Mapping[str, float]) -> str:
    """Return the reason of a `trained` event: the origin of the version, and that it changes nothing if so.

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


def announce(settings: Settings, event: AdapterEvent, folder: Path, when_late: WhenLate) -> AdapterEvent:
    """Put the adapter in `folder` into the store, and its event into the log; return the event with its files.

    Raises RefusedError if the version is stored with other bytes, or the event of another process is its first;
    LogError.
    """
    whole = _publish(settings, event, folder, when_late)
    with Producer(settings) as producer:
        producer.send(whole)
        producer.flush()
    first = read_history(settings, event.policy).trained_event(event.version)
    if first is None or first.files != whole.files:
        raise RefusedError(
            f"version {event.version} of {event.policy} was made by another process meanwhile, so this one counts for "
            f"nothing; {when_late.announced}"
        )
    return whole


def _publish(settings: Settings, event: AdapterEvent, folder: Path, when_late: WhenLate) -> AdapterEvent:
    """Put the adapter into the store; return the event with its files."""
    adapters = settings.adapters
    try:
        uri, files = store.publish(folder, adapters.store, event.policy, event.version, adapters.signing_key)
    except RefusedError as exc:
        uri = store.uri_of(adapters.store, event.policy, event.version)
        raise RefusedError(
            f"{uri}: version {event.version} of {event.policy} is stored with other bytes, and the log does not know "
            f"it{when_late.stored}"
        ) from exc
    return replace(event, uri=uri, files=files, created_at=times.now_ms())
