"""Recount a document: its events follow from each other.

    added, replaced, removed of one document ──► recount_decisions ──► the events that took effect
    added ──► of no document that there is          replaced, removed ──► of one that there is

Not covered: the index, which is no part of the log; it is deleted and rebuilt.
"""

from __future__ import annotations

from schemas.events import DocumentEvent
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.recount_decisions import DecisionFact, DecisionRecount, DecisionRules


class DocumentRules(DecisionRules):
    """The rules of one document."""

    def __init__(self) -> None:
        self._is_there = False

    def problem(self, event: DecisionFact) -> str | None:
        """Return what is wrong with the next event; None: it takes effect."""
        if self._is_there == (event.kind == "added"):
            return f"it is {event.kind}, and there is {'one already' if self._is_there else 'no such document'}"
        return None

    def take(self, event: DecisionFact, outcome: RecountOutcome) -> None:
        """Take in an event that took effect."""
        self._is_there = event.kind != "removed"
        outcome.counts[f"documents {event.kind}"] += 1
        outcome.counts["documents"] += {"added": 1, "replaced": 0, "removed": -1}[event.kind]


class DocumentRecount(DecisionRecount):
    """The recount of documents."""

    labels, key, rules, noun, counted = ("documents",), "document_id", DocumentRules, "document", "document events"
    counts = ("documents",)

    def about(self, event: DocumentEvent) -> None:
        """Return nothing: its kind says it all."""


RECOUNTS = (DocumentRecount,)
