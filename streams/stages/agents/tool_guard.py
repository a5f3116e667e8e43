"""Whether a tool may be called after what its caller has read: asked at each door through which calls go.

    ServerPart.tool_guard ──► ToolGuard ◄── GuardedCall ◄── runs of threads, /mcp/registered, answers to agents
                                  └──► CallRuling: allowed, consent or refused, with the reason

Every message says where its text is from: system, user, or the tool by name whose result it is.

Not covered: what the text says. A rule about sources needs no detector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from schemas.events import Message

Outcome = Literal["allowed", "consent", "refused"]
Door = Literal["threads", "registered", "agents"]
SourceKind = Literal["system", "user", "tool", "remembered"]


class ReadPart(NamedTuple):
    """A part of what a caller has read, and its source."""

    kind: SourceKind
    name: str
    """Of the tool; empty for any other source."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCall:
    """A call of a tool that is about to be made."""

    door: Door
    agent_id: str
    """By its name in the log; empty: no agent is named."""
    conversation: str
    """The run or trajectory; empty: none is named."""
    call_id: str
    tool_id: str
    """In the registry; of a tool that its caller executes, the name."""
    name: str
    """As the model calls it."""
    arguments: str
    """JSON object."""
    read: tuple[ReadPart, ...] | None
    """What the caller has read; None: the server does not know."""
    consent: str | None = None
    """The actor who consented to this call; None: there is none yet."""


class ToolFlow(NamedTuple):
    """What the registry declares of a tool, for rules about the flow of text."""

    tool_id: str
    untrusted: bool
    """Whether others write what it answers."""
    acts: bool
    """Whether it sends, pays, deletes or reaches outside."""


class CallRuling(NamedTuple):
    """Whether a call may be made."""

    outcome: Outcome
    reason: str


ALLOWED = CallRuling("allowed", "")


class ToolGuard(Protocol):
    """Decides about calls. Methods may be called from any thread."""

    def decide(self, call: GuardedCall) -> CallRuling:
        """Return whether a call may be made now, and record the verdict. A rule in monitor mode allows all."""


def text_parts(messages: Sequence[Message], *, remembered: str = "") -> tuple[ReadPart, ...]:
    """Return what a conversation says, each part with its source; `remembered`: text of an agent's store."""
    names: dict[str, str] = {}
    parts = [ReadPart("remembered", "", remembered)] if remembered else []
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        if message.role == "tool":
            parts.append(ReadPart("tool", message.name or names.get(message.tool_call_id or "", ""), message.content))
        elif message.role != "assistant":
            parts.append(ReadPart("user" if message.role == "user" else "system", "", message.content))
    return tuple(parts)
