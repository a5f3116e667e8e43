"""Consents to calls that a rule by flow asks for, over HTTP. A run of a thread asks by itself.

POST /guardrails/consents ──► FlowGuard: one call may pass ──► guardrail-verdicts, with the actor
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body
from gateway.http.principal import actor_of, tenant_of
from gateway.http.route import REST
from gateway.log.open_log import AT_ONCE
from plugins.guardrails.flow.flow_guard import FlowGuard
from streams.access.roles import PluginAction
from streams.access.tenants.tenant_names import named
from streams.errors import CallError


class ConsentBody(Body):
    """A consent to one call."""

    tool_id: str = Field(min_length=1, max_length=300, description="the tool, as the refusal names it")
    agent_id: str = Field("default", min_length=1, max_length=128, description="who may call it")
    trajectory_id: str = Field(
        "", max_length=128, description="in which trajectory; empty: in a call of /mcp/registered that names none"
    )
    reason: str = Field(min_length=1, max_length=1000, pattern=r"\S", description="why; it is recorded")


class GivenConsent(Answer):
    """A consent that is in the log."""

    object: Literal["consent"]
    tool_id: str
    agent_id: str
    trajectory_id: str
    actor: str


class FlowConsents:
    """Consents to calls that a rule by flow asks for. A run of a thread asks by itself."""

    def __init__(self, guard: FlowGuard | None) -> None:
        self._guard = guard

    @REST.post(
        "/guardrails/consents",
        may=PluginAction("guardrails.consent"),
        at_once=AT_ONCE,
        refuses=(),
        status=201,
        sends={"tool_id": "send_money", "agent_id": "clerk", "trajectory_id": "t-1", "reason": "the user was asked"},
        example=GivenConsent(
            object="consent", tool_id="send_money", agent_id="clerk", trajectory_id="t-1", actor="user:ada"
        ),
    )
    def give_consent(self, request: Request, body: ConsentBody) -> GivenConsent:
        """Consent to one call of a tool."""
        if self._guard is None:
            raise CallError("unsupported", "guardrails.flow is off on this server, so no call asks for consent")
        agent, actor = named(tenant_of(request), body.agent_id), actor_of(request)
        self._guard.consent(agent, body.trajectory_id, body.tool_id, actor, body.reason)
        return GivenConsent(
            object="consent", tool_id=body.tool_id, agent_id=agent, trajectory_id=body.trajectory_id, actor=actor
        )
