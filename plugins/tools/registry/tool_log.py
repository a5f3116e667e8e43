"""Follow the registry of tools, and write the events that change it.

tools ──► a thread that follows ──► ToolState of each entry ──► find
add, note, accept, remove ──► event with the sequence it expects ──► tools ──► own fold has passed it ──► answer
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from plugins.tools.registry import tool_state
from plugins.tools.registry.tool_state import Offer, RegisteredTool, ToolState, find, refusal
from schemas.events import EpisodeStart, ToolEvent, ToolKind, derive_id
from schemas.faults import nearest_own
from streams.errors import NotFoundError, RefusedError
from streams.kafka import times
from streams.kafka.named_states import Registry, RegistryShape
from streams.settings.model import Settings


class RegistryDecision(NamedTuple):
    """The author of a change, and the reason."""

    actor: str
    reason: str


class EntryOrder(NamedTuple):
    """An entry to add."""

    tool_id: str
    endpoint: str
    auth_required: bool = False
    environment: EpisodeStart | None = None
    max_turns: int | None = None
    idempotent: bool = False
    """Whether a call may be made again if its result was lost."""
    needs_consent: bool = False
    """Whether a run asks a person before it calls one of its tools."""
    handoff: bool = False
    """Whether the answer to a call is that of the run."""
    untrusted: bool = False
    """Whether others write what its tools answer."""
    acts: bool = False
    """Whether its tools send, pay, delete or reach outside."""


TOOLS = RegistryShape(
    "tools",
    "tool",
    ToolEvent,
    lambda name: ToolState(tool_id=name),
    refusal,
    tool_state.fold,
    is_there=lambda state: state.added is not None,
)


class ToolLog(Registry[ToolEvent, ToolState]):
    """Every entry, followed in a thread. Use as a context manager; methods may be called from any thread."""

    SHAPE = TOOLS

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings, TOOLS)

    def get(self, tool_id: str) -> ToolState:
        """Return an entry that exists. Raises NotFoundError."""
        state = self.state(tool_id)
        if state.added is None:
            raise NotFoundError(f"there is no entry {tool_id[:140]!r}; {nearest_own(tool_id, self.states)}")
        return state

    def find(self, tool_id: str) -> RegisteredTool:
        """Return a tool by its id. Raises NotFoundError."""
        return find(self.states, tool_id)

    def add(self, order: EntryOrder, offer: Offer, decision: RegistryDecision) -> ToolState:
        """Add an entry, and return it; one that is the same already is returned as it is.

        Raises EventError for one that cannot be, RefusedError if there is another of its name, LogError.
        """
        state, name = self.state(order.tool_id), order.tool_id.casefold()
        if twin := next((each for each in self.states if each.casefold() == name and each != order.tool_id), None):
            raise RefusedError(f"there is {twin}, from which {order.tool_id} differs in case alone; take another name")
        added = state.added
        if added is not None and state.seen is not None:
            known = EntryOrder(order.tool_id, *(getattr(added, name) for name in EntryOrder._fields[1:]))
            if known == order and state.seen.digest == offer.digest:
                return state
        return self._decide(
            order.tool_id,
            "added",
            decision,
            **{name: getattr(order, name) for name in EntryOrder._fields[1:]},
            **_fields(offer),
        )

    def note(self, tool_id: str, offer: Offer, decision: RegistryDecision) -> ToolState:
        """Write that an entry is described otherwise, unless it is known, and return it. Raises as `add`."""
        state = self.get(tool_id)
        if state.seen is not None and state.seen.digest == offer.digest:
            return state
        return self._decide(tool_id, "changed", decision, **_fields(offer))

    def accept(self, tool_id: str, digest: str, decision: RegistryDecision) -> ToolState:
        """Trust the description with this digest, and return the entry. The same again writes nothing.

        Raises NotFoundError, RefusedError if it is described otherwise by now, LogError.
        """
        state = self.get(tool_id)
        if state.accepted is not None and state.accepted.digest == digest and state.is_trusted:
            return state
        return self._decide(tool_id, "accepted", decision, digest=digest)

    def remove(self, tool_id: str, decision: RegistryDecision) -> None:
        """Remove an entry. Raises NotFoundError, LogError."""
        self.get(tool_id)
        self._decide(tool_id, "removed", decision)

    def _decide(self, tool_id: str, kind: ToolKind, decision: RegistryDecision, **fields: Any) -> ToolState:
        """Write an event that takes effect, and return its entry. Raises EventError, RefusedError, LogError."""
        return self.decide(
            tool_id, lambda state: replace(event_of(state, kind, decision, now_ms=times.now_ms()), **fields)
        )[0]


def event_of(state: ToolState, kind: ToolKind, decision: RegistryDecision, *, now_ms: int) -> ToolEvent:
    """Return the next event of an entry, without the fields of its kind."""
    return ToolEvent(
        event_id=derive_id(state.tool_id, kind, state.sequence),
        tool_id=state.tool_id,
        created_at=now_ms,
        kind=kind,
        sequence=state.sequence,
        actor=decision.actor,
        reason=decision.reason,
    )


def _fields(offer: Offer) -> dict[str, Any]:
    return {"tools": offer.tools, "messages": offer.messages, "digest": offer.digest, "version": offer.version}
