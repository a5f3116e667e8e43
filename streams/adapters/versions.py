"""The state of each adapter version, folded from its events.

    adapters[policy]: trained, promoted, ... ──► fold, first event wins ──► versions, primary, newest

Which version answers, and what an event may change about that, is streams/adapters/serving.py. Here is everything
else: where each version's files are, what it was trained on, how it was judged, and which events were refused. Files
are verified by whoever loads them (streams/adapters/store.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from schemas.conventions import trained_elsewhere
from schemas.events import AdapterEvent, AdapterFile, Outcome, TuningMethod, Verdict
from schemas.serde import Poison
from streams.adapters.serving import DECISIONS, SWAPS, Serving, Status, newest, refusal, step
from streams.kafka.admin import read_topic
from streams.kafka.record import partition_of
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One adapter version and everything in the log about it."""

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
    tuned_by: TuningMethod | None = None
    """How it was tuned; None: batches made it, or somebody else."""
    trained_elsewhere: str | None = None
    """By which framework, and by whom, if it was imported; None: it was trained here."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluated: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Metrics by suite."""
    outcomes: Mapping[str, tuple[Outcome, ...]] = field(default_factory=dict)
    """The outcome of each task, by suite, in the order of the suite."""
    judged: Judgement | None = None
    """The newest verdict on it."""
    promoted_at: int | None = None
    """When it was last made primary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict of the guard, or of the canary's test."""

    verdict: Verdict
    reason: str
    suite: str | None
    against: int | None
    """The primary it was compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedEvent:
    """An event that changed nothing, and why."""

    event: AdapterEvent
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterState:
    """Every version of one policy."""

    policy: str
    versions: Mapping[int, Version]
    serving: Serving = field(default_factory=Serving)
    primaries: tuple[int, ...] = (0,)
    """The versions that were primary, oldest first; the last is in force. A rollback removes the one it replaces."""
    refused: tuple[RefusedEvent, ...] = ()
    decided: frozenset[str] = frozenset()
    """Ids of the `DECISIONS` read so far, refused ones included."""

    @property
    def primary(self) -> int:
        """The version in force."""
        return self.serving.primary

    @property
    def newest(self) -> int:
        """The newest version."""
        return newest(self.serving)

    @property
    def strays(self) -> dict[int, RefusedEvent]:
        """By version, the first refused `trained` of each that does not exist: somebody forged it."""
        refused = (one for one in reversed(self.refused) if one.event.kind == "trained")
        return {one.event.version: one for one in refused if one.event.version not in self.versions}

    def primary_without(self, unusable: Container[int]) -> int:
        """Return the primary, or the newest one before it that has files and is not unusable; else the base model."""
        statuses = self.serving.statuses
        usable = (one for one in reversed(self.primaries) if one not in unusable and statuses.get(one) != "retired")
        return next(usable, 0)


def manifest_digest(files: Iterable[AdapterFile]) -> str:
    """Return one sha256 for all files of an adapter, as `sha256sum *.json *.safetensors | sha256sum` gives it."""
    lines = "".join(f"{file.sha256}  {file.path}\n" for file in sorted(files, key=lambda file: file.path))
    return hashlib.sha256(lines.encode()).hexdigest()


def empty(policy: str) -> AdapterState:
    """Return the state of an untrained policy: the base model is primary."""
    return AdapterState(policy=policy, versions={0: Version(version=0, status="primary")})


def fold(state: AdapterState, event: AdapterEvent) -> AdapterState:
    """Return the state after `event`. A repeated event changes nothing; one against the rules is only listed."""
    if event.policy != state.policy or _known(state, event):
        return state
    if event.kind in DECISIONS:
        if event.event_id in state.decided:
            return state
        state = replace(state, decided=state.decided | {event.event_id})
    reason = refusal(event, state.serving)
    if reason is not None:
        return replace(state, refused=(*state.refused, RefusedEvent(event=event, reason=reason)))
    serving = step(state.serving, event)
    statuses = serving.statuses
    versions = {
        number: replace(version, status=statuses[number]) if version.status != statuses[number] else version
        for number, version in state.versions.items()
    }
    versions[event.version] = _described(versions.get(event.version), event, statuses[event.version])
    return replace(
        state,
        versions=versions,
        serving=serving,
        primaries=_primaries(state.primaries, event),
    )


def _known(state: AdapterState, event: AdapterEvent) -> bool:
    """Whether this is a second `trained` or `evaluated`: the first one counts, and a second is no mistake."""
    version = state.versions.get(event.version)
    if version is None:
        return False
    if event.kind == "trained":
        return True
    return event.kind == "evaluated" and (event.suite or "") in version.evaluated


def made_by(event: AdapterEvent, status: Status = "trained") -> Version:
    """Return the version that a `trained` event makes."""
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
        tuned_by=None if event.tuning is None else event.tuning.method,
        trained_elsewhere=trained_elsewhere(event.recipe),
        metrics=event.metrics,
    )


def _described(version: Version | None, event: AdapterEvent, status: Status) -> Version:
    if version is None:
        return made_by(event, status)
    if event.kind == "evaluated":
        suite = event.suite or ""
        return replace(
            version,
            evaluated={**version.evaluated, suite: event.metrics},
            outcomes={**version.outcomes, suite: event.outcomes},
        )
    if event.kind == "judged":
        judged = Judgement(
            verdict=event.verdict or "ask", reason=event.reason, suite=event.suite, against=event.expected_version
        )
        return replace(version, judged=judged)
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


def read_state(settings: Settings, policy: str, outage: BrokerOutage | None = None) -> AdapterState:
    """Return the state of `policy` as of now. Records that are not adapter events are skipped.

    Raises NotFoundError if there is no such topic, LogError if the broker does not answer; with `outage` StoppedReading
    once the process should stop.
    """
    state = empty(policy)
    partition = partition_of(policy, settings.topics.policy_partitions)
    for record in read_topic(settings, "adapters", partition=partition, outage=outage):
        event = record.decode(AdapterEvent)
        if not isinstance(event, Poison):
            state = fold(state, event)
    return state
