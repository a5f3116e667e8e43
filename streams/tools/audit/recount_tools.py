"""Recount an entry of the registry of tools: its events follow from each other, and each accepted digest was seen.

    added, changed, accepted, … of one entry ──► recount_decisions ──► the events that took effect
    accepted ──────────────────────────────────► of the digest that its server was last seen with, and not trusted yet
    changed ───────────────────────────────────► of one tool where the endpoint is one

Not covered: whether a server sent this description; its answers are not in the log.
"""

from __future__ import annotations

from streams.tools.audit.facts import ToolFact
from streams.tools.audit.story import TaskOutcome


class ToolRules:
    """The rules of one entry."""

    topic, noun, counted = "tools", "entry", "tool events"

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

    def take(self, event: ToolFact, outcome: TaskOutcome) -> None:
        """Take in an event that took effect."""
        if event.kind == "removed":
            self._seen = self._trusted = self._kind = ""
            return
        self._seen = event.digest
        if event.kind != "changed":
            self._trusted = event.digest
        if event.kind == "added":
            self._kind = event.endpoint
