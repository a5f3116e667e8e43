"""Guardrails as a part of the server: the rule by flow that every door asks, and consents."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Literal

from pydantic import Field
from starlette.requests import Request

from gateway.http.body import Answer, Body
from gateway.http.principal import actor_of, tenant_of
from gateway.http.route import REST
from gateway.log.open_log import AT_ONCE
from gateway.log.server_part import ServerBase, ServerPart
from plugins.guardrails.flow.flow_guard import FlowGuard
from plugins.guardrails.guardrail_settings import Guardrails
from schemas.events import GuardrailVerdict
from streams.access.roles import PluginAction
from streams.access.tenants.tenant_names import named
from streams.errors import CallError
from streams.kafka.producer import Producer
from streams.settings.model import Settings


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


class VerdictWriter:
    """Writes verdicts. Threads may use it together."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._lock, self._stack = settings, threading.Lock(), ExitStack()
        self._producer: Producer | None = None

    def write(self, verdict: GuardrailVerdict) -> None:
        """Write a verdict; it returns once the log has it. Raises LogError."""
        with self._lock:
            if self._producer is None:
                self._producer = self._stack.enter_context(Producer(self._settings, linger_ms=0))
            self._producer.send(verdict)
            self._producer.flush()

    def close(self) -> None:
        """Wait until all are in the log. Raises LogError."""
        self._stack.close()


class GuardrailPart(ServerPart):
    """The rule by flow of a server."""

    ROOMS = (FlowConsents,)

    def __init__(self, base: ServerBase) -> None:
        rule = base.settings.of_plugin(Guardrails)
        self._writer = VerdictWriter(base.settings)
        is_on = rule.flow != "off" or any(mode != "off" for _, mode in rule.flow_by_agent)
        self._guard = FlowGuard(rule, self._writer.write, lambda: base.run_tools) if is_on else None

    def __exit__(self, *exc: object) -> None:
        self._writer.close()

    def rooms(self) -> list[object]:
        return [FlowConsents(self._guard)]

    def call_guard(self) -> FlowGuard | None:
        return self._guard
