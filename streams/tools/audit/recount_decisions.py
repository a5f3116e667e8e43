"""Recount events that each name how many took effect before them: the loop of every registry that decides so.

    events of one key, in order ──► superseded · copies · torn ──► rules of the registry ──► findings

An event that was decided when fewer had taken effect lost to another process's, which is no mistake of the log. One
that was decided when more had follows an event that is missing, and what it says of the state then is not judged.

Not covered: rules where retention has deleted the first events of a partition; then only ids are judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from schemas.events import Coordinates
from streams.tools.audit.facts import AuditFinding, AuditView, Category
from streams.tools.audit.story import TaskOutcome


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

    topic: str
    """Its topic, by label."""
    noun: str
    """What a key of it is called."""
    counted: str
    """What its events are called."""

    def problem(self, event: E) -> str | None:
        """Return what is wrong with the next event; None: it takes effect."""

    def take(self, event: E, outcome: TaskOutcome) -> None:
        """Take in an event that took effect."""


def recount_decisions(events: Iterable[E], rules: DecisionRules[E], view: AuditView) -> TaskOutcome:
    """Return the findings about one key."""
    outcome, count, refused = TaskOutcome(), 0, 0
    taken: dict[int, DecisionFact] = {}

    def find(category: Category, event: DecisionFact, problem: str, accounted: bool = False) -> None:
        outcome.findings.append(AuditFinding(category, event.at, problem, accounted))

    for event in events:
        is_cut = view.reach.cut(view.names[rules.topic], event.at.partition)
        if not event.has_own_id:
            find("contradictory", event, f"its id is not that of its {rules.noun}, kind and sequence")
            continue
        is_torn = event.sequence > count
        if event.sequence > count + refused and not is_cut:  # its writer may have counted what is named already
            problem = f"it follows event {event.sequence - 1} of its {rules.noun}, which is not before it"
            find("lost", event, problem)
        if event.sequence < count:
            if (first := taken.get(event.content)) is not None:
                find("repeated", event, f"it repeats {first.at}", accounted=True)
            outcome.counts[f"{rules.counted} superseded"] += 1
            continue
        if not is_torn and not is_cut and (reason := rules.problem(event)) is not None:
            find("contradictory", event, reason)
            refused += 1
            continue
        count, refused = event.sequence + 1, 0
        taken[event.content] = event
        rules.take(event, outcome)
    outcome.counts[rules.counted] += count
    return outcome
