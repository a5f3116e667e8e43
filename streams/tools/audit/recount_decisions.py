"""Recount events that each name how many took effect before them: the loop of every registry that decides so.

    events of one key, in order ──► superseded · copies · torn ──► rules of the registry ──► findings

An event that was decided when fewer had taken effect lost to another process's, which is no mistake of the log. One
that was decided when more had follows an event that is missing, and what it says of the state then is not judged.

Not covered: rules where retention has deleted the first events of a partition; then only ids are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol, TypeVar

from schemas.events import Coordinates
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.subject import SubjectRecount
from streams.tools.audit.view import AuditView


class DecisionFact(Protocol):
    """An event that names how many took effect before it."""

    @property
    def at(self) -> Coordinates:
        """Its place."""

    @property
    def sequence(self) -> int:
        """How many took effect when it was decided."""

    @property
    def has_own_id(self) -> bool:
        """Whether its id is that of its key, kind and sequence."""

    @property
    def content(self) -> int:
        """A digest of what it says, its id included."""


E = TypeVar("E", bound=DecisionFact, contravariant=True)


class DecisionRules(Protocol[E]):
    """The rules of a registry, with the fold of the events that took effect."""

    noun: str
    """What a key of it is called."""
    counted: str
    """What its events are called."""

    def problem(self, event: E) -> str | None:
        """Return what is wrong with the next event; None: it takes effect."""

    def take(self, event: E, outcome: RecountOutcome) -> None:
        """Take in an event that took effect."""


def recount_decisions(events: Iterable[E], rules: DecisionRules[E], view: AuditView) -> RecountOutcome:
    """Return the findings about one key."""
    outcome, count, refused = RecountOutcome(), 0, 0
    taken: dict[int, DecisionFact] = {}
    for event in events:
        is_cut = view.reach.cut(*event.at[:2])
        if not event.has_own_id:
            outcome.find("contradictory", event.at, f"its id is not that of its {rules.noun}, kind and sequence")
            continue
        is_torn = event.sequence > count
        if event.sequence > count + refused and not is_cut:  # its writer may have counted what is named already
            problem = f"it follows event {event.sequence - 1} of its {rules.noun}, which is not before it"
            outcome.find("lost", event.at, problem)
        if event.sequence < count:
            if (first := taken.get(event.content)) is not None:
                outcome.find("repeated", event.at, f"it repeats {first.at}", accounted=True)
            outcome.counts[f"{rules.counted} superseded"] += 1
            continue
        if not is_torn and not is_cut and (reason := rules.problem(event)) is not None:
            outcome.find("contradictory", event.at, reason)
            refused += 1
            continue
        count, refused = event.sequence + 1, 0
        taken[event.content] = event
        rules.take(event, outcome)
    outcome.counts[rules.counted] += count
    return outcome


class DecisionRecount(SubjectRecount):
    """The recount of a registry, key by key; a subclass names the rules and how a fact is made."""

    rules: ClassVar[Callable[[], DecisionRules[Any]]]
    """The rules of a new key."""
    key: ClassVar[str]
    """The field that is the record key."""

    def __init__(self) -> None:
        self._events: dict[str, list[Any]] = {}

    @staticmethod
    def fact(record: Record, event: Any) -> DecisionFact:
        """Return what is kept of an event."""
        raise NotImplementedError

    def take(self, record: Record, event: Any) -> None:
        """Take in an event of the registry."""
        self._events.setdefault(getattr(event, self.key), []).append(self.fact(record, event))

    def report(self, view: AuditView, policy: str | None) -> RecountOutcome:
        """Return what is wrong with every key; nothing of one policy, since no key is of one."""
        outcome = RecountOutcome()
        for events in self._events.values() if policy is None else ():
            outcome.add(recount_decisions(events, self.rules(), view))
        return outcome
