"""List the tools of an endpoint, and call one, each in a process that can be killed.

    endpoint ──► EpisodeStart ──► EnvironmentPool ──► reset ──► Offer: tools, digest
    call ─────► reset: is it described as accepted? ──► step ──► ToolOutput          otherwise: seen, and refused

An environment keeps its state within a run. The same actions lead to the same state, so the run's earlier calls are
repeated before each, also by the next server after kill -9.

A call checks the current description: if it equals the accepted one again, the entry is trusted again.

A tool is an environment of one call, so it runs like one: in a process, with limits of time and memory, and no network
but its server's. An agent of another server is called from here (remote_agent.py). Modules, commands and addresses need
to be listed in environments.modules and environments.servers, so no entry directs a call to an address that the
deployment did not list, private ones included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from plugins.environments.environment_pool import EnvironmentPool, SandboxedEnvironment, check_listed, credential_of
from plugins.environments.episodes.environment import Action, Environment, EpisodeError
from plugins.environments.settings import Environments
from plugins.tools.registry.remote_agent import RemoteAgent, RemoteTask
from plugins.tools.registry.tool_log import EntryOrder, RegistryDecision, ToolLog
from plugins.tools.registry.tool_state import Offer, RegisteredTool, ToolOutput, check_trusted
from schemas import json_text
from schemas.events import EpisodeStart, Tool, ToolCall
from schemas.json_arguments import from_json_texts
from schemas.tool_text import NO_AGENT_MESSAGE, agent_message, endpoint_kind, offer_digest
from streams.errors import EventError
from streams.settings.model import Settings

AGENT = "agent:"
"""Before the name of an agent, in an endpoint."""
AnswersCall = Callable[[Mapping[str, Any]], ToolOutput]
"""Answers a call with these arguments. Raises EpisodeError, EventError."""


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
        kind = endpoint_kind(order.endpoint)
        if kind == "agent" and tool is not None:
            return Offer(tools=(tool,), digest=offer_digest((tool,)))  # it may be registered later
        if kind == "a2a" and tool is not None:
            return self._remote(order).offer(tool)
        return self._open(order, tool)[1]

    def call(
        self,
        registered: RegisteredTool,
        arguments: Mapping[str, Any],
        log: ToolLog,
        task: RemoteTask | None = None,
        before: Iterable[tuple[Tool, str]] = (),
    ) -> ToolOutput:
        """Return the answer of a tool. `task`: of a run, which can end the call from another thread. An environment is
        first brought to where the calls `before` left it.

        Raises RefusedError if it is described otherwise than accepted, which the log has then; EventError, LogError.
        """
        entry = registered.entry
        if entry.added is None or entry.accepted is None or entry.kind == "own":
            raise EventError(f"tool {registered.tool_id} is our own server's; call it there")
        if entry.kind == "agent":
            raise EventError(f"tool {registered.tool_id} is an agent, which runs of other agents call; run it")
        order = EntryOrder(entry.tool_id, entry.endpoint, entry.added.auth_required, entry.environment)
        try:
            if entry.kind == "a2a":
                answer, offer = self._ready_agent(order, registered.tool, task)
            else:
                answer, offer = self._ready_environment(order, registered.tool, task, before)
        except EpisodeError:
            check_trusted(entry)
            raise
        if entry.seen is None or offer.digest != entry.seen.digest:
            decision = RegistryDecision("server", f"seen in a call of {registered.tool_id}")
            entry = log.note(entry.tool_id, offer, decision)
        check_trusted(entry)
        read = _read(registered.tool, arguments)
        try:
            return answer(read)
        except EpisodeError as exc:  # it took too long, or ended its process: its own fault, and not the arguments'
            return ToolOutput(str(exc), exc.reason)

    def _ready_agent(self, order: EntryOrder, tool: Tool, task: RemoteTask | None) -> tuple[AnswersCall, Offer]:
        """Return what answers a call of an agent of another server, and what that offers."""
        agent = self._remote(order)
        offer = agent.offer(tool, task)

        def answer(arguments: Mapping[str, Any]) -> ToolOutput:
            message = agent_message(arguments)
            if message is None:
                raise EventError(NO_AGENT_MESSAGE)
            return agent.answer_in_time(message) if task is None else agent.answer(message, task)

        return answer, offer

    def _ready_environment(
        self, order: EntryOrder, tool: Tool, task: RemoteTask | None, before: Iterable[tuple[Tool, str]]
    ) -> tuple[AnswersCall, Offer]:
        """Return what answers a call of any other endpoint, after those `before`, and what that offers."""
        environment, offer = self._open(order, tool, None if task is None else task.arm)

        def answer(arguments: Mapping[str, Any]) -> ToolOutput:
            for called, earlier in before:
                environment.step(_action(called, _read(called, json_text.parse(earlier))))
            result = environment.step(_action(tool, arguments))
            text = "\n".join(message.content for message in result.observation.messages)
            return ToolOutput(text, None if result.ok else "failed")

        return answer, offer

    def _open(
        self,
        order: EntryOrder,
        tool: Tool | None,
        on_open: Callable[[Callable[[], None]], None] | None = None,
    ) -> tuple[Environment, Offer]:
        """Return an endpoint in a new episode, and what it offers."""
        start = start_of(order, tool)
        self._credential(order, start.name)
        environment = self._pool.open(start)
        if on_open is not None and isinstance(environment, SandboxedEnvironment):
            on_open(environment.kill)
        shown = environment.reset(start.seed)
        messages = () if order.environment is None else shown.messages
        digest = offer_digest(shown.tools, messages)
        return environment, Offer(tools=shown.tools, messages=messages, digest=digest, version=environment.version)

    def cancel(self, registered: RegisteredTool, task_id: str) -> None:
        """Cancel a task of an agent of another server. Raises EpisodeError."""
        agent = self._remote(EntryOrder(registered.entry.tool_id, registered.entry.endpoint))
        agent.offer(registered.tool)
        agent.cancel(task_id)

    def _remote(self, order: EntryOrder) -> RemoteAgent:
        """Return an agent of another server. Raises EpisodeError(not_allowed)."""
        check_listed(order.endpoint, self._limits)
        credential = self._credential(order, order.endpoint)
        return RemoteAgent(order.endpoint.removeprefix("a2a:"), credential, self._limits.timeout_s)

    def _credential(self, order: EntryOrder, server: str) -> str:
        """Return the credential of a server. Raises EpisodeError(not_allowed) if the entry needs one, without any."""
        credential = credential_of(server, self._limits)
        if order.auth_required and not credential:
            raise EpisodeError(
                f"{server} needs a credential, and the file environments.credentials has none for it; add it there",
                reason="not_allowed",
            )
        return credential


def start_of(order: EntryOrder, tool: Tool | None = None) -> EpisodeStart:
    """Return the episode in which an endpoint is called. Raises EventError for an endpoint that there cannot be."""
    try:
        kind = endpoint_kind(order.endpoint)
    except ValueError as exc:
        raise EventError(str(exc)) from exc
    if kind == "environment" and order.environment is not None:
        return order.environment
    if kind in ("environment", "agent", "a2a", "own"):
        raise EventError(f"endpoint is {order.endpoint}; expected one whose tools can be called")
    settings: dict[str, Any] = {"prompt": ""}
    if kind in ("function", "http") and tool is not None:
        settings |= {"name": tool.name, "description": tool.description, "parameters": _schema(tool)}
    name = f"function:{order.endpoint}" if kind == "function" else order.endpoint
    return EpisodeStart(name=name, settings=json.dumps(settings), seed=0)


def _read(tool: Tool, arguments: Mapping[str, Any]) -> Any:
    """Return the arguments of a call, as its schema has them."""
    return from_json_texts(dict(arguments), _schema(tool))


def _action(tool: Tool, read: Mapping[str, Any]) -> Action:
    return Action("", (ToolCall(id="1", name=tool.name, arguments=json.dumps(read)),))


def _schema(tool: Tool) -> Any:
    try:
        return json_text.parse(tool.parameters)
    except ValueError as exc:
        raise EventError(f"tool {tool.name[:140]}: parameters is no JSON: {exc}") from exc
