"""A prompt, as the fold of its events.

    prompts[name]: created, activated, shared, reflected, reported, withdrawn ──► fold, compare and swap ──► PromptState

Versions are numbered 1, 2, 3 and so on, and are never changed or deleted; a withdrawn one can no longer be named. An
alias means one version, or, during a live comparison, several, each for a share of its users. Each event has the number
of events of its prompt that took effect before it: of two based on the same state, the first in the partition takes
effect, and the second changes nothing. A text that is proposed again does not become a second version.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from schemas.events import (
    Coordinates,
    Message,
    PromptArm,
    PromptEvent,
    PromptReflection,
    PromptVariable,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptVersion:
    """A version of a prompt, whose text never changes."""

    name: str
    number: int
    messages: tuple[Message, ...]
    variables: tuple[PromptVariable, ...]
    digest: str
    created_at: int
    actor: str
    reason: str
    job_id: str | None = None
    """The search that proposed it."""

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"


@dataclass(frozen=True, slots=True)
class AliasTarget:
    """The versions that an alias means, by share."""

    arms: tuple[PromptArm, ...]
    event: PromptEvent
    """The event that set them."""

    @property
    def version(self) -> int | None:
        """The one version that it means; None while its users are shared among several."""
        return self.arms[0].version if len(self.arms) == 1 else None

    def version_for(self, unit: str) -> int:
        """Return the version for a thread or a task: the same one until that version leaves the comparison.

        The largest of u^(1 / share) wins, with u of the unit and the version alone (weighted rendezvous hashing): if an
        arm leaves and the others keep their proportions, all other units keep their version.
        """
        if len(self.arms) == 1:
            return self.arms[0].version

        def weight(arm: PromptArm) -> float:
            event = self.event
            drawn = place(event.prompt, event.alias or "", event.job_id or event.event_id, str(arm.version), unit)
            return math.log(drawn) / arm.share if drawn else -math.inf

        return max(self.arms, key=weight).version


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptState:
    """The state of one prompt, as the fold of its events."""

    prompt: str
    sequence: int = 0
    """Number of events that took effect; the next event has to name it."""
    versions: tuple[PromptVersion, ...] = ()
    """In order; version n is the one at n - 1."""
    aliases: Mapping[str, AliasTarget] = field(default_factory=dict)
    reflections: Mapping[str, PromptReflection] = field(default_factory=dict)
    """By the digest of their request."""
    shared_at: Mapping[str, int] = field(default_factory=dict)
    """When each live comparison began, by job; milliseconds since the epoch."""
    reports: Mapping[str, PromptEvent] = field(default_factory=dict)
    """The figures of each search on held-out questions, by job."""
    withdrawn: Mapping[int, PromptEvent] = field(default_factory=dict)
    """Withdrawn versions, each with the event that withdrew it."""
    effective: Mapping[str, Coordinates] = field(default_factory=dict)
    """Position of each event that took effect, by its id."""
    refused: Mapping[Coordinates, str] = field(default_factory=dict)
    """Reasons of events that changed nothing, by position."""

    def version(self, number: int) -> PromptVersion | None:
        """Return a version; None if not found."""
        return self.versions[number - 1] if 1 <= number <= len(self.versions) else None

    def withdrawal(self, number: int) -> str | None:
        """Return the message about a withdrawn version; None if it may be named."""
        if (event := self.withdrawn.get(number)) is None:
            return None
        return f"version {number} was withdrawn by {event.actor} ({event.reason}); name another"

    def with_text(self, digest: str) -> PromptVersion | None:
        """Return the version with this text; None if not found."""
        return next((version for version in self.versions if version.digest == digest), None)


def refusal(state: PromptState, event: PromptEvent) -> str | None:
    """Return why an event changes nothing about a prompt in this state; None if it takes effect."""
    if event.sequence != state.sequence:
        return (
            f"it was decided when {event.sequence} events of the prompt had taken effect, and there are "
            f"{state.sequence}; look at it and decide again"
        )
    is_of_one = event.kind in ("activated", "reported", "withdrawn")
    for number in [event.version] if is_of_one else [arm.version for arm in event.arms]:
        if number is None or state.version(number) is None:
            return f"there is no version {number}; the prompt has {_count(len(state.versions))}"
        if event.kind != "reported" and (problem := state.withdrawal(number)) is not None:
            return problem
        if event.kind == "withdrawn" and (meant := _aliases_of(state, number)):
            return f"{', '.join(meant)} means version {number}; let it mean another one first"
    if event.kind == "created":
        if (same := state.with_text(event.digest or "")) is not None:
            return f"version {same.number} has the same text; use that one"
        if event.version != len(state.versions) + 1:
            return f"version is {event.version}; the next one is {len(state.versions) + 1}"
    if event.reflection is not None and event.reflection.request_digest in state.reflections:
        return "the same was asked before; its answer counts"
    return None


def fold(state: PromptState, event: PromptEvent, at: Coordinates) -> PromptState:
    """Return a prompt after a record; a refused one changes only the list of refusals."""
    if state.effective.get(event.event_id) == at:
        return state
    if (reason := refusal(state, event)) is not None:
        return replace(state, refused={**state.refused, at: reason})
    after = replace(state, sequence=state.sequence + 1, effective={**state.effective, event.event_id: at})
    return _APPLY[event.kind](after, event)


def _aliases_of(state: PromptState, number: int) -> list[str]:
    """Return the aliases that mean a version, alone or among others."""
    arms = {alias: target.arms for alias, target in state.aliases.items()}
    return [alias for alias in arms if any(arm.version == number for arm in arms[alias])]


def _withdraw(state: PromptState, event: PromptEvent) -> PromptState:
    return replace(state, withdrawn={**state.withdrawn, event.version or 0: event})


def _add_version(state: PromptState, event: PromptEvent) -> PromptState:
    version = PromptVersion(
        name=event.prompt,
        number=len(state.versions) + 1,
        messages=event.messages,
        variables=event.variables,
        digest=event.digest or "",
        created_at=event.created_at,
        actor=event.actor,
        reason=event.reason,
        job_id=event.job_id,
    )
    return replace(state, versions=(*state.versions, version))


def _set_alias(state: PromptState, event: PromptEvent) -> PromptState:
    arms = (PromptArm(version=event.version or 0, share=1.0),)
    return replace(state, aliases={**state.aliases, event.alias or "": AliasTarget(arms, event)})


def _share_alias(state: PromptState, event: PromptEvent) -> PromptState:
    aliases = {**state.aliases, event.alias or "": AliasTarget(event.arms, event)}
    return replace(state, aliases=aliases, shared_at={event.job_id or "": event.created_at, **state.shared_at})


def _add_reflection(state: PromptState, event: PromptEvent) -> PromptState:
    if event.reflection is None:
        return state
    return replace(state, reflections={**state.reflections, event.reflection.request_digest: event.reflection})


def _add_report(state: PromptState, event: PromptEvent) -> PromptState:
    return replace(state, reports={**state.reports, event.job_id or "": event})


_APPLY = {
    "created": _add_version,
    "activated": _set_alias,
    "shared": _share_alias,
    "reflected": _add_reflection,
    "reported": _add_report,
    "withdrawn": _withdraw,
}


def place(*parts: str) -> float:
    """Return the position in [0, 1) of a thread or a task among the users of an alias."""
    name = "\x1f".join(parts).encode()
    return (int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 11) / 2**53


def _count(number: int) -> str:
    return {0: "none", 1: "version 1"}.get(number, f"versions 1 to {number}")
