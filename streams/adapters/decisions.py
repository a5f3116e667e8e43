"""Write a person's decision about an adapter version, and check that it took effect.

    adapters[policy] ──► read_history ──► AdapterHistory ──► refused at once, and nothing is written
                                               └──► event ──► adapters ──► read back ──► fold ──► AdapterDecision

Every reader of the log folds it to the same state (streams/adapters/serving.py), this one included. If two people
decide at the same moment, both write, the log orders them, and the fold refuses the second, which is reported. A
decision that has already taken effect, by the same person for the same reason, is not written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from schemas.events import AdapterEvent, AdapterKind, Coordinates, derive_id
from streams.adapters import versions as adapters
from streams.adapters.serving import SWAPS, TRANSITIONS, refusal
from streams.adapters.versions import AdapterFold, AdapterState
from streams.errors import NotFoundError, RefusedError
from streams.kafka.admin import offsets
from streams.kafka.producer import Producer
from streams.kafka.reader import read
from streams.kafka.record import TopicPartition, partition_of
from streams.kafka.times import now_ms
from streams.kafka.topics import topics
from streams.settings.model import Settings

NO_DECISIONS = ("trained", "evaluated", "judged")
"""Kinds that describe a version without changing it."""


@dataclass(frozen=True, slots=True)
class AdapterHistory:
    """Everything in the log about one policy's adapters, up to an offset."""

    state: AdapterState
    tp: TopicPartition
    next: int
    """Offset after its last record."""
    events: tuple[tuple[Coordinates, AdapterEvent], ...] = ()
    trained: Mapping[int, tuple[Coordinates, AdapterEvent]] = field(default_factory=dict)
    """The event that made each version, with its coordinates; the base model has none."""

    @property
    def refusals(self) -> dict[str, str]:
        """Reasons, by id of the event that was refused."""
        return {refused.event.event_id: refused.reason for refused in self.state.refused}

    def of(self, version: int) -> list[tuple[Coordinates, AdapterEvent]]:
        """Return the events that name a version, with their coordinates."""
        return [(place, event) for place, event in self.events if event.version == version]

    def about(self, version: int) -> list[tuple[Coordinates, AdapterEvent]]:
        """Return the events that name a version, or replace it, with their coordinates."""
        return [
            (place, event)
            for place, event in self.events
            if event.version == version
            or (event.kind in SWAPS and event.expected_version == version and event.event_id not in self.refusals)
        ]

    def trained_event(self, version: int) -> AdapterEvent | None:
        """Return the event that made a version; None for the base model."""
        return self.trained[version][1] if version in self.trained else None

    def no_effect(self, place: Coordinates, event: AdapterEvent) -> str | None:
        """Return why an event had no effect; None if it had. A forged `trained` may have the id of the true one."""
        made_it = event.kind == "trained" and self.trained.get(event.version, (None,))[0] == place
        return None if made_it else self.refusals.get(event.event_id)


@dataclass(frozen=True, slots=True)
class AdapterDecision:
    """A decision that took effect."""

    at: Coordinates
    event: AdapterEvent
    before: int
    """The primary against which it was decided."""
    state: AdapterState
    """The state right after it."""
    again: bool = False
    """Whether it had already taken effect, and was not written now."""


def read_history(settings: Settings, policy: str) -> AdapterHistory:
    """Return the history of a policy's adapters as of now. Records that cannot be read are skipped.

    Raises NotFoundError if the topic does not exist, LogError if the broker does not answer.
    """
    tp = (topics(settings.topics)["adapters"].name, partition_of(policy, settings.topics.policy_partitions))
    low, high = offsets(settings, ["adapters"])[tp]
    return follow(settings, AdapterHistory(adapters.empty(policy), tp, low), high)


def follow(settings: Settings, history: AdapterHistory, end: int) -> AdapterHistory:
    """Return `history` with the records up to, and without, offset `end`."""
    after, events, trained = AdapterFold(history.state), list(history.events), dict(history.trained)
    for record in read(settings, {history.tp: history.next}, {history.tp: end}):
        event = record.decode_placed(AdapterEvent, settings.topics.policy_partitions)
        if isinstance(event, AdapterEvent) and event.policy == history.state.policy:
            events.append((record.at, event))
            if after.take(event) and event.kind == "trained":
                trained[event.version] = (record.at, event)
    state = after.state()
    return replace(history, state=state, next=max(history.next, end), events=tuple(events), trained=trained)


def find_version(state: AdapterState, version: int) -> adapters.Version:
    """Return a version of a policy. Raises NotFoundError."""
    adapter = state.versions.get(version)
    if adapter is None and (stray := state.strays.get(version)) is not None:
        raise NotFoundError(
            f"policy {state.policy} has no adapter version {version}: the `trained` event that claims it is refused: "
            f"{stray.reason}. Find out who wrote it (`streamward audit` has its coordinates)"
        )
    if adapter is None:
        raise NotFoundError(
            f"policy {state.policy} has no adapter version {version}; the newest is {state.newest} "
            "(`streamward adapters list` shows all of them)"
        )
    return adapter


def rollback_target(history: AdapterHistory, expect: int, *, actor: str, reason: str) -> int:
    """Return the version that was primary before the current one, and can be again.

    The same roll-back by the same person, repeated, leads to the same version, and not further back. Raises
    RefusedError.
    """
    state = history.state
    if expect != state.primary:
        back = [event for _, event in _effective(history) if event.kind == "rolled_back"]
        if back and (back[-1].expected_version, back[-1].actor, back[-1].reason) == (expect, actor, reason):
            return back[-1].version
        raise RefusedError(
            f"policy {state.policy}: nothing was written: expected version {expect} to be primary, and it is "
            f"{state.primary}; look again and decide anew"
        )
    for version in reversed(state.primaries[:-1]):
        if version != state.primary and "rolled_back" in _possible(state, version):
            return version
    raise RefusedError(
        f"policy {state.policy}: version {state.primary} is primary, and none that was before it can be again; name "
        "one with --to (`streamward adapters list` shows them), or promote another"
    )


def _possible(state: AdapterState, version: int) -> set[AdapterKind]:
    status = state.serving.statuses.get(version)
    return {kind for kind, transition in TRANSITIONS.items() if status in transition.allowed}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedDecision:
    """A requested decision about a version."""

    kind: AdapterKind
    version: int
    actor: str
    reason: str
    expect: int | None = None
    """The primary against which it is decided. If not given, a promotion or roll-back is against the one in the
    history, and a rejection against any."""


def decide(settings: Settings, history: AdapterHistory, proposed: ProposedDecision) -> AdapterDecision:
    """Write a decision and return once it has taken effect.

    Raises NotFoundError for an unknown version; RefusedError if the decision is against the rules, or lost to a
    simultaneous one; LogError if the broker does not answer.
    """
    state, kind, version = history.state, proposed.kind, proposed.version
    find_version(state, version)
    if not proposed.reason.strip():
        raise RefusedError(f"version {version} is not {kind} without a reason; give one with --reason")
    if (earlier := _in_force(history, proposed)) is not None:
        return earlier
    event = _event(history, proposed)
    if (reason := refusal(event, state.serving)) is not None:
        raise RefusedError(f"policy {state.policy}: nothing was written: {reason}{_hint(state, kind, version)}")
    place = _write(settings, event)
    after = follow(settings, history, place.offset + 1)
    if (reason := after.refusals.get(event.event_id)) is not None:
        raise RefusedError(
            f"{place}: another decision came first, and this one has no effect: {reason}{_winner(history, after)}"
        )
    return AdapterDecision(place, event, state.primary, after.state)


def _event(history: AdapterHistory, proposed: ProposedDecision) -> AdapterEvent:
    state, kind, version, expected = history.state, proposed.kind, proposed.version, proposed.expect
    if TRANSITIONS[kind].compares and expected is None:
        expected = state.primary
    created_at = now_ms()
    # the number of earlier decisions is part of the id: the same words later are another fact
    content = (version, kind, expected, proposed.actor, proposed.reason)
    return AdapterEvent(
        event_id=derive_id(state.policy, *content, len(state.decided), created_at),
        policy=state.policy,
        created_at=created_at,
        version=version,
        kind=kind,
        actor=proposed.actor,
        reason=proposed.reason,
        expected_version=expected,
    )


def _in_force(history: AdapterHistory, proposed: ProposedDecision) -> AdapterDecision | None:
    """Return this same decision, if it took effect and no other followed."""
    decisions = _effective(history)
    if not decisions:
        return None
    place, event = decisions[-1]
    last = (event.kind, event.version, event.actor, event.reason)
    if last != (proposed.kind, proposed.version, proposed.actor, proposed.reason):
        return None
    if proposed.expect not in (None, event.expected_version):
        return None
    before = history.state.primary if event.expected_version is None else event.expected_version
    return AdapterDecision(place, event, before, history.state, again=True)


def _effective(history: AdapterHistory) -> list[tuple[Coordinates, AdapterEvent]]:
    """Return the decisions that took effect; if an event was recorded twice, the first."""
    first: dict[str, tuple[Coordinates, AdapterEvent]] = {}
    for place, event in history.events:
        if event.kind not in NO_DECISIONS and event.event_id not in history.refusals:
            first.setdefault(event.event_id, (place, event))
    return list(first.values())


def _write(settings: Settings, event: AdapterEvent) -> Coordinates:
    written: list[Coordinates] = []
    with Producer(settings) as producer:
        producer.send(event, on_ack=written.append)
        producer.flush()
    return written[0]


def _hint(state: AdapterState, kind: AdapterKind, version: int) -> str:
    if kind in _possible(state, version):
        return ""
    words = {"promoted": "promote", "rolled_back": "rollback", "rejected": "reject", "retired": "retire"}
    can = ", ".join(words[kind] for kind in sorted(_possible(state, version) & words.keys()))
    return f". What can be done with it: {can}" if can else ". Nothing can be done with it"


def _winner(before: AdapterHistory, after: AdapterHistory) -> str:
    """Return the users and decisions between two readings."""
    for place, event in _effective(after):
        if place.offset >= before.next:
            return f". {event.actor} wrote {event.kind} of version {event.version} at {place}: {event.reason}"
    return ""
