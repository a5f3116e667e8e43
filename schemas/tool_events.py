"""Tools that tasks and agents name, and which description a person accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from schemas import tool_text
from schemas.event_types import MAX_TURNS, MIB, SHA256, Int, Millis
from schemas.message_types import Message, Tool
from schemas.task_events import EpisodeStart

ToolKind = Literal["added", "changed", "accepted", "removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEvent:
    """The tools of an endpoint: as they were added, as they are described since, or as a person accepted them.

    The state of an entry is the fold of these. An environment is an entry, too, and so is what our own server offers.
    """

    MOST_BYTES: ClassVar[int] = MIB
    event_id: Annotated[str, "uuid5(tool_id, kind, sequence)"]
    tool_id: Annotated[str, "key of the record: its name, which begins with its tenant's; mcp:SET: our own server's"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: ToolKind
    sequence: Annotated[Int, "compare and swap: how many events of the entry took effect before this one"]
    actor: str
    reason: str
    endpoint: Annotated[
        str | None,
        "added: what carries calls out: module:function, URL, mcp:SERVER, environment:NAME, agent:NAME, a2a:URL, or "
        "our own path",
    ] = None
    auth_required: Annotated[bool, "added: calls carry a credential that only the settings know"] = False
    digest: Annotated[str | None, "sha256 over tools and messages; accepted: of what is trusted; removed: null"] = None
    version: Annotated[str | None, "added, changed: of the server or environment; null: it names none"] = None
    environment: Annotated[EpisodeStart | None, "added: set exactly when it is one"] = None
    max_turns: Annotated[Int | None, "added: most actions of an episode that names it; null: the default"] = None
    idempotent: Annotated[bool, "added: a call may be made again if its answer was lost"] = False
    needs_consent: Annotated[bool, "added: a run asks a person before it calls one of its tools"] = False
    handoff: Annotated[bool, "added, of an agent: its answer to a call is that of the run"] = False
    untrusted: Annotated[bool, "added: others write what its tools answer"] = False
    acts: Annotated[bool, "added: its tools send, pay, delete or reach outside"] = False
    tools: Annotated[tuple[Tool, ...], "added, changed: what is offered"] = ()
    messages: Annotated[tuple[Message, ...], "added, changed: what an environment shows first; of a2a: the card"] = ()


def tool_problems(event: ToolEvent) -> Iterator[str]:
    """Return one sentence for each rule that a tool breaks."""
    if not (tool_text.TOOL_ID.fullmatch(event.tool_id) or tool_text.OWN_ID.fullmatch(event.tool_id)):
        expected = "a letter or digit, and then at most 63 of A-Z a-z 0-9 _ -, after a tenant's name and a dot if any"
        yield f"tool_id is {event.tool_id[:140]!r}; expected {expected}"
    if event.sequence < 0:
        yield f"sequence is {event.sequence}; expected 0 or more"
    if (event.endpoint is not None) != (event.kind == "added"):
        yield f"kind is {event.kind} and endpoint {event.endpoint!r}; added alone has one"
    if (event.digest is None) != (event.kind == "removed"):
        yield f"kind is {event.kind} and digest {event.digest}; all but removed have one"
    if event.digest is not None and not SHA256.fullmatch(event.digest):
        yield "digest is no SHA-256; expected 64 hexadecimal digits in lower case"
    if event.kind in ("added", "changed"):
        yield from _offer_problems(event)
    elif event.tools or event.messages or event.environment is not None:
        yield f"kind is {event.kind} and it offers something; added and changed alone do"


def _offer_problems(event: ToolEvent) -> Iterator[str]:
    faults = list(tool_text.offer_problems(event.tools))
    yield from faults
    if not faults and event.digest != tool_text.offer_digest(event.tools, event.messages):
        yield f"digest is {event.digest}, which is not that of what it offers"
    if event.kind != "added":
        return
    try:
        kind = tool_text.endpoint_kind(event.endpoint or "")
    except ValueError as exc:
        yield str(exc)
        return
    if (kind == "own") != (tool_text.OWN_ID.fullmatch(event.tool_id) is not None):
        yield f"tool_id is {event.tool_id[:80]!r} and endpoint {event.endpoint}; mcp:SET is what /mcp/SET offers"
    if kind in tool_text.SINGLE and len(event.tools) != 1:
        yield f"endpoint is {event.endpoint} and offers {len(event.tools)} tools; a function, a URL or an agent is one"
    named = None if event.environment is None else f"environment:{event.environment.name}"
    if (kind == "environment") != (named is not None) or named not in (None, event.endpoint):
        yield f"endpoint is {event.endpoint} and environment {named}; expected the same of an environment, or null"
    if event.max_turns is not None and not (named and 1 <= event.max_turns <= MAX_TURNS):
        yield f"max_turns is {event.max_turns}; expected 1 to {MAX_TURNS}, of an environment"
