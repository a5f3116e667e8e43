"""Recount an entry of the registry of tools: its events follow from each other, and each accepted digest was seen.

    added, changed, accepted, … of one entry ──► each names how many took effect before it ──► findings
    accepted ──────────────────────────────────► of the digest that its server was last seen with

An event that was decided when fewer had taken effect lost to another process's, which is no mistake of the log.

Not covered: whether a server sent this description; its answers are not in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streams.tools.audit.facts import AuditFinding, Category, ToolFact
from streams.tools.audit.story import TaskOutcome


@dataclass(slots=True)
class ToolStory:
    """The events of one entry, in the order of its partition."""

    events: list[ToolFact] = field(default_factory=list)


def recount_tool(story: ToolStory) -> TaskOutcome:
    """Return the findings about one entry."""
    outcome = TaskOutcome()
    count, seen = 0, ""

    def find(category: Category, event: ToolFact, problem: str) -> None:
        outcome.findings.append(AuditFinding(category, event.at, problem))

    for event in story.events:
        if not event.has_own_id:
            find("contradictory", event, "its id is not that of its entry, kind and sequence")
            continue
        is_torn = event.sequence > count
        if is_torn:
            find("lost", event, f"it follows event {event.sequence - 1} of its entry, which is not before it")
            count = event.sequence
        if event.sequence < count:
            outcome.counts["tool events superseded"] += 1
            continue
        count += 1
        if not is_torn and (problem := _problem(event, seen)) is not None:
            find("contradictory", event, problem)
        seen = "" if event.kind == "removed" else event.digest
    outcome.counts["tool events"] += count
    return outcome


def _problem(event: ToolFact, seen: str) -> str | None:
    """Return the problem of an event; `seen`: the digest of its entry before it, empty without an entry."""
    if event.kind == "added":
        return "it adds an entry that there is" if seen else None
    if not seen:
        return f"it is {event.kind}, and there is no such entry"
    if event.kind == "accepted" and event.digest != seen:
        return f"it accepts {event.digest}, and the entry was last described as {seen}"
    return "it changes nothing" if event.kind == "changed" and event.digest == seen else None
