"""Decides about calls of tools by the rule of their agent, and records each verdict on a tool that acts.

    GuardedCall ──► its agent's mode ──► FlowRule, with what the registry declares ──► CallRuling ──► guardrail-verdicts
    consent to one call, by whom ──► the same, and it is used up

In monitor mode the verdict says what would be, and the call is made. A verdict that cannot be recorded is an error, and
then the call is not made.

Not covered: consents after the server ends; such calls ask again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from gateway.log.run_tools import RunTools
from plugins.guardrails.flow.flow_rule import FlowMode, FlowRule
from schemas.events import GuardrailMode, GuardrailVerdict, derive_id
from streams.access.tenants.tenant_names import tenant_in
from streams.kafka import times
from streams.stages.agents.tool_guard import ALLOWED, CallRuling, GuardedCall, ToolFlow

RULE = "flow/1"
ModeOf = Callable[[str], FlowMode]
"""Returns the mode of an agent."""
MODES: dict[FlowMode, GuardrailMode] = {"monitor": "monitor", "enforce": "block"}


class FlowGuard:
    """The rule by flow, as the server asks it."""

    def __init__(
        self,
        rule: FlowRule,
        mode: ModeOf,
        record: Callable[[GuardrailVerdict], None],
        tools: Callable[[], RunTools | None] = lambda: None,
    ) -> None:
        """`record` raises LogError if the log does not take a verdict."""
        self._rule, self._mode, self._record, self._tools = rule, mode, record, tools
        self._lock = threading.Lock()
        self._consents: dict[tuple[str, str, str], str] = {}
        """The actors of consents, by agent, conversation and tool."""

    def decide(self, call: GuardedCall) -> CallRuling:
        """Return whether a call may be made, and record the verdict. Raises LogError."""
        mode = self._mode(call.agent_id)
        if mode == "off":
            return ALLOWED
        ruling = self._decide(call)
        if not ruling.reason:
            return ruling
        self._record(
            GuardrailVerdict(
                verdict_id=derive_id("tool", call.door, call.conversation, call.call_id, RULE, ruling.outcome),
                agent_id=call.agent_id or call.door,
                created_at=times.now_ms(),
                metadata={"outcome": ruling.outcome, "door": call.door},
                kind="flow",
                rule=RULE,
                verdict="pass" if ruling.outcome == "allowed" else "block",
                mode=MODES[mode],
                place="tool",
                trajectory_id=call.conversation or None,
                tool=call.tool_id,
                field_path="tool_calls.arguments",
                reason=ruling.reason,
            )
        )
        return ALLOWED if mode == "monitor" else ruling

    def consent(self, agent_id: str, conversation: str, tool: str, actor: str, reason: str) -> None:
        """Let an agent make one call of a tool in a conversation. Raises LogError."""
        now_ms = times.now_ms()
        self._record(
            GuardrailVerdict(
                verdict_id=derive_id("consent", agent_id, conversation, tool, actor, now_ms),
                agent_id=agent_id,
                created_at=now_ms,
                metadata={"outcome": "consented", "consented_by": actor},
                kind="flow",
                rule=RULE,
                verdict="pass",
                mode="block",
                place="route",
                trajectory_id=conversation or None,
                tool=tool,
                field_path="tool",
                reason=f"{actor} consented to one call of {tool}: {reason}",
            )
        )
        with self._lock:
            self._consents[agent_id, conversation, tool] = actor

    def _decide(self, call: GuardedCall) -> CallRuling:
        tenant = tenant_in(call.agent_id)

        def declares(name: str) -> ToolFlow | None:
            tools = self._tools()
            return None if tools is None else tools.flow(name, tenant)

        ruling = self._rule.decide(call, declares)
        if ruling.outcome == "consent" and (actor := self._take_consent(call)) is not None:
            return self._rule.decide(replace(call, consent=actor), declares)
        return ruling

    def _take_consent(self, call: GuardedCall) -> str | None:
        """Return who consented to a call, once."""
        with self._lock:
            for tool in (call.tool_id, call.name):
                if (actor := self._consents.pop((call.agent_id, call.conversation, tool), None)) is not None:
                    return actor
        return None
