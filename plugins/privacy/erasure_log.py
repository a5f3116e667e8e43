"""The state of each person whose words were to be erased, as the fold of the events about one.

    privacy[person]: asked, revoked, expired, deleted, confirmed, … ──► fold, compare and swap ──► PersonState

From `asked` on they are unreadable. `revoked` takes that back until the key is deleted; `confirmed` says that it was
looked for afterwards, and was not there. `expired` is an erasure because there was no record of the person for long:
it is never taken back, and a person who returns has another pseudonym.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from schemas import key_source
from schemas.events import Coordinates, PrivacyEvent, PrivacyKind, derive_id
from schemas.privacy_events import RETENTION_S, TRAINING
from streams.kafka import times
from streams.kafka.named_states import Registry, RegistryShape
from streams.kafka.record import Record
from streams.settings.model import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonState:
    """What became of one person's words."""

    person: str
    sequence: int = 0
    """How many events took effect: what the next one has to name."""
    asked: PrivacyEvent | None = None
    """The request for erasure in force, or the expiry; None: none, or revoked."""
    restrictions: Mapping[str, str] = field(default_factory=dict)
    """What `restricted` says, by TRAINING and RETENTION_S."""
    deleted_at: int | None = None
    confirmed_at: int | None = None
    effective: Mapping[str, Coordinates] = field(default_factory=dict)
    """Where each event is that took effect, by its id."""

    @property
    def is_erased(self) -> bool:
        """Whether the words are unreadable."""
        return self.asked is not None

    @property
    def is_expired(self) -> bool:
        """Whether they are because there was no record for long."""
        return self.asked is not None and self.asked.kind == "expired"

    @property
    def may_train(self) -> bool:
        """Whether they may be trained on."""
        return self.restrictions.get(TRAINING) != "off"

    @property
    def retention_s(self) -> int | None:
        """After how long without a record it expires, 0: never; None: as the settings say."""
        return int(self.restrictions[RETENTION_S]) if RETENTION_S in self.restrictions else None

    @property
    def word(self) -> str:
        """Its state in a word."""
        if self.confirmed_at is not None:
            return "erased"
        if self.deleted_at is not None:
            return "deleted"
        return "kept" if self.asked is None else self.asked.kind


def refusal(state: PersonState, event: PrivacyEvent) -> str | None:
    """Return why an event changes nothing; None if it takes effect."""
    if event.sequence != state.sequence:
        return (
            f"it was decided when {event.sequence} events of the person had taken effect, and there are "
            f"{state.sequence}; look at it and decide again"
        )
    match event.kind:
        case "asked" | "expired":
            return None if state.asked is None else "that was asked already"
        case "revoked":
            if state.asked is None:
                return "there is nothing to revoke"
            if state.is_expired:
                return "it expired, and nothing takes that back"
            return None if state.deleted_at is None else "the key is deleted, and nothing brings it back"
        case "deleted":
            if state.asked is None or state.deleted_at is not None:
                return "no erasure was asked for, or it is deleted already"
            due_at = state.asked.due_at or 0
            return None if event.created_at >= due_at else f"it may be revoked until {due_at} ms since 1970"
        case "confirmed":
            is_next = state.deleted_at is not None and state.confirmed_at is None
            return None if is_next else "the key is not deleted, or that is confirmed already"
        case "exported" | "restricted":
            return None if state.asked is None else "it is erased"


def fold(state: PersonState, event: PrivacyEvent, at: Coordinates) -> PersonState:
    """Return the state after an event."""
    if event.event_id in state.effective or refusal(state, event) is not None:
        return state
    state = replace(state, sequence=state.sequence + 1, effective={**state.effective, event.event_id: at})
    match event.kind:
        case "asked" | "expired":
            return replace(state, asked=event)
        case "restricted":
            return replace(state, restrictions={**state.restrictions, **event.restrictions})
        case "revoked":
            return replace(state, asked=None)
        case "deleted":
            return replace(state, deleted_at=event.created_at)
        case "confirmed":
            return replace(state, confirmed_at=event.created_at)
    return state


PERSONS = RegistryShape("privacy", "person", PrivacyEvent, lambda person: PersonState(person=person), refusal, fold)


class ErasureLog(Registry[PrivacyEvent, PersonState]):
    """Every person that there is an event about, followed in a thread. Use as a context manager."""

    SHAPE = PERSONS

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings, PERSONS)
        self._erased: set[str] = set()

    def is_erased(self, person: str) -> bool:
        """Return whether a person's words are unreadable: asked for every record. Raises LogError as `state`."""
        if self.is_broken:
            self.state(person)
        return person in self._erased

    def _take(self, record: Record) -> None:
        super()._take(record)
        if (event := self._decoded(record, PrivacyEvent)) is None:
            return
        if not self.state(event.person).is_erased:
            self._erased.discard(event.person)
        elif event.person not in self._erased:
            self._erased.add(event.person)
            key_source.tell_erased(event.person)

    def note(
        self,
        person: str,
        kind: PrivacyKind,
        actor: str,
        reason: str,
        *,
        due_at: int | None = None,
        restrictions: Mapping[str, str] | None = None,
    ) -> PersonState:
        """Write an event about a person, and return the state after it; restrictions that hold already are not written.

        Raises RefusedError, LogError.
        """

        def event(state: PersonState) -> PrivacyEvent | None:
            if restrictions is not None and restrictions.items() <= state.restrictions.items():
                return None
            return PrivacyEvent(
                event_id=derive_id(person, kind, state.sequence),
                person=person,
                created_at=times.now_ms(),
                kind=kind,
                sequence=state.sequence,
                actor=actor,
                reason=reason,
                due_at=due_at,
                restrictions=dict(restrictions or {}),
            )

        state, _ = self.decide(person, event)
        return state
