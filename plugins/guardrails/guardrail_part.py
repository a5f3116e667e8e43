"""Guardrails as a part of the server: the rule by flow that every door asks, and consents."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from gateway.log.server_part import ServerBase, ServerPart
from plugins.guardrails.flow.flow_consents import FlowConsents
from plugins.guardrails.flow.flow_guard import FlowGuard
from plugins.guardrails.guardrail_settings import Guardrails
from schemas.events import GuardrailVerdict
from streams.kafka.producer import Producer
from streams.settings.model import Settings


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
        self._guard: FlowGuard | None = None
        if rule.has_flow:
            self._guard = FlowGuard(rule.flow_rule, rule.flow_mode, self._writer.write, lambda: base.run_tools)

    def __exit__(self, *exc: object) -> None:
        self._writer.close()

    def rooms(self) -> list[object]:
        return [FlowConsents(self._guard)]

    def tool_guard(self) -> FlowGuard | None:
        return self._guard
