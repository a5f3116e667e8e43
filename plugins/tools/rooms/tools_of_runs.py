"""The registry as runs of agents call it: each tool by the description that its agent was registered with.

ID@DIGEST, principal ──► entry of its tenant, accepted with this digest ──► ToolCaller ──► ToolReply
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.log.run_tools import CallableTool, CallInRun, CallStop, ToolReply
from plugins.environments.episodes.environment import EpisodeError
from plugins.tools.registry.tool_caller import AGENT, ToolCaller
from plugins.tools.registry.tool_log import ToolLog
from plugins.tools.registry.tool_state import RegisteredTool, ToolState, find
from schemas import json_text
from schemas.events import RunCall, Tool
from streams.access.credentials import mask
from streams.access.roles import Principal
from streams.access.tenants.tenant_names import own_of
from streams.errors import EventError, NotFoundError, RefusedError
from streams.stages.agents.tool_guard import ToolFlow


class ToolsOfRuns:
    """Registered tools for the runs of a server."""

    def __init__(self, log: Callable[[], ToolLog], caller: ToolCaller) -> None:
        self._log, self._caller = log, caller

    def find(self, reference: str, principal: Principal | None) -> CallableTool | ToolReply:
        """Return a tool that a principal may call now, or why it may not. Raises LogError."""
        tool = self._tool(reference, principal)
        if isinstance(tool, ToolReply):
            return tool
        added, accepted = tool.entry.added, tool.entry.accepted
        assert added is not None and accepted is not None  # noqa: S101 - an entry with tools has both
        agent = tool.entry.endpoint.removeprefix(AGENT) if tool.entry.kind == "agent" else None
        is_idempotent, keeps_state = added.idempotent or agent is not None, added.environment is not None
        return CallableTool(
            tool.tool_id, accepted.digest, is_idempotent, added.needs_consent, agent, added.handoff, keeps_state
        )

    def call(self, reference: str, principal: Principal | None, run: CallInRun, stop: CallStop) -> ToolReply:
        """Return the result of a call. Raises LogError before it was made."""
        tool = self._tool(reference, principal)
        if isinstance(tool, ToolReply):
            return tool
        try:
            before = _of_environment(tool.entry, run.before)
            output = self._caller.call(tool, json_text.parse(run.arguments), self._log(), stop, before)
        except RefusedError as exc:
            return ToolReply(mask(str(exc)), "untrusted")
        except EpisodeError as exc:
            return ToolReply(mask(str(exc)), exc.reason)
        except (EventError, ValueError) as exc:
            return ToolReply(mask(str(exc)), "invalid")
        return ToolReply(output.text, output.error)

    def cancel(self, reference: str, principal: Principal | None, task_id: str) -> None:
        """Cancel the task of another server that answers a call. Raises EpisodeError, LogError."""
        tool = self._tool(reference, principal)
        if not isinstance(tool, ToolReply):
            self._caller.cancel(tool, task_id)

    def flow(self, name: str, tenant: str | None) -> ToolFlow | None:
        """Return what is declared of a tool that a tenant sees, by its id or as models call it. Raises LogError."""
        declared = [
            (tool_id, entry.added)
            for entry in own_of(tenant, self._log().states).values()
            for tool_id, tool in entry.names.items()
            if name in (tool_id, tool.name) and entry.added is not None
        ]
        if not declared:
            return None
        return ToolFlow(
            declared[0][0], any(added.untrusted for _, added in declared), any(added.acts for _, added in declared)
        )

    def _tool(self, reference: str, principal: Principal | None) -> RegisteredTool | ToolReply:
        tool_id, _, digest = reference.partition("@")
        tenant = None if principal is None else principal.tenant
        try:
            tool = find(own_of(tenant, self._log().states), tool_id)
        except NotFoundError as exc:
            return ToolReply(str(exc), "not_found")
        except RefusedError as exc:
            return ToolReply(str(exc), "untrusted")
        accepted = tool.entry.accepted
        if accepted is None or not accepted.digest.startswith(digest):
            problem = f"{tool_id} was accepted with another description than its agent has; register the agent again"
            return ToolReply(problem, "untrusted")
        return tool


def _of_environment(entry: ToolState, calls: Iterable[RunCall]) -> list[tuple[Tool, str]]:
    """Return the tools and arguments of a run's calls that an environment has answered; of another entry, none."""
    names = entry.names if entry.environment is not None else {}
    return [(names[call.tool_id], call.arguments) for call in calls if call.tool_id in names]
