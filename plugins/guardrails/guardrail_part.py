"""Guardrails as a part of the server: the rule by flow that every door asks, consents, and texts on request."""

from __future__ import annotations

from gateway.log.server_part import ServerBase, ServerPart
from plugins.guardrails.flow.flow_consents import FlowConsents
from plugins.guardrails.flow.flow_guard import FlowGuard
from plugins.guardrails.guardrail_routes import GuardrailRoutes
from plugins.guardrails.guardrail_settings import Guardrails
from plugins.guardrails.verdict_writer import VerdictWriter


class GuardrailPart(ServerPart):
    """The rule by flow of a server, and its routes."""

    ROOMS = (FlowConsents, GuardrailRoutes)

    def __init__(self, base: ServerBase) -> None:
        rule = base.settings.of_plugin(Guardrails)
        self._writer = VerdictWriter(base.settings)
        self._routes = GuardrailRoutes(base.settings, self._writer)
        self._guard: FlowGuard | None = None
        if rule.has_flow:
            self._guard = FlowGuard(rule.flow_rule, rule.flow_mode, self._writer.write, lambda: base.run_tools)

    def __exit__(self, *exc: object) -> None:
        self._writer.close()

    def rooms(self) -> list[object]:
        return [FlowConsents(self._guard), self._routes]

    def tool_guard(self) -> FlowGuard | None:
        return self._guard
