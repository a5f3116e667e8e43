"""Recount an entry of the registry of tools: its events follow from each other, and each accepted digest was seen.

    added, changed, accepted, … of one entry ──► recount_decisions ──► the events that took effect
    accepted ──────────────────────────────────► of the digest that its server was last seen with, and not trusted yet
    changed ───────────────────────────────────► of one tool where the endpoint is one

Not covered: whether a server sent this description; its answers are not in the log.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas.events import Coordinates, ToolEvent, derive_id
from schemas.tool_text import endpoint_kind
from streams.kafka.record import Record
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.record_digests import content_digest
from streams.tools.audit.recount_decisions import DecisionRecount


class ToolFact(NamedTuple):
    """An event of an entry of the registry of tools."""

    at: Coordinates
    kind: str
    sequence: int
    has_own_id: bool
    content: int
    digest: str
    """Empty of one that was removed."""
    endpoint: str
    """The kind of its endpoint; empty of an event that has none."""
    offered: int
    """How many tools it offers."""


class ToolRules:
    """The rules of one entry."""

    noun, counted = "entry", "tool events"

    def __init__(self) -> None:
        self._seen = self._trusted = ""
        """Digests of the newest description and of the accepted one; empty: there is no entry."""
        self._kind = ""
        """Of its endpoint; empty: it is not known."""

    def problem(self, event: ToolFact) -> str | None:
        """Return what is wrong with the next event; None: it takes effect."""
        if event.kind == "added":
            return "it adds an entry that there is" if self._seen else None
        if not self._seen:
            return f"it is {event.kind}, and there is no such entry"
        if event.kind == "accepted":
            if event.digest != self._seen:
                return f"it accepts {event.digest}, and the entry was last described as {self._seen}"
            return "it accepts what is trusted already" if event.digest == self._trusted else None
        if event.kind == "changed":
            if event.digest == self._seen:
                return "it changes nothing"
            if self._kind in ("function", "http") and event.offered != 1:
                return f"it offers {event.offered} tools, and the endpoint of its entry is one {self._kind}"
        return None

    def take(self, event: ToolFact, outcome: RecountOutcome) -> None:
        """Take in an event that took effect."""
        if event.kind == "removed":
            self._seen = self._trusted = self._kind = ""
            return
        self._seen = event.digest
        if event.kind != "changed":
            self._trusted = event.digest
        if event.kind == "added":
            self._kind = event.endpoint


class ToolRecount(DecisionRecount):
    """The recount of the registry of tools."""

    labels, key, rules = ("tools",), "tool_id", ToolRules

    @staticmethod
    def fact(record: Record, event: ToolEvent) -> ToolFact:
        """Return what is kept of an event."""
        own_id = derive_id(event.tool_id, event.kind, event.sequence)
        return ToolFact(
            at=record.at,
            kind=event.kind,
            sequence=event.sequence,
            has_own_id=event.event_id == own_id,
            content=content_digest(event, "created_at", "traceparent"),
            digest=event.digest or "",
            endpoint="" if event.endpoint is None else endpoint_kind(event.endpoint),
            offered=len(event.tools),
        )
