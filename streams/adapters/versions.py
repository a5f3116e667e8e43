"""The state of each adapter version, folded from its events.

    adapters[policy]: trained, promoted, ... ──► fold, first event wins ──► versions, primary, newest

streams/adapters/serving.py decides which version answers, and what an event may change. This file has everything else:
each version's files, training data and verdicts, and the refused events. Files are verified when they are loaded
(streams/adapters/store.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from schemas.conventions import UNCHANGED, trained_elsewhere
from schemas.events import AdapterEvent, AdapterFile, Outcome, OutsideModel, TuningMethod, Verdict
from schemas.serde import Poison
from streams.adapters.lora_shape import LoraShape
from streams.adapters.serving import DECISIONS, SWAPS, Serving, Status, newest, refusal, step_in_place
from streams.kafka.admin import read_topic
from streams.kafka.record import partition_of
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
    trained_batches: int = 0
    """How many batches its policy had taken by this version: tuned versions and outside models take none."""
    lora: LoraShape | None = None
    """The shape of its adapter from its recipe; None for the base model."""
    tuned_by: TuningMethod | None = None
    """How it was tuned; None: made by batches or imported."""
    trained_elsewhere: str | None = None
    """Framework and author of an imported version; None: it was trained here."""
    outside: OutsideModel | None = None
    """The model that answers for it on another server; None: its weights are here."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluated: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Metrics by suite."""
    outcomes: Mapping[str, tuple[Outcome, ...]] = field(default_factory=dict)
    """The outcome of each task, by suite, in the order of the suite."""
    judged: Judgement | None = None
    """The newest verdict on it."""
    promoted_at: int | None = None
    """When it was last made primary."""

    @property
    def recorded_batches(self) -> int | None:
        """The value that answers of this version record: `trained_batches`, if it differs from its number."""
        return None if self.trained_batches == self.version else self.trained_batches

    @property
    def took_batch(self) -> bool:
        """Whether a batch made it, or it took the place of one."""
        return self.version > 0 and self.tuned_by is None and self.outside is None

    @property
    def is_unchanged(self) -> bool:
        """Whether it answers like its parent, since none of its weights changed."""
        return bool(self.metrics.get(UNCHANGED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict of the guard, or of the canary's test."""

    verdict: Verdict
    reason: str
    suite: str | None
    against: int | None
    """The primary with which it was compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedEvent:
    """An event that changed nothing, with the reason."""

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
    def trained_batches(self) -> int:
        """Number of batches taken, which is the sequence of the next one."""
        return self.versions[self.newest].trained_batches

    @property
    def newest_base(self) -> str | None:
        """The digest of the base model of the newest version with weights; None if unknown."""
        return weights_of(self.versions, self.newest).base_digest

    @property
    def strays(self) -> dict[int, RefusedEvent]:
        """The first refused `trained` event of each version that does not exist, by version: it was forged."""
        claims = (refused for refused in reversed(self.refused) if refused.event.kind == "trained")
        return {claim.event.version: claim for claim in claims if claim.event.version not in self.versions}

    def primary_without(self, unusable: Container[int]) -> int:
        """Return the primary, or the newest one before it that has files and is not unusable; else the base model."""
        statuses = self.serving.statuses
        for version in reversed(self.primaries):
            if version not in unusable and statuses.get(version) != "retired":
                return version
        return 0


def weights_of(versions: Mapping[int, Version], number: int) -> Version:
    """Return the version that provides a version's weights; for an outside model, those that training continues
    from."""
    while versions[number].outside is not None:
        number -= 1
    return versions[number]


def manifest_digest(files: Iterable[AdapterFile]) -> str:
    """Return one sha256 for all files of an adapter, as `sha256sum *.json *.safetensors | sha256sum` gives it."""
    lines = "".join(f"{file.sha256}  {file.path}\n" for file in sorted(files, key=lambda file: file.path))
    return hashlib.sha256(lines.encode()).hexdigest()


def empty(policy: str) -> AdapterState:
    """Return the state of an untrained policy: the base model is primary."""
    return AdapterState(policy=policy, versions={0: Version(version=0, status="primary")})


class AdapterFold:
    """A state that takes in many events; its tables are copied once, not with each event."""

    def __init__(self, state: AdapterState) -> None:
        """Start from `state`."""
        self._before, self._changed = state, False
        self._versions, self._statuses = dict(state.versions), dict(state.serving.statuses)
        self._serving, self._primaries = state.serving, list(state.primaries)
        self._refused, self._decided = list(state.refused), set(state.decided)

    def take(self, event: AdapterEvent) -> bool:
        """Return whether an event took effect. A repeated one changes nothing; one against the rules is only listed."""
        if event.policy != self._before.policy or self._is_known(event):
            return False
        self._changed = True
        if event.kind in DECISIONS:
            self._decided.add(event.event_id)
        reason = refusal(event, self._serving)
        if reason is not None:
            self._refused.append(RefusedEvent(event=event, reason=reason))
            return False
        before, statuses = self._serving, self._statuses
        self._serving = step_in_place(before, event, statuses)
        for number in (before.primary, before.candidate):
            if number is not None and self._versions[number].status != statuses[number]:
                self._versions[number] = replace(self._versions[number], status=statuses[number])
        version = self._versions.get(event.version)
        if version is None:
            before_it = self._versions[event.version - 1].trained_batches
            self._versions[event.version] = version_of(event, before_it, statuses[event.version])
        else:
            self._versions[event.version] = _next_version(version, event, statuses[event.version])
        _move_primary(self._primaries, event)
        return True

    def state(self) -> AdapterState:
        """Return the state after all events, which ends this fold."""
        if not self._changed:
            return self._before
        return AdapterState(
            policy=self._before.policy,
            versions=self._versions,
            serving=self._serving,
            primaries=tuple(self._primaries),
            refused=tuple(self._refused),
            decided=frozenset(self._decided),
        )

    def _is_known(self, event: AdapterEvent) -> bool:
        """Whether this is a second copy: of each decision, `trained` and `evaluated` the first counts."""
        if event.kind in DECISIONS:
            return event.event_id in self._decided
        version = self._versions.get(event.version)
        if version is None:
            return False
        return event.kind == "trained" or (event.kind == "evaluated" and (event.suite or "") in version.evaluated)


def fold(state: AdapterState, event: AdapterEvent) -> AdapterState:
    """Return the state after `event`; `state` itself if it changes nothing."""
    return fold_all(state, (event,))


def fold_all(state: AdapterState, events: Iterable[AdapterEvent]) -> AdapterState:
    """Return the state after `events`; `state` itself if they change nothing."""
    after = AdapterFold(state)
    for event in events:
        after.take(event)
    return after.state()


def version_of(event: AdapterEvent, batches_before: int, status: Status = "trained") -> Version:
    """Return the version that a `trained` event makes, after one whose line had taken `batches_before` batches."""
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
        trained_batches=batches_before + event.takes_batch,
        lora=LoraShape.of_recipe(event.recipe),
        tuned_by=None if event.tuning is None else event.tuning.method,
        trained_elsewhere=trained_elsewhere(event.recipe),
        outside=event.outside,
        metrics=event.metrics,
    )


def _next_version(version: Version, event: AdapterEvent, status: Status) -> Version:
    """Return a version after an event that names it."""
    version = replace(version, status=status)
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
    return replace(version, promoted_at=event.created_at) if event.kind in SWAPS else version


def _move_primary(primaries: list[int], event: AdapterEvent) -> None:
    """Change the versions that were primary, oldest first, as `event` does."""
    if event.kind == "rolled_back":
        primaries.pop()
    if event.kind in SWAPS and (event.kind == "promoted" or primaries[-1:] != [event.version]):
        primaries.append(event.version)


def read_state(settings: Settings, policy: str) -> AdapterState:
    """Return the state of `policy` as of now. Records that are not adapter events are skipped.

    Raises NotFoundError if the topic does not exist, LogError if the broker does not answer.
    """
    partition = partition_of(policy, settings.topics.policy_partitions)
    records = read_topic(settings, "adapters", partition=partition)
    decoded = (record.decode_placed(AdapterEvent, settings.topics.policy_partitions) for record in records)
    return fold_all(empty(policy), (event for event in decoded if not isinstance(event, Poison)))


def read_states(settings: Settings) -> dict[str, AdapterState]:
    """Return the state of policy.name, and of every policy that has an event in its partition, as of now.

    Raises as `read_state`.
    """
    folds = {settings.policy.name: AdapterFold(empty(settings.policy.name))}
    for record in read_topic(settings, "adapters"):
        event = record.decode_placed(AdapterEvent, settings.topics.policy_partitions)
        if not isinstance(event, Poison):
            folds.setdefault(event.policy, AdapterFold(empty(event.policy))).take(event)
    return {policy: after.state() for policy, after in folds.items()}


def known_policies(settings: Settings) -> set[str]:
    """Return the policy of the settings, and every policy that has adapters. Raises as `read_topic`."""
    policies = {settings.policy.name}
    for record in read_topic(settings, "adapters"):
        event = record.decode_placed(AdapterEvent, settings.topics.policy_partitions)
        if not isinstance(event, Poison):
            policies.add(event.policy)
    return policies
