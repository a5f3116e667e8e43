"""Recount an entry of the tool registry: its events follow from each other, and each accepted digest was seen.

    added, changed, accepted, … of one entry ──► recount_decisions ──► the events that took effect
    accepted ──────────────────────────────────► of the digest that its server was last seen with, and not trusted yet
    changed ───────────────────────────────────► of one tool where the endpoint is one

Not covered: whether a server sent this description; its answers are not in the log.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas.events import ToolEvent
from schemas.tool_text import SINGLE, endpoint_kind
from streams.tools.audit.facts import RecountOutcome
from streams.tools.audit.recount_decisions import DecisionFact, DecisionRecount, DecisionRules


class ToolOffer(NamedTuple):
    """What an event of an entry offers."""

    endpoint: str
    """The kind of its endpoint; empty: the event has none."""
    tools: int
    """How many."""


class ToolRules(DecisionRules):
    """The rules of one entry."""

    def __init__(self) -> None:
        self._seen = self._trusted = ""
        """Digests of the newest description and of the accepted one; empty: there is no entry."""
        self._kind = ""
        """Of its endpoint; empty: it is not known."""

    def problem(self, event: DecisionFact) -> str | None:
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
            if self._kind in SINGLE and event.about.tools != 1:
                return f"it offers {event.about.tools} tools, and the endpoint of its entry is one {self._kind}"
        return None

    def take(self, event: DecisionFact, outcome: RecountOutcome) -> None:
        """Take in an event that took effect."""
        if event.kind == "removed":
            self._seen = self._trusted = self._kind = ""
            return
        self._seen = event.digest
        if event.kind != "changed":
            self._trusted = event.digest
        if event.kind == "added":
            self._kind = event.about.endpoint


class ToolRecount(DecisionRecount):
    """The recount of the registry of tools."""

    labels, key, rules, noun, counted = ("tools",), "tool_id", ToolRules, "entry", "tool events"

    def about(self, event: ToolEvent) -> ToolOffer:
        """Return what an event offers."""
        return ToolOffer("" if event.endpoint is None else endpoint_kind(event.endpoint), len(event.tools))


RECOUNTS = (ToolRecount,)
