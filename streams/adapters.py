"""What became of each adapter version, as the fold of its events.

    adapters[policy]: trained, promoted, ... ──► fold, first event wins ──► versions, primary, newest

                     ┌────────────── promoted ──────────────┐
    (none) ─trained─► trained ─canary_started─► canary ─────┤
                     │                          │           ▼
                     └─────── rejected ◄────────┘        primary ─► superseded (another was promoted)
                                                                 └► rolled_back (an older one was put back)

Version 0 is the base model: always known, and primary until something is promoted. `promoted` and `rolled_back` name in
`version` what becomes primary and in `expected_version` what it replaces: compare and swap, so that of two deciders who
saw the same primary the second changes nothing. "Newest" is the highest version in the log, never the latest record.

Not covered: whether the adapter's files are good. Who loads them verifies them (streams/adapter_store.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from schemas.events import AdapterEvent, AdapterFile, AdapterKind
from schemas.serde import Poison
from streams.cluster import read_topic
from streams.log import partition_of
from streams.settings import Settings

Status = Literal["trained", "canary", "primary", "superseded", "rolled_back", "rejected", "retired"]


class Transition(NamedTuple):
    """What one kind of event does to the version it names."""

    allowed: frozenset[Status | None]
    """Statuses it may find the version in; None is a version nobody heard of."""
    status: Status | None
    """The version's status afterwards; None leaves it."""
    replaced: Status | None = None
    """The status of the primary it replaces. Set for the kinds that compare and swap."""


def _from(*statuses: Status | None) -> frozenset[Status | None]:
    return frozenset(statuses)


TRANSITIONS: dict[AdapterKind, Transition] = {
    "trained": Transition(_from(None), "trained"),
    "evaluated": Transition(
        _from("trained", "canary", "primary", "superseded", "rolled_back", "rejected", "retired"), None
    ),
    "canary_started": Transition(_from("trained"), "canary"),
    "promoted": Transition(_from("trained", "canary", "superseded", "rolled_back"), "primary", "superseded"),
    "rolled_back": Transition(_from("superseded", "rolled_back", "trained"), "primary", "rolled_back"),
    "rejected": Transition(_from("trained", "canary"), "rejected"),
    "retired": Transition(_from("trained", "superseded", "rolled_back", "rejected"), "retired"),
}
SWAPS = frozenset(kind for kind, transition in TRANSITIONS.items() if transition.replaced is not None)
"""Kinds that compare and swap."""
DECISIONS = frozenset(TRANSITIONS) - {"trained", "evaluated"}
"""Kinds whose ids are kept: a second copy could act where the first could not, or when the old primary is back."""


def refusal(event: AdapterEvent, *, statuses: Mapping[int, Status], primary: int) -> str | None:
    """Return why `event` has no effect on a policy in this state, or None if it has one."""
    transition = TRANSITIONS[event.kind]
    status = statuses.get(event.version)
    if status not in transition.allowed:
        was = "unknown" if status is None else status
        return f"version {event.version} is {was}; {event.kind} needs {_names(transition.allowed)}"
    if event.kind in SWAPS and event.expected_version != primary:
        return (
            f"expected version {event.expected_version} to be primary, and it is {primary}; look again and decide anew"
        )
    return None


def step(statuses: Mapping[int, Status], primary: int, event: AdapterEvent) -> tuple[dict[int, Status], int]:
    """Return (statuses, primary) after an event that `refusal` found nothing against."""
    transition = TRANSITIONS[event.kind]
    after = dict(statuses)
    if transition.replaced is not None:
        after[primary] = transition.replaced
        primary = event.version
    if transition.status is not None:
        after[event.version] = transition.status
    return after, primary


def _names(statuses: frozenset[Status | None]) -> str:
    return " or ".join(sorted("a new one" if status is None else status for status in statuses))


# --- the whole state, for agents and people ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One adapter version and everything the log says of it."""

    version: int
    status: Status
    created_at: int = 0
    """When it was trained, milliseconds since the epoch; 0 for the base model."""
    parent_version: int | None = None
    uri: str | None = None
    """Folder in the adapter store; None for the base model."""
    files: tuple[AdapterFile, ...] = ()
    base_digest: str | None = None
    first_batch: int | None = None
    last_batch: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluated: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Metrics by suite."""
    promoted_at: int | None = None
    """When it was last made primary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An event that changed nothing, and why."""

    event: AdapterEvent
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterState:
    """Every version of one policy."""

    policy: str
    versions: Mapping[int, Version]
    primary: int = 0
    newest: int = 0
    primaries: tuple[int, ...] = (0,)
    """The versions that were primary, oldest first; the last is in force. A rollback takes its victim off the list."""
    refused: tuple[Refused, ...] = ()
    decided: frozenset[str] = frozenset()
    """Ids of the `DECISIONS` read so far, refused ones included."""

    @property
    def statuses(self) -> dict[int, Status]:
        """Status by version."""
        return {number: version.status for number, version in self.versions.items()}


def empty(policy: str) -> AdapterState:
    """Return the state of a policy nobody has trained: the base model is primary."""
    return AdapterState(policy=policy, versions={0: Version(version=0, status="primary")})


def fold(state: AdapterState, event: AdapterEvent) -> AdapterState:
    """Return the state after `event`. The same event again changes nothing; one against the rules is only listed."""
    if event.policy != state.policy or event.event_id in state.decided or _known(state, event):
        return state
    if event.kind in DECISIONS:
        state = replace(state, decided=state.decided | {event.event_id})
    reason = refusal(event, statuses=state.statuses, primary=state.primary)
    if reason is not None:
        return replace(state, refused=(*state.refused, Refused(event=event, reason=reason)))
    statuses, primary = step(state.statuses, state.primary, event)
    versions = {
        number: replace(version, status=statuses[number]) if version.status != statuses[number] else version
        for number, version in state.versions.items()
    }
    versions[event.version] = _described(versions.get(event.version), event, statuses[event.version])
    return replace(
        state,
        versions=versions,
        primary=primary,
        newest=max(versions),
        primaries=_primaries(state.primaries, event),
    )


def _known(state: AdapterState, event: AdapterEvent) -> bool:
    """Whether this is a second `trained` or `evaluated`: the first one stands, and a second is no mistake."""
    version = state.versions.get(event.version)
    if version is None:
        return False
    if event.kind == "trained":
        return True
    return event.kind == "evaluated" and (event.suite or "") in version.evaluated


def _described(version: Version | None, event: AdapterEvent, status: Status) -> Version:
    if version is None:
        return Version(
            version=event.version,
            status=status,
            created_at=event.created_at,
            parent_version=event.parent_version,
            uri=event.uri,
            files=event.files,
            base_digest=event.base_digest,
            first_batch=event.first_batch,
            last_batch=event.last_batch,
            metrics=event.metrics,
        )
    if event.kind == "evaluated":
        return replace(version, evaluated={**version.evaluated, event.suite or "": event.metrics})
    if event.kind in SWAPS:
        return replace(version, promoted_at=event.created_at)
    return version


def _primaries(primaries: tuple[int, ...], event: AdapterEvent) -> tuple[int, ...]:
    if event.kind == "promoted":
        return (*primaries, event.version)
    if event.kind == "rolled_back":
        kept = primaries[:-1]
        return kept if kept and kept[-1] == event.version else (*kept, event.version)
    return primaries


def read_state(settings: Settings, policy: str) -> AdapterState:
    """Return the state of `policy` as the log has it now. Records that are no adapter events are passed over.

    Raises NotFoundError if there is no such topic, LogError if the broker does not answer.
    """
    state = empty(policy)
    partition = partition_of(policy, settings.topics.policy_partitions)
    for record in read_topic(settings, "adapters", partition=partition):
        event = record.decode(AdapterEvent)
        if not isinstance(event, Poison):
            state = fold(state, event)
    return state
