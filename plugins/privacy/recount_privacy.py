"""Recount the erasures: the events of a person follow from each other, and none was deleted before it was asked.

Not covered: whether a key is gone; the audit has no keys.
"""

from __future__ import annotations

from typing import Any

from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.recount_decisions import DecisionFact, DecisionRecount, DecisionRules

NEXT = {
    "kept": {"asked", "expired", "exported", "restricted"},
    "asked": {"revoked", "deleted"},
    "expired": {"deleted"},
    "deleted": {"confirmed"},
    "erased": set[str](),
}
"""For each state the events that may follow."""
AFTER = {"asked": "asked", "expired": "expired", "revoked": "kept", "deleted": "deleted", "confirmed": "erased"}
"""The state after an event; others change none."""


class PersonRules(DecisionRules):
    """The rules of one person."""

    def __init__(self) -> None:
        self._state = "kept"

    def problem(self, event: DecisionFact) -> str | None:
        """Return what is wrong with the next event; None: it takes effect."""
        return None if event.kind in NEXT[self._state] else f"it is {event.kind}, and the person was {self._state}"

    def take(self, event: DecisionFact, outcome: RecountOutcome) -> None:
        """Take in an event that took effect."""
        self._state = AFTER.get(event.kind, self._state)


class PrivacyRecount(DecisionRecount):
    """The recount of erasures."""

    labels, key, rules, noun, counted = ("privacy",), "person", PersonRules, "person", "privacy events"

    def about(self, event: Any) -> None:
        """Return nothing more."""


RECOUNTS = (PrivacyRecount,)
