"""An entry of the registry of tools, as the fold of its events.

    tools[tool_id]: added, changed, accepted, removed ──► fold, compare and swap ──► ToolState

The description at the time of adding is trusted. A later one from its server is only recorded: until a person accepts
that digest, the entry is refused. Each event has the number of events of its entry that took effect before it: of two
based on the same state, the first in the partition takes effect, and the second changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from schemas.events import Coordinates, EpisodeStart, Message, Tool, ToolEvent
from schemas.faults import nearest_own
from schemas.tool_text import SINGLE, EndpointKind, endpoint_kind
from streams.errors import NotFoundError, RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What an endpoint offers, and how it is described."""

    tools: tuple[Tool, ...]
    digest: str
    messages: tuple[Message, ...] = ()
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolState:
    """The state of one entry, as the fold of its events."""

    tool_id: str
    sequence: int = 0
    """How many events took effect: what the next one has to name."""
    added: ToolEvent | None = None
    """The event that added it; None: never added, or removed."""
    accepted: Offer | None = None
    """The description that is trusted."""
    seen: Offer | None = None
    """The newest description."""
    accepted_by: str = ""
    seen_at: int = 0
    effective: Mapping[str, Coordinates] = field(default_factory=dict)
    """Where each event is that took effect, by its id."""

    @property
    def endpoint(self) -> str:
        """The endpoint of its calls; empty: the entry does not exist."""
        return "" if self.added is None else self.added.endpoint or ""

    @property
    def kind(self) -> EndpointKind:
        """The kind of its endpoint, if it exists."""
        return endpoint_kind(self.endpoint)

    @property
    def environment(self) -> EpisodeStart | None:
        """The environment that it is, if it is one."""
        return None if self.added is None else self.added.environment

    @property
    def is_trusted(self) -> bool:
        """Whether its newest description is the accepted one."""
        return self.accepted is not None and self.seen is not None and self.accepted.digest == self.seen.digest

    @property
    def names(self) -> dict[str, Tool]:
        """Its accepted tools by their ids: its own where it is one tool, and ID.NAME where it is a server's."""
        if self.accepted is None or self.kind == "own":
            return {}
        tools = self.accepted.tools
        if self.kind in SINGLE:
            return {self.tool_id: tools[0]} if tools else {}
        return {f"{self.tool_id}.{tool.name}": tool for tool in tools}


class ToolOutput(NamedTuple):
    """The answer to a call."""

    text: str
    error: str | None = None
    """Why it is no result, in a word; None: it is one."""

    @property
    def is_error(self) -> bool:
        """Whether the tool could not use the call."""
        return self.error is not None


class RegisteredTool(NamedTuple):
    """A tool by its id, and the entry that it is of."""

    tool_id: str
    tool: Tool
    entry: ToolState


def refusal(state: ToolState, event: ToolEvent) -> str | None:
    """Return why an event changes nothing about an entry in this state; None if it takes effect."""
    if event.sequence != state.sequence:
        return (
            f"it was decided when {event.sequence} events of the entry had taken effect, and there are "
            f"{state.sequence}; look at it and decide again"
        )
    if event.kind == "added":
        return None if state.added is None else f"there is {state.tool_id} already; remove it first"
    if state.added is None or state.seen is None:
        return f"there is no {state.tool_id}"
    if event.kind == "changed" and event.digest == state.seen.digest:
        return "it is described as before"
    if event.kind == "accepted" and event.digest != state.seen.digest:
        return f"its description has another digest now: {state.seen.digest}; look at it and decide again"
    return None


def fold(state: ToolState, event: ToolEvent, at: Coordinates) -> ToolState:
    """Return an entry after a record; one that is refused changes nothing."""
    if state.effective.get(event.event_id) == at or refusal(state, event) is not None:
        return state
    after = replace(state, sequence=state.sequence + 1, effective={**state.effective, event.event_id: at})
    if event.kind == "removed":
        return replace(after, added=None, accepted=None, seen=None, accepted_by="")
    if event.kind == "accepted":
        return replace(after, accepted=after.seen, accepted_by=event.actor)
    offer = Offer(tools=event.tools, digest=event.digest or "", messages=event.messages, version=event.version)
    after = replace(after, seen=offer, seen_at=event.created_at)
    return after if event.kind == "changed" else replace(after, added=event, accepted=offer, accepted_by=event.actor)


def check_trusted(entry: ToolState) -> None:
    """Raise RefusedError if an entry is described otherwise than it was accepted."""
    if entry.accepted is not None and entry.seen is not None and not entry.is_trusted:
        raise RefusedError(
            f"{entry.tool_id} is described otherwise than {entry.accepted_by} accepted: {changes_of(entry)}; look at "
            f"it with `streamward agents tools show {entry.tool_id}`, and accept digest {entry.seen.digest} or "
            "remove it. Described as accepted again, it is trusted again by the next call: `streamward agents "
            "tools call`"
        )


def changes_of(entry: ToolState) -> str:
    """Return in words how the newest description differs from the accepted one."""
    if entry.accepted is None or entry.seen is None:
        return "nothing"
    before = {tool.name: tool for tool in entry.accepted.tools}
    now = {tool.name: tool for tool in entry.seen.tools}
    parts = {
        "new": sorted(now.keys() - before.keys()),
        "gone": sorted(before.keys() - now.keys()),
        "other": sorted(name for name in now.keys() & before.keys() if now[name] != before[name]),
    }
    words = [f"{word} {', '.join(names)}" for word, names in parts.items() if names]
    return "; ".join(words) or ("its card" if entry.kind == "a2a" else "its first messages")


def find(entries: Mapping[str, ToolState], tool_id: str) -> RegisteredTool:
    """Return a tool by its id. Raises NotFoundError, RefusedError for an id that two entries have."""
    tools = [RegisteredTool(name, tool, entry) for entry in entries.values() for name, tool in entry.names.items()]
    of_this_id = [tool for tool in tools if tool.tool_id == tool_id]
    if not of_this_id:
        known = nearest_own(tool_id, [tool.tool_id for tool in tools])
        raise NotFoundError(f"there is no tool {tool_id[:140]!r}; {known}")
    if len(of_this_id) > 1:
        names = " and ".join(tool.entry.tool_id for tool in of_this_id)
        raise RefusedError(f"tool {tool_id} could be that of entry {names}; remove one of them")
    return of_this_id[0]
