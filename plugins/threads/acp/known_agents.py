"""The agents that threads run: the registered ones, and `default`, which is the server's own policy.

agent_id, or none ──► the registered one of that name ──► the model that answers, its tools, what it remembers
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from gateway.http.principal import DEFAULT_AGENT, may_ask, principal_of, tenant_of
from plugins.agents.registry.agent_log import AgentMemory, capability_problem, read_memory
from schemas.conventions import TOOL_IDS
from schemas.events import RUN_TASK, AgentEvent, Sampling, ThreadEvent, Tool, derive_id
from streams.access.tenants.tenant_names import may_know, named, tenant_in, without_tenant
from streams.errors import CallError, EventError
from streams.kafka import times
from streams.stages.agents.registered_agents import AgentRegistry

LISTED = "POST /acp/agents/search lists agents"
"""Where the names of agents are found."""


@dataclass(frozen=True, slots=True)
class AvailableAgent:
    """An agent that may be run."""

    agent_id: str
    """As the caller names it."""
    logged: str
    """Its name in the log."""
    model: str
    name: str
    capabilities: tuple[str, ...] = ()
    memory_config: str = "{}"
    tools: tuple[Tool, ...] = ()
    tool_ids: str = ""
    """ID@DIGEST of those that the server calls, the last of `tools`."""
    has_program: bool = False
    """Whether a program answers its runs, and not the model."""
    created_at: int | None = None
    """None: it is not registered."""

    def metadata_of(self, run_id: str, tenant: str | None) -> dict[str, str]:
        """Return the metadata of a request for a run of it: its tools, and the task of its program."""
        tools = {TOOL_IDS: self.tool_ids} if self.tool_ids else {}
        return tools | ({RUN_TASK: named(tenant, derive_id(run_id, "task"))} if self.has_program else {})

    def single_run(self, run_id: str, actor: str, sampling: Sampling, **fields: Any) -> ThreadEvent:
        """Return the request for a run of it that belongs to no thread. Its id follows from the run's."""
        whole: dict[str, Any] = {
            "metadata": self.metadata_of(run_id, tenant_in(self.logged)),
            "model": self.model,
            "memory_config": self.memory_config,
            "tools": self.tools,
        }
        return ThreadEvent(
            event_id=derive_id(run_id, "run_requested"),
            thread_id=run_id,
            created_at=times.now_ms(),
            kind="run_requested",
            actor=actor,
            run_id=run_id,
            agent_id=self.logged,
            labels="{}",
            stateless=True,
            if_busy="reject",
            sampling=sampling,
            **whole | fields,
        )


class KnownAgents:
    """The agents of a server."""

    def __init__(
        self, agents: Callable[[], AgentRegistry], policy: str, memory_fault: Callable[[AgentMemory], str | None]
    ) -> None:
        """`agents` opens those of the log; `policy` is that of the server; `memory_fault` says why the server cannot do
        what an agent is to remember.
        """
        self._agents, self._policy, self._memory_fault = agents, policy, memory_fault

    def of(self, request: Request) -> list[AvailableAgent]:
        """Return the agents that a request may run, in order. Raises as `AgentRegistry`."""
        registered = [self._agent_of(request, event) for event in self._agents().agents.values()]
        known = {agent.agent_id: agent for agent in registered if agent is not None}
        known.setdefault(DEFAULT_AGENT, self._default(request))
        principal = principal_of(request)
        own = None if principal is None else principal.agent_id
        return [known[agent_id] for agent_id in sorted(known) if own in (None, agent_id)]

    def get(self, request: Request, agent_id: str | None) -> AvailableAgent:
        """Return an agent that a request may run; None: the key's own, or `default`. Raises CallError."""
        principal = principal_of(request)
        own = None if principal is None else principal.agent_id
        name = agent_id or own or DEFAULT_AGENT
        if (agent := self._find(request, name)) is None:
            self._agents().catch_up()  # it may have been registered a moment ago
            agent = self._find(request, name)
        if agent is None:
            raise CallError("not_found", f"there is no agent {name[:80]!r}", "agent_id", way_out=LISTED)
        return agent

    def _find(self, request: Request, name: str) -> AvailableAgent | None:
        return next((agent for agent in self.of(request) if agent.agent_id == name), None)

    def check(self, agent: AvailableAgent) -> None:
        """Raise CallError for an agent whose registration has a setting that this server does not support."""
        try:
            fault = self._memory_fault(read_memory(agent.memory_config))
        except EventError as exc:
            fault = str(exc)
        if fault is not None:
            raise CallError("conflict", f"agent {agent.agent_id} cannot run: {fault}; register it again", "agent_id")
        for capability in agent.capabilities:
            if (reason := capability_problem(capability)) is not None:
                text = f"agent {agent.agent_id} cannot run: capability {reason}; register it again"
                raise CallError("conflict", text, "agent_id")

    def _agent_of(self, request: Request, event: AgentEvent) -> AvailableAgent | None:
        """Return an agent if the request may see it; None if it or its model belongs to another tenant."""
        tenant = tenant_of(request)
        if not may_know(tenant, event.agent_id) or not may_ask(request, event.model_id, self._policy):
            return None
        return AvailableAgent(
            agent_id=without_tenant(tenant, event.agent_id),
            logged=named(tenant, event.agent_id),
            model=event.model_id,
            name=event.name,
            capabilities=event.capabilities,
            memory_config=event.memory_config,
            tools=event.tools,
            tool_ids=event.metadata.get(TOOL_IDS, ""),
            has_program=event.program is not None,
            created_at=event.created_at,
        )

    def _default(self, request: Request) -> AvailableAgent:
        logged = named(tenant_of(request), DEFAULT_AGENT)
        return AvailableAgent(DEFAULT_AGENT, logged, self._policy, DEFAULT_AGENT)
