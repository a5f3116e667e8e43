"""List the tools of an endpoint, and call one, each in a process that can be killed.

    endpoint ──► EpisodeStart ──► EnvironmentPool ──► reset ──► Offer: tools, digest
    call ─────► reset: is it described as accepted? ──► step ──► ToolOutput          otherwise: seen, and refused

A call checks the current description: if it equals the accepted one again, the entry is trusted again.

A tool is an environment of one call, so it runs like one: in a process, with limits of time and memory, and no network
but its server's. Modules, commands and addresses need to be listed in environments.modules and environments.servers, so
no entry directs a call to an address that the deployment did not list, private ones included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from plugins.environments.environment_pool import EnvironmentPool, SandboxedEnvironment, credential_of
from plugins.environments.episodes.environment import Action, Environment, EpisodeError
from plugins.environments.settings import Environments
from plugins.tools.registry.tool_log import EntryOrder, RegistryDecision, ToolLog
from plugins.tools.registry.tool_state import Offer, RegisteredTool, check_trusted
from schemas import json_text
from schemas.events import EpisodeStart, Tool, ToolCall
from schemas.json_arguments import from_json_texts
from schemas.tool_text import endpoint_kind, offer_digest
from streams.errors import EventError
from streams.settings.model import Settings

AGENT = "agent:"
"""Before the name of an agent, in an endpoint."""


class ToolOutput(NamedTuple):
    """The answer to a call."""

    text: str
    error: str | None = None
    """Why it is no result, in a word; None: it is one."""

    @property
    def is_error(self) -> bool:
        """Whether the tool could not use the call."""
        return self.error is not None


class ToolCaller:
    """Asks endpoints and calls their tools. Use as a context manager; threads may use it together."""

    def __init__(self, settings: Settings) -> None:
        self._limits = settings.of_plugin(Environments)
        self._pool = EnvironmentPool(self._limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Kill the processes."""
        self._pool.close()

    def describe(self, order: EntryOrder, tool: Tool | None = None) -> Offer:
        """Return the tools of an endpoint; `tool`: name, description and schema of a function, a URL or an agent.

        Raises EventError for an endpoint that there cannot be, EpisodeError for one that does not answer or is not
        listed.
        """
        if order.endpoint.startswith(AGENT) and tool is not None:
            return Offer(tools=(tool,), digest=offer_digest((tool,)))  # it may be registered later
        return self._open(order, tool)[1]

    def call(
        self,
        registered: RegisteredTool,
        arguments: Mapping[str, Any],
        log: ToolLog,
        on_open: Callable[[Callable[[], None]], None] | None = None,
    ) -> ToolOutput:
        """Return the answer of a tool. `on_open` gets what ends the call from another thread.

        Raises RefusedError if it is described otherwise than accepted, which the log has then; EventError, LogError.
        """
        entry = registered.entry
        if entry.added is None or entry.accepted is None or entry.kind == "own":
            raise EventError(f"tool {registered.tool_id} is our own server's; call it there")
        if entry.kind == "agent":
            raise EventError(f"tool {registered.tool_id} is an agent, which runs of other agents call; run it")
        order = EntryOrder(entry.tool_id, entry.endpoint, entry.added.auth_required, entry.environment)
        try:
            environment, offer = self._open(order, registered.tool, on_open)
        except EpisodeError:
            check_trusted(entry)
            raise
        if entry.seen is None or offer.digest != entry.seen.digest:
            decision = RegistryDecision("server", f"seen in a call of {registered.tool_id}")
            entry = log.note(entry.tool_id, offer, decision)
        check_trusted(entry)
        read = from_json_texts(dict(arguments), _schema(registered.tool))
        call = ToolCall(id="1", name=registered.tool.name, arguments=json.dumps(read))
        try:
            result = environment.step(Action("", (call,)))
        except EpisodeError as exc:  # it took too long, or ended its process: its own fault, and not the arguments'
            return ToolOutput(str(exc), exc.reason)
        text = "\n".join(message.content for message in result.observation.messages)
        return ToolOutput(text, None if result.ok else "failed")

    def _open(
        self,
        order: EntryOrder,
        tool: Tool | None,
        on_open: Callable[[Callable[[], None]], None] | None = None,
    ) -> tuple[Environment, Offer]:
        """Return an endpoint in a new episode, and what it offers."""
        start = start_of(order, tool)
        if order.auth_required and not credential_of(start.name, self._limits):
            raise EpisodeError(
                f"{start.name} needs a credential, and the file environments.credentials has none for it; add it there",
                reason="not_allowed",
            )
        environment = self._pool.open(start)
        if on_open is not None and isinstance(environment, SandboxedEnvironment):
            on_open(environment.kill)
        shown = environment.reset(start.seed)
        messages = () if order.environment is None else shown.messages
        digest = offer_digest(shown.tools, messages)
        return environment, Offer(tools=shown.tools, messages=messages, digest=digest, version=environment.version)


def start_of(order: EntryOrder, tool: Tool | None = None) -> EpisodeStart:
    """Return the episode in which an endpoint is called. Raises EventError for an endpoint that there cannot be."""
    try:
        kind = endpoint_kind(order.endpoint)
    except ValueError as exc:
        raise EventError(str(exc)) from exc
    if kind == "environment" and order.environment is not None:
        return order.environment
    if kind in ("environment", "agent", "own"):
        raise EventError(f"endpoint is {order.endpoint}; expected one whose tools can be called")
    settings: dict[str, Any] = {"prompt": ""}
    if kind in ("function", "http") and tool is not None:
        settings |= {"name": tool.name, "description": tool.description, "parameters": _schema(tool)}
    name = f"function:{order.endpoint}" if kind == "function" else order.endpoint
    return EpisodeStart(name=name, settings=json.dumps(settings), seed=0)


def _schema(tool: Tool) -> Any:
    try:
        return json_text.parse(tool.parameters)
    except ValueError as exc:
        raise EventError(f"tool {tool.name[:140]}: parameters is no JSON: {exc}") from exc
