"""The cards of A2A: the skills and the address of each agent, for the key that asks.

    GET /a2a/{agent_id}/.well-known/agent-card.json ──► KnownAgents ──► card

A card promises what its reader may do and no more: a key that may not call the agent gets none, and there is none of an
agent that cannot answer here. The server calls the registered tools of an agent; a task waits for the results of
others, and for consent, as `TASK_STATE_INPUT_REQUIRED`.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.http import errors
from gateway.http.principal import principal_of
from plugins.threads.acp.known_agents import LISTED, AvailableAgent, KnownAgents
from plugins.threads.acp.thread_interfaces import A2A_CARDS
from streams.files import program_version

PROTOCOL_VERSION = "1.0"
TEXT, JSON = "text/plain", "application/json"
NOT_STORED = {"Cache-Control": "no-store"}
"""Another key gets another card."""


class A2aCards:
    """The cards of a server's agents."""

    def __init__(self, agents: KnownAgents, public_url: str) -> None:
        """`public_url`: the server's address; empty: the one that the request was sent to."""
        self._agents, self._public_url = agents, public_url.rstrip("/")

    @A2A_CARDS.get("/{agent_id}/.well-known/agent-card.json", may="chat.call", ids=LISTED, refuses=(404, 409))
    async def a2a_get_agent_card(self, request: Request, agent_id: str) -> Response:
        """Look at the card of an agent."""
        agent = await callable_agent(self._agents, request, agent_id)
        url = self._public_url or str(request.base_url).rstrip("/")
        return JSONResponse(_card(agent, url, has_keys=principal_of(request) is not None), headers=NOT_STORED)


async def callable_agent(agents: KnownAgents, request: Request, agent_id: str) -> AvailableAgent:
    """Return an agent that a request may call over A2A. Raises CallError."""
    agent = await errors.apart(agents.get, request, agent_id)
    agents.check(agent)
    return agent


def _card(agent: AvailableAgent, url: str, *, has_keys: bool) -> dict[str, Any]:
    interface = {
        "url": f"{url}/a2a/{agent.agent_id}",
        "protocolBinding": "JSONRPC",
        "protocolVersion": PROTOCOL_VERSION,
    }
    card: dict[str, Any] = {
        "name": agent.name,
        "description": f"answered by {agent.model}",
        "supportedInterfaces": [interface],
        "version": program_version(),
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "defaultInputModes": [TEXT, JSON] if agent.tools else [TEXT],
        "defaultOutputModes": [TEXT],
        "skills": [_skill(agent, name) for name in ("conversation", *agent.capabilities)],
    }
    if has_keys:
        card["securitySchemes"] = {"key": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
        card["securityRequirements"] = [{"schemes": {"key": {"list": []}}}]
    return card


def _skill(agent: AvailableAgent, name: str) -> dict[str, Any]:
    if name == "conversation":
        return {"id": name, "name": name, "description": "answers text, and remembers its context", "tags": ["text"]}
    return {"id": name, "name": name, "description": f"a capability of {agent.name}", "tags": [name]}
