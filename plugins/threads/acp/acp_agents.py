"""Agents of the Agent Protocol: the registered ones, and the input and output of each.

POST /acp/agents/search · GET /acp/agents/{id} · GET /acp/agents/{id}/schemas ──► KnownAgents
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.http import errors
from plugins.threads.acp.known_agents import LISTED, KnownAgents
from plugins.threads.acp.thread_answers import AgentAnswer, AgentSchemaAnswer, agent_answer, list_response
from plugins.threads.acp.thread_bodies import AgentSearch, Configurable
from plugins.threads.acp.thread_interfaces import ACP

MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
}
MESSAGES: dict[str, Any] = {"type": "object", "properties": {"messages": {"type": "array", "items": MESSAGE}}}


class AcpAgents:
    """The agents of a server."""

    def __init__(self, agents: KnownAgents) -> None:
        self._agents = agents

    @ACP.post("/agents/search", may="models.read")
    async def acp_search_agents(self, request: Request, body: AgentSearch) -> Response:
        """List agents."""
        agents = await errors.apart(self._agents.of, request)
        answers = [agent_answer(agent) for agent in agents if body.name in (None, agent.name, agent.agent_id)]
        wanted = (body.metadata or {}).items()
        answers = [answer for answer in answers if all(answer.metadata.get(name) == value for name, value in wanted)]
        return list_response(answers[body.offset : body.offset + body.limit])

    @ACP.get("/agents/{agent_id}", may="models.read", ids=LISTED)
    async def acp_get_agent(self, request: Request, agent_id: str) -> AgentAnswer:
        """Look at an agent."""
        return agent_answer(await errors.apart(self._agents.get, request, agent_id))

    @ACP.get("/agents/{agent_id}/schemas", may="models.read", ids=LISTED)
    async def acp_get_agent_schemas(self, request: Request, agent_id: str) -> AgentSchemaAnswer:
        """Return what an agent takes and gives."""
        agent = await errors.apart(self._agents.get, request, agent_id)
        return AgentSchemaAnswer(
            agent_id=agent.agent_id,
            input_schema=MESSAGES,
            output_schema=MESSAGES,
            state_schema=MESSAGES,
            config_schema={"type": "object", "properties": {"configurable": Configurable.model_json_schema()}},
        )
