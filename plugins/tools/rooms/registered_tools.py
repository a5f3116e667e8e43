"""The registry of tools over HTTP: entries, their tools, and calls of them.

    {tool_id, endpoint} ──► ToolCaller: its description ──► ToolLog ──► added                     POST /mcp/tools
    {digest, reason} ──► accepted, or 409 if it is described otherwise by now                      POST …/{id}/accept
    {arguments} ──► ToolGuard ──► ToolCaller, if the description is the accepted one ──► text       POST …/{id}/invoke
    {calls: [{tool, arguments}, …]} ──► one event for each answer, as it comes                     POST /mcp/stream

A tenant's entry has the tenant's name before its own, as its agents have; it sees and calls no other, and adds none,
as an endpoint is executed. A key that is bound to an agent calls the tools that its agent is registered with. A call
may name its trajectory (X-Streamward-Trajectory), so that a rule about the flow of text knows what was read before.

/mcp/stream is a WebSocket, too (tool_socket.py).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field
from starlette.requests import Request
from starlette.responses import StreamingResponse

from gateway.http import errors, sse
from gateway.http.body import Answer, Body
from gateway.http.principal import DEFAULT_AGENT, actor_of, principal_of, sees, tenant_of
from gateway.http.request_record import denied
from gateway.http.route import REST
from gateway.log.open_log import AT_ONCE, OpenLog
from gateway.mcp.toolbox import TRAJECTORY
from plugins.environments.episodes.environment import EpisodeError
from plugins.tools.registry.tool_body import ToolBody, read_body
from plugins.tools.registry.tool_caller import ToolCaller
from plugins.tools.registry.tool_log import RegistryDecision, ToolLog
from plugins.tools.registry.tool_state import RegisteredTool, ToolOutput, ToolState, find
from schemas import json_text
from schemas.conventions import tool_ids
from schemas.events import Message, Tool
from schemas.tool_text import EndpointKind
from streams.access.tenants.tenant_names import named, own_of
from streams.errors import CallError, CallErrorKind, EventError
from streams.settings.model import Settings
from streams.stages.agents.registered_agents import agent_registry
from streams.stages.agents.tool_guard import CallRuling, GuardedCall, ToolGuard, text_parts

LISTED = "GET /mcp/tools lists tools"
KINDS: dict[str, CallErrorKind] = {"unknown_environment": "not_found", "not_allowed": "unsupported"}
"""Of an endpoint's errors, those that are not about the request."""
MOST_CALLS = 32
"""Of one stream."""
Reason = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"\S")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class EntryBody(ToolBody, Body):
    """An entry to add: a function, a URL, an MCP server, an environment or an agent."""

    reason: Reason = Field("asked for", description="why; it is recorded")


class AcceptBody(Body):
    """The description that is to be trusted."""

    digest: Digest = Field(description="of the newest description, as GET /mcp/tools has it")
    reason: Reason = Field("asked for", description="why; it is recorded")


class InvokeBody(Body):
    """A call."""

    arguments: dict[str, Any] = Field(default_factory=dict, description="as the tool's parameters say")


class StreamCall(Body):
    """One of several calls."""

    id: str = Field(min_length=1, max_length=200, description="its answer has it, too")
    tool: str = Field(min_length=1, max_length=300)
    arguments: dict[str, Any] = Field(default_factory=dict)


class StreamBody(Body):
    """Calls whose answers are streamed."""

    calls: list[StreamCall] = Field(min_length=1, max_length=MOST_CALLS)


class ToolRow(Answer):
    """A tool of the registry."""

    tool_id: str
    entry: str
    name: str = Field(description="as a model calls it")
    description: str
    parameters: dict[str, Any]
    kind: EndpointKind
    endpoint: str
    auth_required: bool
    idempotent: bool
    needs_consent: bool
    handoff: bool
    untrusted: bool = Field(description="others write what it answers")
    acts: bool = Field(description="it sends, pays, deletes or reaches outside")
    trusted: bool = Field(description="false: its server describes it otherwise than was accepted")
    digest: str = Field(description="of the accepted description of the entry")
    newest_digest: str = Field(description="of the newest one: what could be accepted")
    accepted_by: str


class ToolRows(Answer):
    """Tools that one may call."""

    object: Literal["list"]
    data: list[ToolRow]


class ToolResult(Answer):
    """The answer to a call."""

    object: Literal["tool_result"]
    tool: str
    content: str
    is_error: bool = Field(description="the tool could not use the call; content says why")


class RemovedEntry(Answer):
    """An entry that is gone."""

    object: Literal["tool"]
    tool_id: str
    deleted: bool


ROW = ToolRow(
    tool_id="sums",
    entry="sums",
    name="sums",
    description="Add two numbers.",
    parameters={"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    kind="function",
    endpoint="my_tools:add",
    auth_required=False,
    idempotent=False,
    needs_consent=False,
    handoff=False,
    untrusted=False,
    acts=False,
    trusted=True,
    digest="2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    newest_digest="2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    accepted_by="api",
)
ROWS = ToolRows(object="list", data=[ROW])


class KnowsConversations(Protocol):
    """The recorder, as calls of tools ask it."""

    async def agent_of(self, name: str) -> str | None:
        """Return the agent of a trajectory; None if it is unknown."""

    async def newest_messages(self, trajectory_id: str) -> tuple[Message, ...] | None:
        """Return the messages up to the newest turn of a trajectory; None if none is remembered."""


class RegisteredTools:
    """Tools and environments of the log. Methods wait for the broker and for endpoints."""

    def __init__(
        self,
        settings: Settings,
        log: OpenLog,
        caller: ToolCaller,
        recorder: KnowsConversations | None = None,
        guard: Callable[[], ToolGuard | None] = lambda: None,
    ) -> None:
        """`guard` decides about calls, by what `recorder` knows that their callers have read."""
        self._settings, self._log, self._caller = settings, log, caller
        self._recorder, self._guard = recorder, guard

    @property
    def _tools(self) -> ToolLog:
        return self._log.registry(ToolLog)

    @REST.get("/mcp/tools", may="agents.read", refuses=(), at_once=AT_ONCE, example=ROWS)
    def list_tools(self, request: Request) -> ToolRows:
        """List tools by their ids."""
        return _rows(own_of(tenant_of(request), self._tools.states).values())

    @REST.post(
        "/mcp/tools",
        may="code.run",
        status=201,
        at_once=1,  # each may start a process
        refuses=(404, 409),
        ids="the settings environments.modules and environments.servers list what an endpoint may be",
        sends={"tool_id": "sums", "endpoint": "my_tools:add"},
        example=ROWS,
    )
    def add_tool(self, request: Request, body: EntryBody) -> ToolRows:
        """Add an entry, and trust the description that its endpoint has now. The same again changes nothing."""
        fields = body.model_dump(exclude={"reason"}, exclude_none=True)
        with _call_errors("endpoint"):
            checked = read_body(fields)
            order = checked.order(body.tool_id)
            offer = self._caller.describe(order, checked.tool)
            return _rows([self._tools.add(order, offer, RegistryDecision(actor_of(request), body.reason))])

    @REST.post(
        "/mcp/tools/{tool_id}/accept",
        may="code.run",
        ids=LISTED,
        at_once=AT_ONCE,
        refuses=(404, 409),
        sends={"digest": ROW.digest},
        example=ROWS,
    )
    def accept_tool(self, request: Request, tool_id: str, body: AcceptBody) -> ToolRows:
        """Trust the newest description of an entry."""
        decision = RegistryDecision(actor_of(request), body.reason)
        return _rows([self._tools.accept(named(tenant_of(request), tool_id), body.digest, decision)])

    @REST.delete(
        "/mcp/tools/{tool_id}",
        may="code.run",
        ids=LISTED,
        at_once=AT_ONCE,
        refuses=(404, 409),
        example=RemovedEntry(object="tool", tool_id="sums", deleted=True),
    )
    def remove_tool(self, request: Request, tool_id: str) -> RemovedEntry:
        """Remove an entry."""
        name = named(tenant_of(request), tool_id)
        self._tools.remove(name, RegistryDecision(actor_of(request), "removed over HTTP"))
        return RemovedEntry(object="tool", tool_id=name, deleted=True)

    @REST.post(
        "/mcp/tools/{tool_id}/invoke",
        may="chat.call",
        ids=LISTED,
        at_once=AT_ONCE,
        refuses=(403, 404, 409),
        sends={"arguments": {"a": 4, "b": 7}},
        example=ToolResult(object="tool_result", tool="sums", content="11", is_error=False),
    )
    async def invoke_tool(self, request: Request, tool_id: str, body: InvokeBody) -> ToolResult:
        """Call a tool. One that is described otherwise than accepted is refused."""
        return await self._invoke(request, tool_id, body.arguments)

    @REST.post(
        "/mcp/stream",
        may="chat.call",
        ids=LISTED,
        at_once=AT_ONCE,
        refuses=(),
        answers={sse.MEDIA_TYPE: {"itemSchema": {"type": "object"}}},
        sends={"calls": [{"id": "1", "tool": "sums", "arguments": {"a": 4, "b": 7}}]},
    )
    async def stream_tools(self, request: Request, body: StreamBody) -> StreamingResponse:
        """Call several tools at once. Each answer, or error, is an event with the id of its call."""
        return StreamingResponse(self._frames(request, body.calls), headers=sse.HEADERS, media_type=sse.MEDIA_TYPE)

    async def _frames(self, request: Request, calls: list[StreamCall]) -> AsyncIterator[bytes]:
        places = asyncio.Semaphore(AT_ONCE)

        async def answer(call: StreamCall) -> dict[str, Any]:
            async with places:
                try:
                    result: Answer = await self._invoke(request, call.tool, call.arguments)
                except CallError as exc:
                    result = errors.REST.problem(errors.without_secrets(exc))
            return {"id": call.id, **result.model_dump(exclude_unset=True)}

        for done in asyncio.as_completed([answer(call) for call in calls]):
            yield sse.frame(await done)
        yield sse.END

    async def _invoke(self, request: Request, tool_id: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the answer of a tool, if it may be called after what its caller has read. Raises CallError."""
        tool: RegisteredTool = await errors.apart(self._find, request, tool_id)
        if (guard := self._guard()) is not None:
            call = await self._call_to_guard(request, tool, arguments)
            ruling: CallRuling = await errors.apart(guard.decide, call)
            if ruling.outcome != "allowed":
                raise denied(request, "chat.call", ruling.reason, "tool_id")
        result: ToolResult = await errors.apart(self._call, tool, arguments)
        return result

    async def _call_to_guard(self, request: Request, tool: RegisteredTool, arguments: Mapping[str, Any]) -> GuardedCall:
        """Return a call with what its trajectory has read, if it names one that it may see. Raises CallError."""
        principal, named_agent = principal_of(request), request.headers.get("x-agent-id")
        agent = named(tenant_of(request), (principal and principal.agent_id) or named_agent or DEFAULT_AGENT)
        conversation, read = request.headers.get(TRAJECTORY, ""), None
        if conversation and self._recorder is not None:
            owner = await self._recorder.agent_of(conversation)
            if owner is not None and sees(principal, owner):
                messages = await self._recorder.newest_messages(conversation)
                read = None if messages is None else text_parts(messages)
        return GuardedCall(
            door="registered",
            agent_id=agent,
            conversation=conversation,
            call_id=str(uuid.uuid4()),
            tool_id=tool.tool_id,
            name=tool.tool.name,
            arguments=json_text.one_line(arguments),
            read=read,
        )

    def _find(self, request: Request, tool_id: str) -> RegisteredTool:
        """Return a tool that a request may call. Raises NotFoundError, CallError."""
        principal, name = principal_of(request), named(tenant_of(request), tool_id)
        if principal is not None and principal.agent_id is not None:
            agent = named(principal.tenant, principal.agent_id)
            if name not in _tools_of_agent(self._settings, agent):
                raise denied(request, "chat.call", f"agent {agent} is not registered with tool {name}", "tool_id")
        return find(own_of(tenant_of(request), self._tools.states), name)

    def _call(self, tool: RegisteredTool, arguments: Mapping[str, Any]) -> ToolResult:
        with _call_errors("arguments"):
            answer: ToolOutput = self._caller.call(tool, arguments, self._tools)
        return ToolResult(object="tool_result", tool=tool.tool_id, content=answer.text, is_error=answer.is_error)


def _tools_of_agent(settings: Settings, agent_id: str) -> tuple[str, ...]:
    """Return the ids of the tools that an agent is registered with. Raises LogError."""
    agent = agent_registry().read(settings).get(agent_id)
    return () if agent is None else tool_ids(agent.metadata)


@contextmanager
def _call_errors(parameter: str) -> Iterator[None]:
    """Raise errors of an endpoint as CallError about this parameter."""
    try:
        yield
    except EpisodeError as exc:
        raise CallError(KINDS.get(exc.reason, "invalid"), str(exc), parameter) from exc
    except EventError as exc:
        raise CallError("invalid", str(exc), parameter) from exc


def _schema(tool: Tool) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = json_text.parse(tool.parameters)
    except ValueError as exc:  # an event of the log has JSON, or it is no event
        raise CallError("invalid", f"tool {tool.name}: {exc}") from exc
    return schema


def _rows(entries: Iterable[ToolState]) -> ToolRows:
    rows = []
    for entry in entries:
        added, accepted, seen = entry.added, entry.accepted, entry.seen
        if added is None or accepted is None or seen is None:
            continue
        rows += [
            ToolRow(
                tool_id=name,
                entry=entry.tool_id,
                name=tool.name,
                description=tool.description,
                parameters=_schema(tool),
                kind=entry.kind,
                endpoint=entry.endpoint,
                auth_required=added.auth_required,
                idempotent=added.idempotent,
                needs_consent=added.needs_consent,
                handoff=added.handoff,
                untrusted=added.untrusted,
                acts=added.acts,
                trusted=entry.is_trusted,
                digest=accepted.digest,
                newest_digest=seen.digest,
                accepted_by=entry.accepted_by,
            )
            for name, tool in entry.names.items()
        ]
    return ToolRows(object="list", data=rows)
