"""Recount events that have the number of effective events before them: shared by all such registries.

    events of one key, in order ──► superseded · copies · torn ──► rules of the registry ──► findings

An event based on an outdated sequence lost a race; that is not a finding. One based on a later sequence follows a
missing event, and is not checked against the state.

Not covered: rules where retention has deleted the first events of a partition; then only ids are checked.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from schemas.events import Coordinates, derive_id
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.record_digests import content_digest
from streams.tools.audit.subject import KeyedRecount, KeyFacts
from streams.tools.audit.view import AuditView


class DecisionFact(NamedTuple):
    """An event that names how many took effect before it."""

    at: Coordinates
    kind: str
    sequence: int
    """How many took effect when it was decided."""
    has_own_id: bool
    """Whether its id is that of its key, kind and sequence."""
    content: int
    """A digest of what it says, its id included."""
    digest: str
    """Of what it describes; empty of an event that describes nothing."""
    about: Any
    """What else the rules of its registry read."""


class DecisionRules:
    """The rules of one key of a registry, with the fold of the events that took effect."""

    def problem(self, event: DecisionFact) -> str | None:
        """Return what is wrong with the next event; None: it takes effect."""
        raise NotImplementedError

    def take(self, event: DecisionFact, outcome: RecountOutcome) -> None:
        """Take in an event that took effect."""
        raise NotImplementedError


class DecisionRecount(KeyedRecount[DecisionFact]):
    """The recount of a registry."""

    rules: ClassVar[type[DecisionRules]]
    key: ClassVar[str]
    """The field that is the record key."""
    noun: ClassVar[str]
    """What a key of it is called."""
    counted: ClassVar[str]
    """What its events are called."""

    def about(self, event: Any) -> Any:
        """Return what the rules read of an event, apart from its digest."""
        raise NotImplementedError

    def take(self, record: Record, event: Any) -> None:
        """Take in an event of the registry."""
        key, kind, sequence = getattr(event, self.key), event.kind, event.sequence
        has_own_id = event.event_id == derive_id(key, kind, sequence)
        content = content_digest(event, "created_at", "traceparent")
        said = (getattr(event, "digest", None) or "", self.about(event))
        self.keep(key, DecisionFact(record.at, kind, sequence, has_own_id, content, *said))

    def recount(self, facts: KeyFacts[DecisionFact], view: AuditView) -> RecountOutcome:
        """Return what is wrong with one key."""
        outcome, count, refused, rules = RecountOutcome(), 0, 0, self.rules()
        taken: dict[int, DecisionFact] = {}
        for event in facts.events:
            is_cut = view.reach.cut(*event.at[:2])
            if not event.has_own_id:
                outcome.find("contradictory", event.at, f"its id is not that of its {self.noun}, kind and sequence")
                continue
            is_torn = event.sequence > count
            if event.sequence > count + refused and not is_cut:  # its writer may have counted what is named already
                problem = f"it follows event {event.sequence - 1} of its {self.noun}, which is not before it"
                outcome.find("lost", event.at, problem)
            if event.sequence < count:
                if (first := taken.get(event.content)) is not None:
                    outcome.find("repeated", event.at, f"it repeats {first.at}", accounted=True)
                outcome.counts[f"{self.counted} superseded"] += 1
                continue
            if not is_torn and not is_cut and (reason := rules.problem(event)) is not None:
                outcome.find("contradictory", event.at, reason)
                refused += 1
                continue
            count, refused = event.sequence + 1, 0
            taken[event.content] = event
            rules.take(event, outcome)
        outcome.counts[self.counted] += count
        return outcome
