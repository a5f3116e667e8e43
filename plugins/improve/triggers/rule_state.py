"""A rule, or a catalogue of self-play, as the fold of its events.

    triggers[rule]: ticked, crossed, … ──► fold, compare and swap ──► RuleState

Each event has the number of its rule's events that took effect before it. Two based on the same state have the same
number: the first in the partition takes effect, and the second changes nothing. A tick has a later time than the one
before it, so a clock that jumps back does nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from schemas.events import Coordinates, TriggerEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """The state of one rule, as the fold of its events."""

    rule: str
    sequence: int = 0
    """How many events took effect: what the next one has to name."""
    tick: TriggerEvent | None = None
    """The newest."""
    ticks: int = 0
    crossing: TriggerEvent | None = None
    """The newest."""
    crossings: int = 0
    effective: Mapping[str, Coordinates] = field(default_factory=dict)
    """Where each event is that took effect, by its id."""
    superseded: int = 0
    """Events that changed nothing."""

    @property
    def last_tick_ms(self) -> int:
        """When the newest tick was due, ms; negative: none yet."""
        return -1 if self.tick is None or self.tick.due_at is None else self.tick.due_at

    @property
    def has_open_tick(self) -> bool:
        """Whether the newest tick has not led to a crossing yet."""
        if self.tick is None:
            return False
        return self.crossing is None or self.crossing.sequence < self.tick.sequence


def refusal(state: RuleState, event: TriggerEvent) -> str | None:
    """Return why an event changes nothing about a rule in this state; None if it takes effect."""
    if event.sequence != state.sequence:
        return (
            f"it was decided when {event.sequence} events of the rule had taken effect, and there are {state.sequence}"
        )
    if event.kind == "ticked" and (event.due_at or 0) <= state.last_tick_ms:
        return f"a tick that is due at {event.due_at} ms came before, or a later one"
    return None


def fold(state: RuleState, event: TriggerEvent, place: Coordinates) -> RuleState:
    """Return a rule after a record; one that was decided against another state changes nothing."""
    if state.effective.get(event.event_id) == place:
        return state
    if refusal(state, event) is not None:
        return replace(state, superseded=state.superseded + 1)
    after = replace(state, sequence=state.sequence + 1, effective={**state.effective, event.event_id: place})
    if event.kind == "ticked":
        return replace(after, tick=event, ticks=state.ticks + 1)
    return replace(after, crossing=event, crossings=state.crossings + 1)
