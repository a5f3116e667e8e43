"""Decide about an adapter version as a person does: look, write, and see whether it took effect.

    adapters[policy] ──► read_life ──► Life ──► refused at once, and nothing is written
                                        └─────► event ──► adapters ──► read back to its offset ──► fold ──► Decided

Every reader of the log folds it to the same state (streams/adapters/serving.py), this one included. So of two people
who decide at the same moment both write, the log orders them, and the fold refuses the second: here too, which tells
them. What has taken effect already, said by the same person for the same reason, is not written again.

Not covered: whether a decision is a good one. That is the guard's question.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from schemas.events import AdapterEvent, AdapterKind, Coordinates, derive_id
from streams.adapters import versions as adapters
from streams.adapters.serving import SWAPS, TRANSITIONS, refusal
from streams.adapters.versions import AdapterState
from streams.errors import NotFoundError, RefusedError
from streams.kafka import times
from streams.kafka.admin import offsets
from streams.kafka.producer import Producer
from streams.kafka.reader import read
from streams.kafka.record import TopicPartition, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings

NO_DECISIONS = ("trained", "evaluated", "judged")
"""Kinds that say something of a version, and change nothing about it."""


@dataclass(frozen=True, slots=True)
class AdapterHistory:
    """Everything the log says of one policy's adapters, up to an offset."""

    state: AdapterState
    tp: TopicPartition
    next: int
    """Offset of the first record that is not in it."""
    events: tuple[tuple[Coordinates, AdapterEvent], ...] = ()

    @property
    def refused(self) -> dict[str, str]:
        """Why, by id of the event that changed nothing."""
        return {refused.event.event_id: refused.reason for refused in self.state.refused}

    def of(self, version: int) -> list[tuple[Coordinates, AdapterEvent]]:
        """Return the events that name a version, with where they lie."""
        return [(at, event) for at, event in self.events if event.version == version]

    def about(self, version: int) -> list[tuple[Coordinates, AdapterEvent]]:
        """Return the events that name a version, or put another in its place, with where they lie."""
        return [
            (at, event)
            for at, event in self.events
            if event.version == version
            or (event.kind in SWAPS and event.expected_version == version and event.event_id not in self.refused)
        ]

    def trained(self, version: int) -> AdapterEvent | None:
        """Return the event that made a version; None for the base model."""
        return next((event for _, event in self.of(version) if event.kind == "trained"), None)


@dataclass(frozen=True, slots=True)
class AdapterDecision:
    """A decision that took effect."""

    at: Coordinates
    event: AdapterEvent
    before: int
    """The primary it was decided against."""
    state: AdapterState
    """The state right after it."""
    again: bool = False
    """Whether it had taken effect before, and was not written now."""


def read_life(settings: Settings, policy: str) -> AdapterHistory:
    """Return the life of a policy's adapters as the log has it now. Records that cannot be read are passed over.

    Raises NotFoundError if there is no such topic, LogError if the broker does not answer.
    """
    tp = (topics(settings.topics)["adapters"].name, partition_of(policy, settings.topics.policy_partitions))
    low, high = offsets(settings, ["adapters"])[tp]
    return follow(settings, AdapterHistory(adapters.empty(policy), tp, low), high)


def follow(settings: Settings, life: AdapterHistory, end: int) -> AdapterHistory:
    """Return `life` with the records up to below offset `end`."""
    state, events = life.state, list(life.events)
    for record in read(settings, {life.tp: life.next}, {life.tp: end}):
        event = record.decode(AdapterEvent)
        if isinstance(event, AdapterEvent) and event.policy == state.policy:
            state = adapters.fold(state, event)
            events.append((record.at, event))
    return replace(life, state=state, next=max(life.next, end), events=tuple(events))


def known(state: AdapterState, version: int) -> adapters.Version:
    """Return a version of a policy. Raises NotFoundError."""
    found = state.versions.get(version)
    if found is None:
        raise NotFoundError(
            f"policy {state.policy} has no adapter version {version}; the newest is {state.newest} "
            "(`streamward adapters list` shows all of them)"
        )
    return found


def rolls_back_to(life: AdapterHistory, expect: int, *, actor: str, reason: str) -> int:
    """Return the version that was primary before the one that is, and can be again.

    The same roll-back by the same person, said again, leads to where it led, and not further back. Raises RefusedError.
    """
    state = life.state
    if expect != state.primary:
        back = [event for _, event in _taken(life) if event.kind == "rolled_back"]
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


def decide(
    settings: Settings,
    life: AdapterHistory,
    kind: AdapterKind,
    version: int,
    *,
    actor: str,
    reason: str,
    expect: int | None = None,
) -> AdapterDecision:
    """Write a decision and return once it has taken effect.

    `expect` is the primary it is decided against; without it, the one in `life`. Kinds that do not compare take none.

    Raises NotFoundError for a version that is not there; RefusedError if the decision is against the rules, or lost
    to one that was written at the same time; LogError if the broker does not answer.
    """
    known(life.state, version)
    if not reason.strip():
        raise RefusedError(f"version {version} is not {kind} without a reason; say why with --reason")
    expected = None
    if TRANSITIONS[kind].compares:
        expected = life.state.primary if expect is None else expect
    if (found := _in_force(life, kind, version, actor, reason, expect)) is not None:
        return found
    made = times.now_ms()
    event = AdapterEvent(
        # the number of decisions before it is part of the id: the same words later are another fact
        event_id=derive_id(life.state.policy, version, kind, expected, actor, reason, len(life.state.decided), made),
        policy=life.state.policy,
        created_at=made,
        version=version,
        kind=kind,
        actor=actor,
        reason=reason,
        expected_version=expected,
    )
    if (why := refusal(event, life.state.serving)) is not None:
        raise RefusedError(f"policy {life.state.policy}: nothing was written: {why}{_hint(life.state, kind, version)}")
    at = _write(settings, event)
    after = follow(settings, life, at.offset + 1)
    if (why := after.refused.get(event.event_id)) is not None:
        raise RefusedError(
            f"{at}: another decision came first, and this one has no effect: {why}{_winner(life, after)}"
        )
    return AdapterDecision(at, event, life.state.primary, after.state)


def _in_force(
    life: AdapterHistory, kind: AdapterKind, version: int, actor: str, reason: str, expect: int | None
) -> AdapterDecision | None:
    """Return this very decision, if it took effect and nothing was decided about anything since."""
    taken = _taken(life)
    if not taken:
        return None
    at, event = taken[-1]
    said = (event.kind, event.version, event.actor, event.reason)
    if said != (kind, version, actor, reason) or expect not in (None, event.expected_version):
        return None
    before = life.state.primary if event.expected_version is None else event.expected_version
    return AdapterDecision(at, event, before, life.state, again=True)


def _taken(life: AdapterHistory) -> list[tuple[Coordinates, AdapterEvent]]:
    """Return the decisions that took effect; of a record that came twice, the first."""
    first: dict[str, tuple[Coordinates, AdapterEvent]] = {}
    for at, event in life.events:
        if event.kind not in NO_DECISIONS and event.event_id not in life.refused:
            first.setdefault(event.event_id, (at, event))
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
    """Return who decided what between two looks."""
    for at, event in _taken(after):
        if at.offset >= before.next:
            return f". {event.actor} wrote {event.kind} of version {event.version} at {at}: {event.reason}"
    return ""
